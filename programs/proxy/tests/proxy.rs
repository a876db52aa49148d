//! The proxy through real sockets: two sidecars, a scripted application, and clients that write bytes by hand.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "proxy/admin.rs"]
mod admin;
#[path = "proxy/app.rs"]
mod app;
#[path = "proxy/change.rs"]
mod change;
#[path = "proxy/edge.rs"]
mod edge;
#[path = "proxy/features.rs"]
mod features;
#[path = "proxy/floods.rs"]
mod floods;
#[path = "proxy/http1.rs"]
mod http1;
#[path = "proxy/http2.rs"]
mod http2;
#[path = "proxy/policy.rs"]
mod policy;
#[path = "proxy/revoked.rs"]
mod revoked;
#[path = "proxy/smuggling.rs"]
mod smuggling;
#[path = "proxy/tcp.rs"]
mod tcp;
#[path = "proxy/telemetry.rs"]
mod telemetry;
#[path = "proxy/traces.rs"]
mod traces;
#[path = "proxy/wire.rs"]
mod wire;
#[path = "proxy/world.rs"]
mod world;
