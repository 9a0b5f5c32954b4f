//! Reasons for rejecting a request, in etcd's words, because clients compare them letter by letter.
//! Two messages are our own, because etcd exits instead: [`RequestRejection::UnknownAlarmAction`]
//! and [`RequestRejection::NameTooLong`].

use clearlane_auth::{AuthRejection, ChangeError};
use clearlane_mvcc::Error as StoreError;

use crate::error::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RequestRejection {
    // The functions in `check` return the following reasons, before a request is proposed or a
    // range is streamed.
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    /// The request has `ignore_value` and a value.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// The request has `ignore_lease` and a lease.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// Also returned if transactions are nested too deeply.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    /// A key is put twice, or put and deleted.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    /// The request has a sort direction, and the order is not ascending by key.
    #[error("RangeStream does not support custom sort orders")]
    StreamOrder,
    #[error("RangeStream does not support revision filters")]
    StreamFilter,
    /// The entry is longer than `--max-request-bytes`.
    #[error("etcdserver: request is too large")]
    RequestTooLarge,

    // The following reasons are found when the entry is applied or the keys are read. All except
    // `LeaseTtlTooLarge` depend on the state of the member.
    /// The request has `ignore_value` or `ignore_lease`, and the key is missing. Also returned
    /// before a request is proposed, if a transaction has an empty operation.
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
    /// The name of a user or role is too long for a key in the store's file. `check` finds this
    /// before the request is proposed. etcd exits when it writes such a name.
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

/// Separates errors: the outer error stops the member, and the inner error goes to the client.
pub(crate) fn split_error<T>(
    outcome: Result<T, ApplyError>,
) -> crate::Result<Result<T, RequestRejection>> {
    match outcome {
        Ok(done) => Ok(Ok(done)),
        Err(ApplyError::Rejected(refused)) => Ok(Err(refused)),
        Err(ApplyError::Fatal(error)) => Err(error),
    }
}
