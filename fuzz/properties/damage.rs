//! What is kept, damaged at random.

use proptest::prelude::*;

/// Two of them, the beginning of the one with the end of the other, and bytes written over.
pub fn damaged(kept: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let one = prop::sample::select(kept);
    let cuts = any::<(prop::sample::Index, prop::sample::Index)>();
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (one.clone(), one, cuts, damage).prop_map(|(one, other, (from, to), damage)| {
        let mut data = one[..from.index(one.len() + 1)].to_vec();
        data.extend_from_slice(&other[to.index(other.len() + 1)..]);
        for (at, byte) in damage {
            if !data.is_empty() {
                let at = at.index(data.len());
                data[at] = byte;
            }
        }
        data
    })
}
