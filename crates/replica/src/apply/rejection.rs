//! Why a request is refused, in etcd's words: clients compare them letter by letter.

use clearlane_auth::{AuthRejection, ChangeError};
use clearlane_mvcc::Error as StoreError;

use crate::error::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RequestRejection {
    // Found by `check`, before the request is proposed.
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    /// `ignore_value` with a value.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// `ignore_lease` with a lease.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// Also: transactions nested too deeply.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    /// A key is put twice, or put and deleted.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    /// A sort order with a direction, other than ascending by key.
    #[error("RangeStream does not support custom sort orders")]
    StreamOrder,
    #[error("RangeStream does not support revision filters")]
    StreamFilter,
    /// Longer than `--max-request-bytes`.
    #[error("etcdserver: request is too large")]
    RequestTooLarge,

    // Found in the store, when the entry is applied.
    /// `ignore_value` or `ignore_lease` for a missing key. Also, before the request is proposed: an
    /// empty operation of a transaction.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,

    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
    #[error(transparent)]
    Auth(AuthRejection),
    #[error("etcdserver: unknown alarm action")]
    UnknownAlarmAction,
    /// Found by `check`: the name is a key of the store's file. etcd ends when it writes it.
    #[error("etcdserver: the name of a user or role has {0} bytes: at most 32768 are allowed")]
    NameTooLong(usize),
}

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(transparent)]
    Rejected(#[from] RequestRejection),
    #[error(transparent)]
    Fatal(#[from] Error),
}

impl From<AuthRejection> for ApplyError {
    fn from(refused: AuthRejection) -> ApplyError {
        ApplyError::Rejected(refused.into())
    }
}

impl From<ChangeError> for ApplyError {
    fn from(error: ChangeError) -> ApplyError {
        match error {
            ChangeError::Rejected(refused) => refused.into(),
            ChangeError::Fatal(error) => ApplyError::Fatal(error.into()),
        }
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

/// The outer error stops the member, the inner one goes to the client.
pub(crate) fn split_error<T>(
    outcome: Result<T, ApplyError>,
) -> crate::Result<Result<T, RequestRejection>> {
    match outcome {
        Ok(done) => Ok(Ok(done)),
        Err(ApplyError::Rejected(refused)) => Ok(Err(refused)),
        Err(ApplyError::Fatal(error)) => Err(error),
    }
}
