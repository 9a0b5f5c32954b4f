//! The file below redb, unchanged on disk until the store has been opened well.
//!
//! redb repairs while it opens: it may rewrite its header before it finds damage beyond repair. A
//! refused store must stay as it was, so what redb writes during an open is kept in memory, and let
//! through once the open has succeeded.
//!
//! ```text
//!   redb     write A · sync · write B · sync · "opened"│ write C
//!   disk                             A · sync · B · sync · C
//! ```
//!
//! * Before [`DeferredBackend::release`], the file's bytes and length do not change.
//! * A read shows every write before it, released or not.
//! * The disk sees the same writes and syncs in the same order as without this layer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use redb::StorageBackend;

/// A storage backend whose changes can be held back. Clones are the same backend: one goes to
/// redb, the other stays with the caller that lets the changes through.
#[derive(Debug)]
pub(crate) struct DeferredBackend<B> {
    state: Arc<DeferredState<B>>,
}

#[derive(Debug)]
struct DeferredState<B> {
    inner: B,
    /// Looked at first on every access, so that the list's lock is left alone after the release.
    is_released: AtomicBool,
    pending: Mutex<Vec<DeferredChange>>,
}

#[derive(Debug)]
enum DeferredChange {
    Write { offset: u64, data: Vec<u8> },
    SetLen(u64),
    Sync,
}

impl<B> Clone for DeferredBackend<B> {
    fn clone(&self) -> Self {
        DeferredBackend { state: Arc::clone(&self.state) }
    }
}

impl<B: StorageBackend> DeferredBackend<B> {
    pub(crate) fn new(inner: B) -> DeferredBackend<B> {
        let (is_released, pending) = (AtomicBool::new(false), Mutex::default());
        DeferredBackend { state: Arc::new(DeferredState { inner, is_released, pending }) }
    }

    /// Lets everything through that was held back, and all that follows.
    pub(crate) fn release(&self) -> io::Result<()> {
        let mut kept = self.state.pending.lock();
        for change in kept.drain(..) {
            match change {
                DeferredChange::Write { offset, data } => self.state.inner.write(offset, &data)?,
                DeferredChange::SetLen(len) => self.state.inner.set_len(len)?,
                DeferredChange::Sync => self.state.inner.sync_data()?,
            }
        }
        self.state.is_released.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns whether the change was kept: not if changes go through by now.
    fn defer(&self, change: impl FnOnce() -> DeferredChange) -> bool {
        if self.state.is_released.load(Ordering::Acquire) {
            return false;
        }
        let mut kept = self.state.pending.lock();
        // Asked again under the lock: a release may have come in between.
        if self.state.is_released.load(Ordering::Acquire) {
            return false;
        }
        kept.push(change());
        true
    }

    fn len_of(&self, kept: &[DeferredChange]) -> io::Result<u64> {
        let last = kept.iter().rev().find_map(|change| match change {
            DeferredChange::SetLen(len) => Some(*len),
            _ => None,
        });
        last.map_or_else(|| self.state.inner.len(), Ok)
    }

    /// Reads what the file would hold if the kept changes had gone through.
    fn read_through(&self, kept: &[DeferredChange], offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset + out.len() as u64;
        if end > self.len_of(kept)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // What lies beyond the file's own end is zero, until a kept change says otherwise.
        let below = self.state.inner.len()?.clamp(offset, end) - offset;
        let (inside, beyond) = out.split_at_mut(below as usize);
        self.state.inner.read(offset, inside)?;
        beyond.fill(0);
        for change in kept {
            match change {
                DeferredChange::Write { offset: at, data } => copy_overlap(offset, out, *at, data),
                DeferredChange::SetLen(len) => {
                    let kept_bytes = len.clamp(&offset, &end) - offset;
                    out[kept_bytes as usize..].fill(0);
                }
                DeferredChange::Sync => {}
            }
        }
        Ok(())
    }
}

/// Copies the part of `data` (which starts at `at`) that falls into `out` (which starts at
/// `offset`).
fn copy_overlap(offset: u64, out: &mut [u8], at: u64, data: &[u8]) {
    let from = at.max(offset);
    let to = (at + data.len() as u64).min(offset + out.len() as u64);
    if from < to {
        let source = &data[(from - at) as usize..(to - at) as usize];
        out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
    }
}

impl<B: StorageBackend> StorageBackend for DeferredBackend<B> {
    fn len(&self) -> io::Result<u64> {
        if self.state.is_released.load(Ordering::Acquire) {
            return self.state.inner.len();
        }
        self.len_of(&self.state.pending.lock())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.state.is_released.load(Ordering::Acquire) {
            return self.state.inner.read(offset, out);
        }
        self.read_through(&self.state.pending.lock(), offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.defer(|| DeferredChange::SetLen(len)) {
            Ok(())
        } else {
            self.state.inner.set_len(len)
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.defer(|| DeferredChange::Sync) { Ok(()) } else { self.state.inner.sync_data() }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.defer(|| DeferredChange::Write { offset, data: data.to_vec() }) {
            return Ok(());
        }
        self.state.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.state.inner.close()
    }

    // Locks are not changes: redb's go to the file at once, and keep redb's own tools out.
    forward_locks!(state.inner);
}

#[cfg(test)]
mod tests {
    use redb::StorageBackend;
    use redb::backends::InMemoryBackend;

    use super::DeferredBackend;

    #[test]
    fn reads_see_held_back_changes_and_the_disk_does_not() {
        let held = DeferredBackend::new(InMemoryBackend::new());
        let disk = &held.state.inner;
        disk.set_len(8).unwrap();
        disk.write(0, b"abcdefgh").unwrap();

        held.write(2, b"XY").unwrap();
        held.set_len(5).unwrap();
        held.set_len(10).unwrap();
        held.write(9, b"Z").unwrap();
        let mut seen = [1; 10];
        held.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"abXYe\0\0\0\0Z");
        let mut middle = [1; 4];
        held.read(3, &mut middle).unwrap();
        assert_eq!(&middle, b"Ye\0\0");
        assert!(held.read(8, &mut [0; 3]).is_err());
        assert_eq!((held.len().unwrap(), disk.len().unwrap()), (10, 8));

        held.release().unwrap();
        let mut written = [1; 10];
        disk.read(0, &mut written).unwrap();
        assert_eq!(written, seen);
        held.write(0, b"Q").unwrap();
        disk.read(0, &mut written).unwrap();
        assert_eq!(written[0], b'Q');
    }
}
