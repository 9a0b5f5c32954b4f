//! The settings of a backend.

use std::fmt;
use std::time::Duration;

use clearlane_contention::Registry;
use clearlane_engine::Bucket;

use crate::error::Result;

/// The limits that decide when to commit, and the registry that measures how long locks are held
/// and waited for. Where etcd has the same setting, the default is etcd's.
#[derive(Clone, Debug)]
pub struct Config {
    /// Minimum time between two commits that [`commit_if_due`](crate::Backend::commit_if_due)
    /// makes. Era `clearlane` commits earlier if the batch limit is reached.
    pub batch_interval: Duration,
    /// Number of pending operations at which a commit is made before the interval is over.
    pub batch_limit: u64,
    /// Era `clearlane` only: if more bytes than this are pending, the next write transaction waits
    /// for a commit or makes one. This bounds memory when the disk is slower than the writes.
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

/// A function that runs inside every commit, before the engine commits. It gets the payload of
/// exactly the state that becomes durable. In the same engine transaction it stores the records
/// that belong to this state. In etcd these records are the consistent index, the term and the
/// `ConfState`.
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

    /// Runs the hook. It is public, so that another crate can call this hook from its own hook.
    pub fn run(&self, payload: &T, put: &mut CommitPut<'_>) -> Result<()> {
        (self.0)(payload, put)
    }
}

impl<T> fmt::Debug for PreCommit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PreCommit")
    }
}
