//! Envoy's half of the mesh: renders plans as xDS resources, and speaks ADS as a state machine.
//!
//! Two ideas live here. [`render`] turns a [`starling_plan::Plan`] into a [`ResourceSet`]: every resource is encoded
//! once, versioned by its content and shared by every stream that may see it. [`session`] is one ADS stream without
//! its I/O: requests and resource sets go in, responses and reports come out. The crate owns no sockets, no clock and
//! no keys beyond those that it is handed to render; what a policy means is decided in `core/traffic`, here it is only
//! compiled.

pub mod render;
pub mod resource;
pub mod session;
pub mod wire;

pub use render::{Leaf, MeshNames, NativePart, NativePartError, Renderer, ServiceLeaves};
pub use resource::{Resource, ResourceKey, ResourceSet, ResourceType, Version};
pub use session::{AdsSession, BESIDE, BESIDE_ANOTHER, Flavour, ProxyNode, Report, Response, SessionError};
