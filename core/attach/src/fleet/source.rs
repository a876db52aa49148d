//! Where the content of subjects comes from: the catalog, or what a relay has heard of it.

use bytes::Bytes;
use starling_catalog::{Snapshot, Subject};
use starling_model::Revision;

use crate::message::{FromServer, ServerSays, Whole, encode_subject};
use crate::projection::{content, encode_item};

/// What there is to send.
pub trait Source {
    /// Up to where everything is there.
    fn revision(&self) -> Revision;

    /// Whether it is known what is there of a subject.
    fn knows(&self, subject: &Subject) -> bool;

    /// The whole of a subject that is known, as a finished frame.
    fn whole(&self, subject: &Subject) -> Bytes;
}

impl Source for Snapshot {
    fn revision(&self) -> Revision {
        Self::revision(self)
    }

    fn knows(&self, _: &Subject) -> bool {
        true
    }

    fn whole(&self, subject: &Subject) -> Bytes {
        let items = content(self, subject);
        let items = items.iter().map(|(key, item)| encode_item(key, Some(item))).collect();
        let whole = Whole { subject: encode_subject(subject), revision: Self::revision(self).0, items };
        FromServer::from(ServerSays::Whole(whole)).to_bytes()
    }
}
