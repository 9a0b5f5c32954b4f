//! The right to write: one writer and one defragmentation at a time.
//!
//! A second writer fails with [`Error::WriterBusy`]; it does not wait. While a defragmentation
//! copies the store, it must learn of every key that changes. So each transaction that starts
//! during the copy records the keys it changes and hands them over after its commit. A transaction
//! that was already open records nothing, so the copy starts only after that transaction has ended.
//!
//! ```text
//!   writer   ──┤ T1 records nothing ├──┤ T2 records ├──┤ T3 records ├──
//!   defragment      begin ·· waits ··├── copy, replay the keys of T2 and T3 ──┤ finish
//! ```
//!
//! * Keys are handed over after their commit is visible, and before the next writer can start. So
//!   the defragmentation, which first takes the keys and then a snapshot, misses no change.
//! * After a failed commit every further writer fails. A panic in an open transaction is treated
//!   like a failed commit, and so is a failed switch at the end of a defragmentation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use crate::bucket::Bucket;
use crate::error::{Error, Result};

#[derive(Debug, Default)]
pub(crate) struct WriterLock {
    /// This lock is held only for a short time, at most while changed keys are moved. It is never
    /// held while the store is read or written.
    state: Mutex<WriterLockState>,
}

#[derive(Debug, Default)]
struct WriterLockState {
    /// Whether the open write transaction records the keys that it changes, or `None` if no write
    /// transaction is open.
    writer: Option<bool>,
    /// If true, a commit or the switch to a new store has failed, or a thread has panicked during a
    /// transaction. The flag is never reset.
    has_failed: bool,
    is_defragmenting: bool,
    /// Keys that commits have changed, and that the defragmentation in progress has not taken yet.
    /// The field is a set, because every commit changes the same few keys of the small buckets
    /// again.
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

/// The right to write. It ends when the guard is dropped.
#[derive(Debug)]
pub(crate) struct WriterGuard {
    lock: Arc<WriterLock>,
    records_changes: bool,
    changed_keys: Vec<ChangedKey>,
}

impl WriterGuard {
    /// Records a changed key if a defragmentation needs it; otherwise does nothing.
    pub(crate) fn record_change(&mut self, bucket: Bucket, key: &[u8]) {
        if self.records_changes {
            self.changed_keys.push((bucket, key.into()));
        }
    }

    /// Ends the transaction. `outcome` is the result of its commit, and is returned unchanged.
    /// After `Ok`, a defragmentation in progress gets the recorded keys. After an error, all later
    /// writers fail.
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
        // If the thread panics, it is unknown whether its commit is on disk. So the panic is
        // treated like a failed commit.
        if thread::panicking() {
            state.has_failed = true;
        }
    }
}

/// The right to defragment. It ends when the guard is dropped.
#[derive(Debug)]
pub(crate) struct DefragmentGuard {
    lock: Arc<WriterLock>,
}

impl DefragmentGuard {
    /// Returns whether every commit after this call records its changes. This is false while a
    /// transaction is open that started before the defragmentation.
    pub(crate) fn is_recording_all_commits(&self) -> bool {
        self.lock.state.lock().writer != Some(false)
    }

    pub(crate) fn take_changed_keys(&self, limit: usize) -> Vec<ChangedKey> {
        let mut state = self.lock.state.lock();
        std::iter::from_fn(|| state.changed_keys.pop_first()).take(limit).collect()
    }

    /// Takes the right to write, so that no writer starts while the defragmentation switches to the
    /// new store. Fails with [`Error::WriterBusy`] if a write transaction is open, or with
    /// [`Error::Failed`] after an earlier failure.
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
