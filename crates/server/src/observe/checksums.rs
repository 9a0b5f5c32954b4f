//! Hashes of one member's store, for comparing members or checking a suspected disk.
//!
//! Both walk the whole store, in one state: they are for a thread that has time. What they cover:
//! [`clearlane_mvcc::hash`] and [`clearlane_mvcc::backend_hash()`].

use clearlane_mvcc::{Store, backend_hash};

use crate::applied_position::AppliedPosition;
use crate::apply::ApplyError;
use crate::corruption::MemberHash;
use crate::error::Result;
use crate::request_error::RequestError;

const KEYS_PER_STEP: usize = 10_000;

/// The hash of all keys at a revision (0: the current one).
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

/// The hash of everything on disk, after a commit; and the current revision before the hash is
/// taken, which it includes.
pub fn hash(store: &dyn Store<AppliedPosition>) -> Result<(u32, i64)> {
    let revision = store.begin_read().revision();
    Ok((backend_hash(&**store.snapshot()?.snapshot())?, revision))
}
