//! A service whose endpoints all change at once, again and again: more than a slow reader can read, for one write.

use std::net::Ipv4Addr;

use http::Method;
use serde_json::json;

use crate::api::{Api, Call};
use crate::fleet::{Expected, Moment};
use crate::shape::RESTLESS_UPSTREAM;

/// The node of all of its instances; nobody runs it. They have no address of their own, and so move with their node.
const NODE: &str = "bench-restless";

/// Instances: some 20 KB for each stream when they move.
const ENDPOINTS: u32 = 256;

/// The node's first address; with every wave it has the next.
const ADDRESS_FIRST: u32 = 0x0a4f_0001;

/// The port of each instance.
const PORT: u16 = 9090;

/// The service, and how often it has moved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Restless {
    moves: u32,
}

/// A move that was called for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    pub(super) revision: u64,
    /// Just before the call.
    pub(super) since: Moment,
}

impl Restless {
    /// Registers it.
    ///
    /// # Errors
    /// When the server refuses.
    pub(super) async fn register(api: &mut Api) -> anyhow::Result<Self> {
        let restless = Self { moves: 0 };
        for instance in 0..ENDPOINTS {
            super::super::write(api, &restless.call(Some(instance))).await?;
        }
        Ok(restless)
    }

    /// Moves every endpoint to another address.
    ///
    /// # Errors
    /// When the server refuses.
    pub(super) async fn shift(&mut self, api: &mut Api) -> anyhow::Result<Moved> {
        self.moves += 1;
        let Call { method, target, body } = self.call(None);
        let written = api.write(method, &target, &body).await?;
        let revision = written.revision.ok_or_else(|| anyhow::anyhow!("{target} answered without a revision"))?;
        Ok(Moved { revision, since: Moment::of(written.called)? })
    }

    /// What who watches it knows in the end.
    pub(super) fn expected(self) -> Expected {
        Expected::RestlessAt(self.address())
    }

    fn address(self) -> Ipv4Addr {
        Ipv4Addr::from(ADDRESS_FIRST + self.moves)
    }

    /// Registers an instance, or the node alone.
    fn call(self, instance: Option<u32>) -> Call {
        let mut body = json!({ "Node": NODE, "Address": self.address() });
        if let Some(instance) = instance {
            let id = format!("{RESTLESS_UPSTREAM}-{instance}");
            let connect = json!({ "Native": true });
            body["Service"] = json!({ "ID": id, "Service": RESTLESS_UPSTREAM, "Port": PORT, "Connect": connect });
        }
        Call { method: Method::PUT, target: "/v1/catalog/register".to_owned(), body }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn with_every_move_something_else_is_known() {
        let (before, after) = (Restless { moves: 3 }, Restless { moves: 4 });
        assert_ne!(before.expected(), after.expected());
        assert_eq!(after.call(None).body["Address"], after.call(Some(9)).body["Address"]);
        assert_eq!(after.call(None).body["Service"], Value::Null);
    }
}
