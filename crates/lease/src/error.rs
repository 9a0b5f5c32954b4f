//! What is refused to a client, and what makes a member stop.

/// The words are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LeaseRejection {
    #[error("etcdserver: lease already exists")]
    Exists,
    #[error("etcdserver: requested lease not found")]
    NotFound,
    #[error("etcdserver: too large lease TTL")]
    TtlTooLarge,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] clearlane_mvcc::Error),
    #[error("the record of a lease is damaged: {0}")]
    Corrupt(String),
}

pub type Result<T> = std::result::Result<T, Error>;
