//! Leases, the keys that are attached to them, and when they end. etcd's `server/lease`.
//!
//! All members agree on which leases there are, their granted seconds, checkpoints and keys,
//! through the log. The moment at which a lease ends is in the leader's memory only; the leader
//! proposes to revoke a lease that has run out, and a renewal moves the moment without an entry in
//! the log.
//!
//! * A key is attached to one lease at most; the store reports which at the end of each transaction
//!   ([`KeyLeases`](clearlane_mvcc::KeyLeases)).
//! * Bucket `lease` and the records of the keys are all that is needed to restore the agreed part,
//!   and they change only in transactions of the store.
//! * A lease that has run out is not renewed: its revocation may be on its way.
//! * The caller passes the time: nothing here reads a clock.
//!
//! `docs/lease.md` has the whole story.

pub mod lease_map;
pub mod expiry;
pub mod lessor;

pub use expiry::Due;
pub use lease_map::LeaseState;
pub use lessor::{Config, LeaseTtl, Lessor, Renewal};

/// The most seconds that a lease may be granted with: etcd's.
pub const TTL_MAX: i64 = 9_000_000_000;

/// What is refused to a client; the words are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LeaseRejection {
    #[error("etcdserver: lease already exists")]
    Exists,
    #[error("etcdserver: requested lease not found")]
    NotFound,
    #[error("etcdserver: too large lease TTL")]
    TtlTooLarge,
}

/// What makes a member stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] clearlane_mvcc::Error),
    #[error("the record of a lease is damaged: {0}")]
    Corrupt(String),
}

pub type Result<T> = std::result::Result<T, Error>;
