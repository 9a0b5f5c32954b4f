//! Errors of requests, with etcd's messages.

use clearlane_raft as raft;
use clearlane_raft::read_index;

use crate::apply;
use crate::downgrade;
use crate::error::Error;
use crate::membership;
use crate::replica::MemberChangeError;

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
    /// The version in the request's metadata is not UTF-8.
    #[error("etcdserver: invalid client api version")]
    InvalidApiVersion,
    /// Raft's queue is full, or leadership is being transferred.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    #[error("etcdserver: server stopped")]
    Stopped,
    /// The request may still be applied.
    #[error("etcdserver: request timed out")]
    TimedOut,
    /// The leader has changed: the request may still be applied.
    #[error("etcdserver: request timed out, possibly due to previous leader failure")]
    LeaderLost,
    /// Connections to the leader or to a quorum were missing: the request may still be applied.
    #[error("etcdserver: request timed out, possibly due to connection lost")]
    ConnectionLost,
    #[error("etcdserver: unhealthy cluster")]
    Unhealthy,
    /// There was no leader for as long as the request could wait, or the client's deadline passed.
    #[error("context deadline exceeded")]
    DeadlineExceeded,
    #[error("{0}")]
    Failed(#[from] Error),
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
