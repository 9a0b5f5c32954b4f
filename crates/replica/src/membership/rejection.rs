//! Reasons for rejecting a change of members, in etcd's words, because clients compare them. Only
//! [`MembershipRejection::Inconsistent`] has a message of our own.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MembershipRejection {
    /// The id was removed, and ids are not reused. Clients get the same message as for
    /// [`NotFound`](Self::NotFound).
    #[error("etcdserver: member not found")]
    Removed,
    #[error("etcdserver: member not found")]
    NotFound,
    /// The cluster has a member with this id. For example, the same addresses were added twice
    /// within one second.
    #[error("etcdserver: member ID already exist")]
    Exists,
    #[error("etcdserver: Peer URLs already exists")]
    PeerUrlExists,
    #[error("etcdserver: can only promote a learner member")]
    NotLearner,
    #[error("etcdserver: can only promote a learner member which is in sync with leader")]
    LearnerNotReady,
    #[error("etcdserver: too many learner members in cluster")]
    TooManyLearners,
    #[error("etcdserver: re-configuration failed due to not enough started members")]
    NotEnoughStarted,
    #[error("etcdserver: given member URLs are invalid")]
    BadUrls,
    /// The context of the change cannot be decoded or contradicts the change. Also returned if the
    /// member's id is 0. No correct member proposes such a change.
    #[error("etcdserver: the change of members contradicts itself")]
    Inconsistent,
}

impl MembershipRejection {
    const ALL: [MembershipRejection; 10] = [
        MembershipRejection::NotFound,
        MembershipRejection::Removed,
        MembershipRejection::Exists,
        MembershipRejection::PeerUrlExists,
        MembershipRejection::NotLearner,
        MembershipRejection::LearnerNotReady,
        MembershipRejection::TooManyLearners,
        MembershipRejection::NotEnoughStarted,
        MembershipRejection::BadUrls,
        MembershipRejection::Inconsistent,
    ];

    /// Parses the message of a rejection by another member. The message of
    /// [`Removed`](Self::Removed) gives [`NotFound`](Self::NotFound), which has the same message.
    /// Returns `None` for any other text.
    pub fn from_message(words: &str) -> Option<MembershipRejection> {
        MembershipRejection::ALL.into_iter().find(|refused| refused.to_string() == words)
    }
}
