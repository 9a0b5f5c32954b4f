//! What is refused to a client, and what makes a member stop.

/// Why nothing was done. The words are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LeaseRejection {
    /// There is one of this id.
    #[error("etcdserver: lease already exists")]
    Exists,
    /// There is none of this id.
    #[error("etcdserver: requested lease not found")]
    NotFound,
    /// No lease may be granted for that long.
    #[error("etcdserver: too large lease TTL")]
    TtlTooLarge,
}

/// The store has failed, or has what cannot be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store has failed.
    #[error(transparent)]
    Store(#[from] clearlane_mvcc::Error),
    /// A record in bucket `lease` is none.
    #[error("the record of a lease is damaged: {0}")]
    Corrupt(String),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
