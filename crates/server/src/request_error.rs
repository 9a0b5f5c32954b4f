//! Why a client gets no answer, whatever it asked for. The words are etcd's.

use clearlane_raft as raft;
use clearlane_raft::read_index;

use crate::apply;
use crate::downgrade;
use crate::error::Error;
use crate::membership;
use crate::replica::MemberChangeError;

/// Why a client gets no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The request is wrong, or does not fit what the store has.
    #[error(transparent)]
    Rejected(#[from] apply::RequestRejection),
    /// The members cannot be changed like this.
    #[error(transparent)]
    Membership(#[from] membership::MembershipRejection),
    /// The cluster cannot go back to this version.
    #[error(transparent)]
    Downgrade(#[from] downgrade::DowngradeRejection),
    /// The read could not be made fresh.
    #[error(transparent)]
    ReadIndex(#[from] read_index::ReadIndexError),
    /// There is no leader.
    #[error("etcdserver: no leader")]
    NoLeader,
    /// Only the leader can do this, and it is another member.
    #[error("etcdserver: not leader")]
    NotLeader,
    /// Leadership cannot go to this member.
    #[error("etcdserver: bad leader transferee")]
    BadTransferee,
    /// A learner does not answer this.
    #[error("etcdserver: rpc not supported for learner")]
    NotSupportedForLearner,
    /// The client names a version of the API that is no text.
    #[error("etcdserver: invalid client api version")]
    InvalidApiVersion,
    /// So much is on its way that no more is taken.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    /// This member stops.
    #[error("etcdserver: server stopped")]
    Stopped,
    /// No answer came in time: it may be applied, or not.
    #[error("etcdserver: request timed out")]
    TimedOut,
    /// The leader has changed, and no answer came: it may be applied, or not.
    #[error("etcdserver: request timed out, possibly due to previous leader failure")]
    LeaderLost,
    /// For some of the time there was no connection to the leader, or to a quorum, and no answer
    /// came: it may be applied, or not.
    #[error("etcdserver: request timed out, possibly due to connection lost")]
    ConnectionLost,
    /// Too few members are there to change the membership.
    #[error("etcdserver: unhealthy cluster")]
    Unhealthy,
    /// There was no leader for as long as the request could wait, or its client waits no longer.
    #[error("context deadline exceeded")]
    DeadlineExceeded,
    /// The store could not be read.
    #[error("{0}")]
    Failed(#[from] Error),
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
