//! Leases, the keys attached to them, and their expiry. In etcd: `server/lease`.
//!
//! All members agree, through the log, on the leases: their IDs, granted TTLs, checkpoints and
//! keys. (Each member raises a short TTL to a minimum that depends on its election timeout. So the
//! granted TTLs may differ if the election timeouts of the members differ.) Expiry times exist only
//! in the leader's memory, so a renewal writes no log entry, unless a checkpoint has to be undone
//! first. When a lease expires, the leader proposes its revocation.
//!
//! * A key is attached to at most one lease. The store reports the attachments at the end of each
//!   transaction ([`KeyLeases`](clearlane_mvcc::KeyLeases)).
//! * Bucket `lease` and the key records hold everything that is needed to restore the part on which
//!   all members agree. They change only in transactions of the store.
//! * An expired lease cannot be renewed: its revocation may already be proposed.
//! * The caller passes the time. This crate reads no clock.
//!
//! `docs/lease.md` explains the design.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod lease_map;
pub mod expiry;
pub mod lessor;

pub use expiry::Due;
pub use lease_map::LeaseState;
pub use lessor::{Config, LeaseTtl, Lessor, Renewal};

/// The largest TTL, in seconds, that a client may request for a lease, as in etcd.
pub const TTL_MAX: i64 = 9_000_000_000;

/// The reason why a client's request is rejected. The messages are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LeaseRejection {
    #[error("etcdserver: lease already exists")]
    Exists,
    #[error("etcdserver: requested lease not found")]
    NotFound,
    #[error("etcdserver: too large lease TTL")]
    TtlTooLarge,
}

/// A fatal error: the member stops.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] clearlane_mvcc::Error),
    #[error("the record of a lease is damaged: {0}")]
    Corrupt(String),
}

pub type Result<T> = std::result::Result<T, Error>;
