//! Why a change of members is refused, in etcd's words: clients compare them.

/// Why a change of members is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MembershipRejection {
    /// It was removed, and a number is not used twice. To a client that is the same as not being
    /// there.
    #[error("etcdserver: member not found")]
    Removed,
    /// There is no such member.
    #[error("etcdserver: member not found")]
    NotFound,
    /// The number is taken: the same addresses were added within the same second.
    #[error("etcdserver: member ID already exist")]
    Exists,
    /// One of the addresses is another member's.
    #[error("etcdserver: Peer URLs already exists")]
    PeerUrlExists,
    /// Only a learner can be promoted.
    #[error("etcdserver: can only promote a learner member")]
    NotLearner,
    /// The learner is too far behind to become a voter.
    #[error("etcdserver: can only promote a learner member which is in sync with leader")]
    LearnerNotReady,
    /// There are as many learners as there may be.
    #[error("etcdserver: too many learner members in cluster")]
    TooManyLearners,
    /// Too few would be left to decide anything.
    #[error("etcdserver: re-configuration failed due to not enough started members")]
    NotEnoughStarted,
    /// The addresses are none.
    #[error("etcdserver: given member URLs are invalid")]
    BadUrls,
    /// The change and its context do not belong together. No correct member proposes such a one.
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

    /// The refusal that has these words: another member's, on its way to a client.
    pub fn from_message(words: &str) -> Option<MembershipRejection> {
        MembershipRejection::ALL.into_iter().find(|refused| refused.to_string() == words)
    }
}
