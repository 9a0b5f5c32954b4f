//! The right to write: one writer at a time, one defragmentation at a time.
//!
//! A second writer is turned away ([`Error::WriterBusy`]) and does not wait. A defragmentation must
//! learn of every key that changes while it copies: each write transaction begun meanwhile notes
//! its keys and hands them over when it has committed. One that was already open has noted nothing:
//! until it is gone, the copy must not start.
//!
//! ```text
//!   writer   ──┤ T1 (notes nothing) ├──┤ T2 notes ├──┤ T3 notes ├──
//!   defragment      begin ·· waits ··├── copy, replay what T2, T3 handed over ──┤ finish
//! ```
//!
//! * Keys are handed over after their commit is visible and before the next writer may begin. A
//!   reader that takes the keys first and a snapshot second misses no change.
//! * After a failed commit no writer enters. A panic in an open transaction counts as one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use crate::bucket::Bucket;
use crate::error::{Error, Result};

#[derive(Debug, Default)]
pub(crate) struct WriterLock {
    /// Held for a few instructions at a time, never across a read or a write of the store.
    state: Mutex<WriterLockState>,
}

#[derive(Debug, Default)]
struct WriterLockState {
    /// The open write transaction, and whether it notes what it touches.
    writer: Option<bool>,
    /// Set by a failed commit, or by a panic in its place, for ever.
    has_failed: bool,
    is_defragmenting: bool,
    /// Keys of commits since the defragmentation began that it has not carried over yet. A set,
    /// because the same few keys of the small buckets change with every commit.
    changed_keys: BTreeSet<ChangedKey>,
}

pub(crate) type ChangedKey = (Bucket, Box<[u8]>);

impl WriterLock {
    pub(crate) fn acquire(self: &Arc<WriterLock>) -> Result<WriterGuard> {
        let mut state = self.state.lock();
        if state.has_failed {
            return Err(Error::Failed);
        }
        if state.writer.is_some() {
            return Err(Error::WriterBusy);
        }
        let records_changes = state.is_defragmenting;
        state.writer = Some(records_changes);
        Ok(WriterGuard { lock: Arc::clone(self), records_changes, changed_keys: Vec::new() })
    }

    pub(crate) fn begin_defragment(self: &Arc<WriterLock>) -> Result<DefragmentGuard> {
        let mut state = self.state.lock();
        if state.has_failed {
            return Err(Error::Failed);
        }
        if state.is_defragmenting {
            return Err(Error::DefragmentBusy);
        }
        state.is_defragmenting = true;
        Ok(DefragmentGuard { lock: Arc::clone(self) })
    }
}

/// Held until dropped.
#[derive(Debug)]
pub(crate) struct WriterGuard {
    lock: Arc<WriterLock>,
    records_changes: bool,
    changed_keys: Vec<ChangedKey>,
}

impl WriterGuard {
    /// Does nothing unless a defragmentation needs to know.
    pub(crate) fn record_change(&mut self, bucket: Bucket, key: &[u8]) {
        if self.records_changes {
            self.changed_keys.push((bucket, key.into()));
        }
    }

    /// `outcome` is that of the commit.
    pub(crate) fn release(mut self, outcome: Result<()>) -> Result<()> {
        let mut state = self.lock.state.lock();
        match &outcome {
            Ok(()) if state.is_defragmenting => {
                state.changed_keys.extend(self.changed_keys.drain(..))
            }
            Ok(()) => {}
            Err(_) => state.has_failed = true,
        }
        drop(state);
        outcome
    }
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        let mut state = self.lock.state.lock();
        state.writer = None;
        // The turn ends without an outcome: a commit may be on disk, wholly or not at all.
        if thread::panicking() {
            state.has_failed = true;
        }
    }
}

/// Held until dropped.
#[derive(Debug)]
pub(crate) struct DefragmentGuard {
    lock: Arc<WriterLock>,
}

impl DefragmentGuard {
    /// Whether every commit from now on hands over what it changed.
    pub(crate) fn is_recording_all_commits(&self) -> bool {
        self.lock.state.lock().writer != Some(false)
    }

    pub(crate) fn take_changed_keys(&self, limit: usize) -> Vec<ChangedKey> {
        let mut state = self.lock.state.lock();
        std::iter::from_fn(|| state.changed_keys.pop_first()).take(limit).collect()
    }

    /// Keeps writers out, for the switch to the new store.
    pub(crate) fn stop_writers(&self) -> Result<WriterGuard> {
        self.lock.acquire()
    }
}

impl Drop for DefragmentGuard {
    fn drop(&mut self) {
        let mut state = self.lock.state.lock();
        state.is_defragmenting = false;
        state.changed_keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::WriterLock;
    use crate::catch_panic::catch_panic;
    use crate::{Bucket, Error};

    #[test]
    fn a_transaction_older_than_the_defragmentation_holds_it_back() {
        let lock = Arc::new(WriterLock::default());
        let old = lock.acquire().unwrap();
        let defragment = lock.begin_defragment().unwrap();
        assert!(!defragment.is_recording_all_commits());
        old.release(Ok(())).unwrap();
        assert!(defragment.is_recording_all_commits());

        let mut young = lock.acquire().unwrap();
        assert!(defragment.is_recording_all_commits());
        young.record_change(Bucket::Meta, b"k");
        assert!(defragment.take_changed_keys(9).is_empty(), "not before its commit");
        young.release(Ok(())).unwrap();
        assert_eq!(defragment.take_changed_keys(9), vec![(Bucket::Meta, Box::from(&b"k"[..]))]);
        assert!(defragment.take_changed_keys(9).is_empty());
    }

    #[test]
    fn a_failed_commit_closes_the_gate_for_ever() {
        let lock = Arc::new(WriterLock::default());
        let guard = lock.acquire().unwrap();
        assert!(guard.release(Err(Error::Storage("disk".to_owned()))).is_err());
        assert!(matches!(lock.acquire(), Err(Error::Failed)));
        assert!(matches!(lock.begin_defragment(), Err(Error::Failed)));
    }

    #[test]
    fn a_panic_in_a_commit_closes_the_gate_for_ever() {
        let lock = Arc::new(WriterLock::default());
        let guard = lock.acquire().unwrap();
        let commit = catch_panic(move || {
            let _guard = guard;
            panic!("half way")
        });
        assert_eq!(commit, Err::<(), _>("half way".to_owned()));
        assert!(matches!(lock.acquire(), Err(Error::Failed)));
        assert!(matches!(lock.begin_defragment(), Err(Error::Failed)));
    }
}
