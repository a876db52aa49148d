//! Snapshots of the catalog on their way out and in.

use std::sync::Arc;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use starling_http_api::{IncomingSnapshot, OutgoingSnapshot, RestoreReport, SnapshotFailure};
use starling_model::NodeName;
use starling_server::{Incoming, IncomingError, RestoreFailure, Restored, Server};
use tokio::sync::OwnedSemaphorePermit;

pub(super) async fn save(server: &Server) -> Result<OutgoingSnapshot, SnapshotFailure> {
    let saved = server.save().await;
    let saved = saved.map_err(|error| SnapshotFailure::Failed(format!("No cluster leader: {error}")))?;
    let revision = saved.revision();
    let pieces = stream::iter(saved).map(|piece| piece.map_err(Into::into)).boxed();
    Ok(OutgoingSnapshot { revision, pieces })
}

/// One on its way in.
pub(super) struct Receiving {
    pub(super) server: Arc<Server>,
    /// The node whose agent lives in this process.
    pub(super) own_node: Option<NodeName>,
    pub(super) incoming: Incoming,
    /// Held until the restore is over: what comes in is held in memory as a whole.
    pub(super) place: OwnedSemaphorePermit,
}

/// Why a snapshot is not received.
pub(super) const BUSY: &str = "another snapshot is being restored at this server; ask again when that is done";

#[async_trait]
impl IncomingSnapshot for Receiving {
    fn push(&mut self, piece: &[u8]) -> Result<(), SnapshotFailure> {
        self.incoming.push(piece).map_err(wrong)
    }

    async fn restore(self: Box<Self>) -> Result<RestoreReport, SnapshotFailure> {
        let Self { server, own_node, incoming, place } = *self;
        let (header, records, unreadable) = incoming.finish().map_err(wrong)?;
        tracing::info!(store = header.store, revision = header.revision, "a snapshot was received");
        // In a task of its own: a caller who leaves does not leave it half done.
        let work = tokio::spawn(async move {
            let _place = place;
            server.restore(&records, &unreadable, own_node.as_ref()).await
        });
        match work.await {
            Ok(Ok(restored)) => Ok(report(restored)),
            Ok(Err(failure @ RestoreFailure::Busy)) => Err(SnapshotFailure::Busy(failure.to_string())),
            Ok(Err(failure @ (RestoreFailure::NotBegun(_) | RestoreFailure::Interrupted { .. }))) => {
                Err(SnapshotFailure::Failed(format!("{:#}", anyhow::Error::from(failure))))
            }
            Err(panic) => Err(SnapshotFailure::Failed(format!("the restore broke off: {panic}; run it again"))),
        }
    }
}

fn wrong(error: IncomingError) -> SnapshotFailure {
    SnapshotFailure::Wrong(format!("{:#}; nothing was changed", anyhow::Error::from(error)))
}

fn report(restored: Restored) -> RestoreReport {
    let Restored { revision, written, removed, younger, younger_count, unreadable, left } = restored;
    RestoreReport {
        revision,
        written,
        removed,
        younger,
        younger_count,
        attached_nodes: left.attached_nodes.into_iter().collect(),
        authority: left.authority,
        join_tokens: left.join_tokens,
        virtual_addresses: left.virtual_addresses,
        unreadable,
    }
}
