//! What has been rendered, by the part of the plan it was rendered from.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::resource::Resource;

/// Entries below which looking for dead ones is not worth the while.
const SWEEP_AT_LEAST: usize = 64;

/// Where a part lives; two plans have the same part exactly if this is equal.
pub(super) fn address_of<P>(part: &Arc<P>) -> usize {
    Arc::as_ptr(part).addr()
}

/// Resources by part and by whatever else was read to render them.
///
/// An entry's weak reference keeps the part's allocation, not its content: no other part can get the address while the
/// entry stands. Dead entries are swept out when the number of entries has doubled, so there are never more than twice
/// the living ones, and a fixed few.
#[derive(Debug)]
pub(super) struct PartCache<P, K> {
    entries: BTreeMap<(usize, K), (Weak<P>, Arc<Resource>)>,
    sweep_at: usize,
}

impl<P, K> Default for PartCache<P, K> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), sweep_at: SWEEP_AT_LEAST }
    }
}

impl<P, K: Ord> PartCache<P, K> {
    /// The resource of `part`, rendered now if it was not before. `key` is every scalar that `render` reads.
    pub fn get(&mut self, part: &Arc<P>, key: K, render: impl FnOnce() -> Resource) -> Arc<Resource> {
        let key = (address_of(part), key);
        if let Some((_, resource)) = self.entries.get(&key) {
            return Arc::clone(resource);
        }
        if self.entries.len() >= self.sweep_at {
            self.entries.retain(|_, (part, _)| part.strong_count() > 0);
            self.sweep_at = SWEEP_AT_LEAST.max(self.entries.len() * 2);
        }
        let resource = Arc::new(render());
        self.entries.insert(key, (Arc::downgrade(part), Arc::clone(&resource)));
        resource
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::ResourceType;

    fn resource() -> Resource {
        Resource::new(ResourceType::Route, "r", b"")
    }

    #[test]
    fn a_part_is_rendered_once_per_key() {
        let mut cache = PartCache::<u8, bool>::default();
        let part = Arc::new(1);
        let first = cache.get(&part, true, resource);
        let again = cache.get(&part, true, || unreachable!("rendered twice"));
        assert!(Arc::ptr_eq(&first, &again));
        let mut rendered = false;
        cache.get(&part, false, || {
            rendered = true;
            resource()
        });
        assert!(rendered);
    }

    #[test]
    fn dropped_parts_are_forgotten() {
        let mut cache = PartCache::<u64, ()>::default();
        let kept: Vec<_> = (0..10).map(Arc::new).collect();
        for part in &kept {
            cache.get(part, (), resource);
        }
        for n in 0..10_000 {
            cache.get(&Arc::new(n), (), resource);
        }
        assert!(cache.entries.len() <= SWEEP_AT_LEAST + kept.len(), "{} entries", cache.entries.len());
        for part in &kept {
            cache.get(part, (), || unreachable!("forgotten while alive"));
        }
    }
}
