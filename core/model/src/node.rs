//! A node: a machine on which an agent runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::name::NodeName;

/// A node's identifier: a UUID in its usual text form, or empty where the registration named none.
pub type NodeId = String;

/// A machine of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Its UUID; may be empty for nodes registered through the catalog.
    pub id: NodeId,
    /// The address under which its services are reached unless they name their own: an IP or a host name.
    pub address: String,
    /// Addresses by purpose: `lan`, `wan`, and so on.
    #[serde(default)]
    pub tagged_addresses: BTreeMap<String, String>,
    /// Free metadata.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
}
