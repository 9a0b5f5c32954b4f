//! Why a request is refused, in etcd's words: clients compare them letter by letter.

use clearlane_mvcc::Error as StoreError;

use crate::auth_store;
use crate::error::Error;

/// Why a request is refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RequestRejection {
    // The shape of the request: it is told before it is proposed.
    /// There is no key.
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    /// A put is to keep the old value, and brings one.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// A put is to keep the old lease, and brings one.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// A transaction has too many operations, or too many inside each other.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    /// A transaction puts a key twice, or puts what it deletes.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    /// There is no such order, or no such target to sort by.
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    /// A range cannot be streamed in another order than that of the keys, if the order has a
    /// direction.
    #[error("RangeStream does not support custom sort orders")]
    StreamOrder,
    /// Nor with a filter.
    #[error("RangeStream does not support revision filters")]
    StreamFilter,
    /// It does not fit into an entry of the log.
    #[error("etcdserver: request is too large")]
    RequestTooLarge,

    // What the store says, when the entry is applied.
    /// A put is to keep something of a key that is not there. Also, before it is proposed: an
    /// operation of a transaction that is none.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// There is no such lease.
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    /// There is a lease of that id.
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    /// No lease may be granted for that long.
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    /// The past that was asked for is forgotten.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// The revision is not there yet.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,

    // What an alarm forbids, and alarms themselves.
    /// A store is as large as it may become.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// Members differ.
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
    /// Users and roles are left as they are.
    #[error(transparent)]
    Auth(#[from] auth_store::AuthRejection),
    /// An alarm is to be neither listed nor raised nor taken back.
    #[error("etcdserver: unknown alarm action")]
    UnknownAlarmAction,
}

/// Why there is no answer: the client is told, or the member stops.
#[derive(Debug)]
pub(crate) enum ApplyError {
    Rejected(RequestRejection),
    Fatal(Error),
}

impl From<RequestRejection> for ApplyError {
    fn from(refused: RequestRejection) -> ApplyError {
        ApplyError::Rejected(refused)
    }
}

impl From<StoreError> for ApplyError {
    fn from(error: StoreError) -> ApplyError {
        match error {
            StoreError::Compacted => ApplyError::Rejected(RequestRejection::Compacted),
            StoreError::FutureRevision => ApplyError::Rejected(RequestRejection::FutureRevision),
            StoreError::EmptyKey => ApplyError::Rejected(RequestRejection::EmptyKey),
            error => ApplyError::Fatal(error.into()),
        }
    }
}

/// Takes the two kinds of failure apart: the outer one stops the member.
pub(crate) fn split_error<T>(
    outcome: Result<T, ApplyError>,
) -> crate::Result<Result<T, RequestRejection>> {
    match outcome {
        Ok(done) => Ok(Ok(done)),
        Err(ApplyError::Rejected(refused)) => Ok(Err(refused)),
        Err(ApplyError::Fatal(error)) => Err(error),
    }
}
