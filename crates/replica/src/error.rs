//! Errors that stop a member, if one of its threads returns them. Errors for clients are in
//! [`RequestError`](crate::RequestError).

use std::ops::ControlFlow;

use clearlane_engine::Bucket;
use clearlane_mvcc::ReadTxn;

/// An error after which the member cannot continue, mostly because its data may no longer match the
/// writes that it acknowledged. The owner stops the process and reports the error. But if the error
/// occurs while a client's request is being served outside of the raft half and the apply half, for
/// example in a read, only that request fails, with
/// [`RequestError::Failed`](crate::RequestError::Failed). So `Signing` and `NoRandomNumbers` never
/// stop a member.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Engine(#[from] clearlane_engine::Error),
    #[error(transparent)]
    Store(#[from] clearlane_mvcc::Error),
    #[error(transparent)]
    Auth(#[from] clearlane_auth::Error),
    #[error(transparent)]
    Lease(#[from] clearlane_lease::Error),
    #[error(transparent)]
    Wal(#[from] clearlane_wal::Error),
    #[error(transparent)]
    Raft(#[from] clearlane_raft::Error),
    #[error("entry {index} of the log has an unknown request type")]
    UnknownRequest { index: u64 },
    #[error(
        "this member has been removed from the cluster: it stops, and its data directory must not be \
         used again"
    )]
    Removed,
    #[error("the system's random number generator failed")]
    NoRandomNumbers,
    #[error("a token cannot be signed: {0}")]
    Signing(String),
    #[error("a thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
    #[error("thread {thread} has panicked")]
    Panicked { thread: String },
    /// The log has lost entries that the store has applied.
    #[error(
        "the log ends at entry {last}, and the store has applied up to entry {applied}: entries \
         {first_missing} to {applied} are missing from the log"
    )]
    LogBehindStore { last: u64, first_missing: u64, applied: u64 },
    #[error("{what} is damaged: {why}")]
    Damaged { what: &'static str, why: String },
}

pub type Result<T> = std::result::Result<T, Error>;

/// Visits all records of a bucket. Stops at the first error and returns it.
pub(crate) fn try_scan(
    state: &dyn ReadTxn,
    bucket: Bucket,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let mut outcome = Ok(());
    state.scan(bucket, &mut |key, value| {
        outcome = visit(key, &value);
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    outcome
}

impl Error {
    /// Returns whether the error reports that the log has lost entries. A member with such a log
    /// starts only with [`accept_loss`](clearlane_wal::Options::accept_loss).
    pub fn is_log_loss(&self) -> bool {
        match self {
            Error::Wal(error) => error.is_loss(),
            Error::LogBehindStore { .. } => true,
            _ => false,
        }
    }

    pub fn damaged(what: &'static str, why: impl Into<String>) -> Error {
        Error::Damaged { what, why: why.into() }
    }
}
