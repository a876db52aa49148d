//! Shared parts, kept for as long as some plan holds them.
//!
//! A part is built again only when a subject it was read from has moved, and if the new part equals the old one the old
//! one stays: pointer equality means that nothing changed. The shelf itself holds parts weakly; what no plan holds is
//! gone, and its label is swept when labels of the gone may outnumber the rest.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use starling_catalog::{MeshRead, Subject};
use starling_model::Revision;

use crate::diagnostic::Diagnostic;
use crate::view::View;

/// Labels below which a sweep is not worth its pass.
const SWEEP_LABELS_MIN: usize = 256;

/// Parts of one kind.
pub(crate) struct Shelf<K, T> {
    parts: BTreeMap<K, Shelved<T>>,
    /// Labels at which the next sweep is due: twice those that the last one left, so that sweeping costs each label O(1).
    sweep_at: usize,
}

struct Shelved<T> {
    part: Weak<T>,
    /// `None` for a part that is built at every plan and only compared.
    origin: Option<Arc<Origin>>,
}

/// What a part was made from, and what was found wrong on the way.
#[derive(Debug)]
pub struct Origin {
    pub(crate) read: Vec<(Subject, Revision)>,
    pub(crate) diagnostics: Vec<Diagnostic>,
}

impl Origin {
    /// Everything read. The part is the same for as long as none of these changes.
    pub fn subjects(&self) -> impl Iterator<Item = &Subject> {
        self.read.iter().map(|(subject, _)| subject)
    }
}

impl<K: Ord + Clone, T> Shelf<K, T> {
    pub(crate) fn new() -> Self {
        Self { parts: BTreeMap::new(), sweep_at: SWEEP_LABELS_MIN }
    }

    /// The part under `key` as of `mesh`, built only if something it was read from has moved.
    pub(crate) fn fetch(
        &mut self,
        key: &K,
        mesh: &dyn MeshRead,
        build: impl FnOnce(&mut View<'_>) -> (T, Vec<Diagnostic>),
    ) -> (Arc<T>, Arc<Origin>)
    where
        T: PartialEq,
    {
        let old = self.parts.get(key).and_then(|shelved| Some((shelved.part.upgrade()?, shelved.origin.as_ref()?)));
        if let Some((part, origin)) = &old
            && origin.read.iter().all(|(subject, revision)| mesh.subject_revision(subject) == *revision)
        {
            return (Arc::clone(part), Arc::clone(origin));
        }
        let mut view = View::new(mesh);
        let (built, diagnostics) = build(&mut view);
        let origin = Arc::new(Origin { read: view.into_read(), diagnostics });
        let part = match old {
            Some((part, _)) if *part == built => part,
            _ => Arc::new(built),
        };
        self.put(key.clone(), &part, Some(Arc::clone(&origin)));
        (part, origin)
    }

    /// The part equal to `built` that a plan holds already under `key`, or else `built` itself.
    pub(crate) fn keep(&mut self, key: &K, built: T, same: impl Fn(&T, &T) -> bool) -> Arc<T> {
        let old = self.parts.get(key).and_then(|shelved| shelved.part.upgrade());
        let part = match old {
            Some(part) if same(&part, &built) => part,
            _ => Arc::new(built),
        };
        self.put(key.clone(), &part, None);
        part
    }

    fn put(&mut self, key: K, part: &Arc<T>, origin: Option<Arc<Origin>>) {
        self.parts.insert(key, Shelved { part: Arc::downgrade(part), origin });
        if self.parts.len() >= self.sweep_at {
            self.parts.retain(|_, shelved| shelved.part.strong_count() > 0);
            self.sweep_at = (self.parts.len() * 2).max(SWEEP_LABELS_MIN);
        }
    }

    /// Labels held, those of parts long gone included.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }
}
