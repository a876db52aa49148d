//! `until`: a write that is answered once those whom it concerns have applied it.

use std::fmt;
use std::time::Duration;

use http::Method;
use starling_catalog::{Barrier, Until};
use starling_model::Revision;

use crate::blocking::Stopping;
use crate::call::Query;
use crate::error::ApiError;
use crate::limits::UNTIL_WAIT_DEFAULT;
use crate::ports::CatalogPort;

/// What a request waits for, and how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    until: Until,
    wait: Duration,
}

/// How it stands with what was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Met,
    Timeout,
    Never,
    /// There is no receipt: a write that changed nothing answers a revision that may be older than those remembered.
    Unknown,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::Timeout => "timeout",
            Self::Never => "never",
            Self::Unknown => "unknown",
        })
    }
}

impl Wanted {
    /// What the query of a request for a receipt wants.
    pub(crate) fn of(query: &Query) -> Result<Option<Self>, ApiError> {
        let Some(text) = query.get("until") else { return Ok(None) };
        let until =
            text.parse().map_err(|error: starling_catalog::UntilError| ApiError::bad_request(error.to_string()))?;
        Ok(Some(Self { until, wait: query.duration("wait")?.unwrap_or(UNTIL_WAIT_DEFAULT) }))
    }

    /// What a write wants. On a read nothing is waited for, unless it is that of a receipt.
    pub(crate) fn of_write(method: &Method, query: &Query) -> Result<Option<Self>, ApiError> {
        if *method == Method::GET { Ok(None) } else { Self::of(query) }
    }

    /// Nobody need wait for a node that there is not: that is neither registered nor has ever reported.
    pub(crate) fn refuse_unknown_node(&self, catalog: &dyn CatalogPort) -> Result<(), ApiError> {
        let Until::AppliedNode(node) = &self.until else { return Ok(()) };
        let reports = || catalog.nodes().iter().any(|(report, _)| report.node == *node);
        if catalog.snapshot().node(node).is_some() || reports() {
            return Ok(());
        }
        Err(ApiError::bad_request(format!("until: there is no node named {node}")))
    }

    /// Waits, and tells how it stands then.
    pub(crate) async fn standing(
        &self,
        catalog: &dyn CatalogPort,
        revision: Revision,
        stopping: &Stopping,
    ) -> Standing {
        let decided = catalog.until(revision, &self.until, self.wait);
        let decided = match stopping.cuts_short(decided).await {
            Some(decided) => decided,
            None => catalog.until(revision, &self.until, Duration::ZERO).await,
        };
        match decided {
            Some(Barrier::Met) => Standing::Met,
            Some(Barrier::NotYet) => Standing::Timeout,
            Some(Barrier::Never) => Standing::Never,
            None => Standing::Unknown,
        }
    }
}
