//! The database file as redb sees it: at first on trial, later for real.
//!
//! Opening a redb file writes to it: the header is marked as in use, an interrupted commit is
//! rolled back, damaged structures are rebuilt. None of that may happen to a file that turns out
//! not to be ours or not to be whole. So while on trial, writes go to memory and are remembered in
//! order; [`Disk::adopt`] carries them out once the content has been found good, and if it is
//! never called, the file keeps every byte.
//!
//! Exclusion between processes is the directory lock's business, not this file's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

/// Bytes per block of the overlay; redb's page size, so that most writes are whole blocks.
const BLOCK: usize = 4096;

/// A shared handle to the file; clones see the same state.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    on_trial: AtomicBool,
    trial: Mutex<Trial>,
}

#[derive(Debug)]
struct Trial {
    /// Length as it would be.
    length: u64,
    /// Bytes of the real file that still show through; the rest, where not overlaid, is zero.
    visible: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
    log: Vec<Operation>,
}

#[derive(Debug)]
enum Operation {
    Write { offset: u64, bytes: Vec<u8> },
    SetLength(u64),
    Sync,
}

impl Disk {
    /// Puts the file on trial.
    pub(super) fn on_trial(file: File) -> io::Result<Disk> {
        let length = file.metadata()?.len();
        let trial = Trial { length, visible: length, blocks: BTreeMap::new(), log: Vec::new() };
        let inner = Inner { file, on_trial: AtomicBool::new(true), trial: Mutex::new(trial) };
        Ok(Disk { inner: Arc::new(inner) })
    }

    /// Ends the trial: carries out what was held back, in its order, syncs included.
    ///
    /// A crash half-way leaves what a crash of redb itself would have left at that point.
    pub(super) fn adopt(&self) -> io::Result<()> {
        let mut trial = self.inner.trial();
        for operation in std::mem::take(&mut trial.log) {
            match operation {
                Operation::Write { offset, bytes } => {
                    self.inner.file.write_all_at(&bytes, offset)?;
                }
                Operation::SetLength(length) => self.inner.file.set_len(length)?,
                Operation::Sync => self.inner.file.sync_data()?,
            }
        }
        trial.blocks.clear();
        self.inner.on_trial.store(false, Ordering::Release);
        Ok(())
    }
}

impl Inner {
    fn is_on_trial(&self) -> bool {
        self.on_trial.load(Ordering::Acquire)
    }

    fn trial(&self) -> MutexGuard<'_, Trial> {
        self.trial.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trial {
    fn read(&self, file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_file(file, offset, out)?;
        let end = offset + out.len() as u64;
        let first = offset - offset % BLOCK as u64;
        for (start, block) in self.blocks.range(first..end) {
            let from = offset.max(*start);
            let to = end.min(start + BLOCK as u64);
            out[index(from - offset)..index(to - offset)]
                .copy_from_slice(&block[index(from - start)..index(to - start)]);
        }
        Ok(())
    }

    /// The bytes below the overlay.
    fn read_file(&self, file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let shown = index(self.visible.saturating_sub(offset).min(out.len() as u64));
        let (below, beyond) = out.split_at_mut(shown);
        file.read_exact_at(below, offset)?;
        beyond.fill(0);
        Ok(())
    }

    fn write(&mut self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let mut start = offset - offset % BLOCK as u64;
        while start < end {
            let mut block = match self.blocks.remove(&start) {
                Some(block) => block,
                None => {
                    let mut block = Box::new([0; BLOCK]);
                    self.read_file(file, start, &mut block[..])?;
                    block
                }
            };
            let from = offset.max(start);
            let to = end.min(start + BLOCK as u64);
            block[index(from - start)..index(to - start)]
                .copy_from_slice(&bytes[index(from - offset)..index(to - offset)]);
            self.blocks.insert(start, block);
            start += BLOCK as u64;
        }
        self.length = self.length.max(end);
        self.log.push(Operation::Write { offset, bytes: bytes.to_vec() });
        Ok(())
    }

    fn set_length(&mut self, length: u64) {
        self.visible = self.visible.min(length);
        self.length = length;
        let beyond = self.blocks.split_off(&length.next_multiple_of(BLOCK as u64));
        drop(beyond);
        if let Some((start, block)) = self.blocks.range_mut(..length).next_back() {
            let keep = index((length - start).min(BLOCK as u64));
            block[keep..].fill(0);
        }
        self.log.push(Operation::SetLength(length));
    }
}

/// Offsets inside one buffer always fit.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        if self.inner.is_on_trial() {
            return Ok(self.inner.trial().length);
        }
        Ok(self.inner.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.inner.is_on_trial() {
            return self.inner.trial().read(&self.inner.file, offset, out);
        }
        self.inner.file.read_exact_at(out, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        if self.inner.is_on_trial() {
            self.inner.trial().set_length(length);
            return Ok(());
        }
        self.inner.file.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.inner.is_on_trial() {
            self.inner.trial().log.push(Operation::Sync);
            return Ok(());
        }
        self.inner.file.sync_data()
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.inner.is_on_trial() {
            return self.inner.trial().write(&self.inner.file, offset, bytes);
        }
        self.inner.file.write_all_at(bytes, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random operations on a trial show what the same operations on a file would, leave the file
    /// alone, and turn it into the same thing when adopted.
    #[test]
    fn a_trial_behaves_like_the_file_and_does_not_touch_it() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let original: Vec<u8> = (0..random.usize(0..20_000)).map(|_| random.u8(..)).collect();
            let tried = tempfile::tempfile().unwrap();
            let direct = tempfile::tempfile().unwrap();
            for file in [&tried, &direct] {
                file.write_all_at(&original, 0).unwrap();
            }
            let disk = Disk::on_trial(tried.try_clone().unwrap()).unwrap();
            for _ in 0..30 {
                if random.u8(..4) == 0 {
                    let length = random.u64(..30_000);
                    disk.set_len(length).unwrap();
                    direct.set_len(length).unwrap();
                } else {
                    let offset = random.u64(..30_000);
                    let bytes: Vec<u8> = (0..random.usize(1..9_000)).map(|_| random.u8(..)).collect();
                    disk.write(offset, &bytes).unwrap();
                    direct.write_all_at(&bytes, offset).unwrap();
                }
                assert_eq!(content(&disk), file_content(&direct));
            }
            assert_eq!(file_content(&tried), original);
            disk.adopt().unwrap();
            assert_eq!(file_content(&tried), file_content(&direct));
            assert_eq!(content(&disk), file_content(&direct));
        }
    }

    fn content(disk: &Disk) -> Vec<u8> {
        let mut bytes = vec![0; index(disk.len().unwrap())];
        disk.read(0, &mut bytes).unwrap();
        assert!(disk.read(disk.len().unwrap(), &mut [0]).is_err());
        bytes
    }

    fn file_content(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; index(file.metadata().unwrap().len())];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }
}
