//! The settings of a backend.

use std::fmt;
use std::time::Duration;

use clearlane_contention::Registry;
use clearlane_engine::Bucket;

use crate::error::Result;

/// When to commit, and where to count lock time. The defaults are etcd's, where etcd has the
/// setting.
#[derive(Clone, Debug)]
pub struct Config {
    /// [`commit_if_due`](crate::Backend::commit_if_due) commits what is pending once in this time.
    pub batch_interval: Duration,
    /// Number of pending operations that are committed before the interval is over.
    pub batch_limit: u64,
    /// Era `clearlane` only: with more than this many pending bytes, the next write
    /// transaction waits for a commit. It bounds memory when the disk is slower than the writes.
    pub pending_bytes_max: u64,
    pub locks: Registry,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            batch_interval: Duration::from_millis(100),
            batch_limit: 10_000,
            pending_bytes_max: 64 << 20,
            locks: Registry::new(),
        }
    }
}

pub type CommitPut<'p> = dyn FnMut(Bucket, &[u8], &[u8]) -> Result<()> + 'p;

/// What runs inside every commit, before the engine's own: it is given the payload of exactly
/// the state that the commit makes durable, and stores what must go with it (etcd: consistent
/// index, term, ConfState) in the same engine transaction.
pub struct PreCommit<T>(Box<PreCommitFn<T>>);

type PreCommitFn<T> = dyn Fn(&T, &mut CommitPut<'_>) -> Result<()> + Send + Sync;

impl<T> PreCommit<T> {
    pub fn new(
        hook: impl Fn(&T, &mut CommitPut<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> PreCommit<T> {
        PreCommit(Box::new(hook))
    }

    pub fn none() -> PreCommit<T> {
        PreCommit::new(|_, _| Ok(()))
    }

    /// Public for a crate above that puts a hook of its own around it.
    pub fn run(&self, payload: &T, put: &mut CommitPut<'_>) -> Result<()> {
        (self.0)(payload, put)
    }
}

impl<T> fmt::Debug for PreCommit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PreCommit")
    }
}
