//! Filling a store with the entries of another one.
//!
//! Revisions cannot be copied: they are numbers of transactions. But their order can: entries are written in the order in
//! which they were made and last written, so that of two entries the one that was written later still is, or both were
//! written at once. Everything gets a revision beyond that at which the store began.

use crate::store::{CommitError, Store};
use crate::transaction::{Entry, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_OPERATIONS, Revision, Transaction};

/// Writes entries into a store that has none of them, in transactions as large as may be. `progress` is told how many of how
/// many writes are done. Returns the revision of the last.
///
/// # Errors
/// [`CommitError`]; some of the entries may be written then.
pub async fn fill(
    store: &dyn Store,
    entries: &[Entry],
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Revision, CommitError> {
    let mut last = Revision::ZERO;
    let order = order(entries);
    let (mut done, all) = (0, order.len());
    for batch in batches(entries, &order) {
        let puts = batch.iter().map(|index| &entries[*index]);
        let transaction =
            puts.fold(Transaction::new(), |transaction, entry| transaction.put(entry.key.clone(), entry.value.clone()));
        last = store.commit(transaction).await?;
        done += batch.len();
        progress(done, all);
    }
    Ok(last)
}

/// The writes, as indices: each entry when it was made, and again when it was last written if that was later.
fn order(entries: &[Entry]) -> Vec<usize> {
    let made = entries.iter().enumerate().map(|(index, entry)| (entry.created, index));
    let written = entries.iter().enumerate().filter(|(_, entry)| entry.modified > entry.created);
    let written = written.map(|(index, entry)| (entry.modified, index));
    let mut all: Vec<_> = made.chain(written).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, index)| index).collect()
}

/// The same in transactions; in none of them is an entry twice.
fn batches<'a>(entries: &[Entry], order: &'a [usize]) -> Vec<&'a [usize]> {
    let mut all = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (place, index) in order.iter().enumerate() {
        let entry = &entries[*index];
        let size = entry.key.as_bytes().len() + entry.value.len();
        let is_full = place - start == MAX_TRANSACTION_OPERATIONS || bytes + size > MAX_TRANSACTION_BYTES;
        if is_full || order[start..place].contains(index) {
            all.push(&order[start..place]);
            (start, bytes) = (place, 0);
        }
        bytes += size;
    }
    if start < order.len() {
        all.push(&order[start..]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::Key;

    fn entry(key: &str, created: u64, modified: u64) -> Entry {
        let (created, modified) = (Revision(created), Revision(modified));
        Entry { key: Key::new(key.to_owned()).unwrap(), value: key.to_owned().into(), created, modified, leased: false }
    }

    #[test]
    fn what_was_written_later_is_written_later() {
        let entries = [entry("a", 1, 9), entry("b", 4, 4), entry("c", 2, 3)];
        let order = order(&entries);
        assert_eq!(order, [0, 2, 2, 1, 0]);
        let batches = batches(&entries, &order);
        assert_eq!(batches, [&[0, 2][..], &[2, 1, 0]]);
    }

    #[test]
    fn transactions_are_no_larger_than_may_be() {
        let entries: Vec<_> = (0..300).map(|number| entry(&format!("{number:03}"), number + 1, number + 1)).collect();
        let order = order(&entries);
        let sizes: Vec<_> = batches(&entries, &order).iter().map(|batch| batch.len()).collect();
        assert_eq!(sizes, [128, 128, 44]);
        let large = |key: &str, at| Entry { value: vec![0; MAX_TRANSACTION_BYTES - 1].into(), ..entry(key, at, at) };
        let entries = [large("a", 1), large("b", 2)];
        assert_eq!(batches(&entries, &[0, 1]).len(), 2);
    }
}
