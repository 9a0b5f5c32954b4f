//! Hashes one member's store, to compare members or to check a disk that is suspected to be faulty.
//!
//! Both functions take a long time: they read the whole store, as of one point in time. Call them
//! on a thread that may block. [`clearlane_mvcc::hash`] and [`clearlane_mvcc::backend_hash()`]
//! document which data they cover.

use clearlane_mvcc::{Store, backend_hash};
use clearlane_replica::applied_position::AppliedPosition;
use clearlane_replica::apply::ApplyError;
use clearlane_replica::{RequestError, Result};

use crate::observe::corruption::MemberHash;

const KEYS_PER_STEP: usize = 10_000;

/// Returns the hash of all keys at a revision. Revision 0 means the current revision.
pub fn hash_kv(
    store: &dyn Store<AppliedPosition>,
    revision: i64,
) -> std::result::Result<MemberHash, RequestError> {
    let mut job = store.hash(revision).map_err(ApplyError::from)?;
    loop {
        if let Some(hash_kv) = job.step(KEYS_PER_STEP).map_err(ApplyError::from)? {
            return Ok(MemberHash { hash_kv, revision: job.revision() });
        }
    }
}

/// Commits the store, and returns the hash of all its data on disk. Also returns the revision that
/// was current before the commit. The hash includes all data up to that revision, and possibly
/// later data.
pub fn hash(store: &dyn Store<AppliedPosition>) -> Result<(u32, i64)> {
    let revision = store.begin_read().revision();
    Ok((backend_hash(&**store.snapshot()?.snapshot())?, revision))
}
