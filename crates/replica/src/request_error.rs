//! Errors of requests, with etcd's messages.

use clearlane_auth::AuthRejection;
use clearlane_raft as raft;
use clearlane_raft::read_index;

use crate::apply;
use crate::downgrade;
use crate::error::Error;
use crate::membership;
use crate::state_machines::MemberChangeError;

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Rejected(#[from] apply::RequestRejection),
    #[error(transparent)]
    Membership(#[from] membership::MembershipRejection),
    #[error(transparent)]
    Downgrade(#[from] downgrade::DowngradeRejection),
    #[error(transparent)]
    ReadIndex(#[from] read_index::ReadIndexError),
    #[error("etcdserver: no leader")]
    NoLeader,
    #[error("etcdserver: not leader")]
    NotLeader,
    #[error("etcdserver: bad leader transferee")]
    BadTransferee,
    #[error("etcdserver: rpc not supported for learner")]
    NotSupportedForLearner,
    /// The version in the request's metadata has a character that is not visible ASCII. (etcd
    /// accepts any UTF-8.)
    #[error("etcdserver: invalid client api version")]
    InvalidApiVersion,
    /// Raft's queue or a queue of this member is full, too many committed entries wait to be
    /// applied, or leadership is being transferred. Also returned if too many passwords wait to be
    /// checked.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    #[error("etcdserver: server stopped")]
    Stopped,
    /// The time-out has passed. The request may still be applied.
    #[error("etcdserver: request timed out")]
    TimedOut,
    /// The leader has changed. The request may still be applied.
    #[error("etcdserver: request timed out, possibly due to previous leader failure")]
    LeaderLost,
    /// Connections to the leader or to a quorum were missing. The request may still be applied.
    #[error("etcdserver: request timed out, possibly due to connection lost")]
    ConnectionLost,
    #[error("etcdserver: unhealthy cluster")]
    Unhealthy,
    /// No leader was known while the request waited, so it was not proposed. Or the client's
    /// deadline has passed; then the request may still be applied.
    #[error("context deadline exceeded")]
    DeadlineExceeded,
    #[error("{0}")]
    Failed(#[from] Error),
}

impl From<AuthRejection> for RequestError {
    fn from(refused: AuthRejection) -> RequestError {
        RequestError::Rejected(refused.into())
    }
}

impl From<apply::ApplyError> for RequestError {
    fn from(error: apply::ApplyError) -> RequestError {
        match error {
            apply::ApplyError::Rejected(refused) => refused.into(),
            apply::ApplyError::Fatal(error) => error.into(),
        }
    }
}

impl From<raft::Error> for RequestError {
    fn from(error: raft::Error) -> RequestError {
        match error {
            raft::Error::NoLeader => RequestError::NoLeader,
            raft::Error::QueueFull | raft::Error::Transferring => RequestError::TooManyRequests,
            error => RequestError::Failed(error.into()),
        }
    }
}

impl From<MemberChangeError> for RequestError {
    fn from(error: MemberChangeError) -> RequestError {
        match error {
            MemberChangeError::Rejected(refused) => refused.into(),
            MemberChangeError::Raft(error) => error.into(),
            MemberChangeError::NotLeader => RequestError::NotLeader,
        }
    }
}
