//! Why a change of members is refused, in etcd's words: clients compare them.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MembershipRejection {
    /// An id is not used twice. Clients get the same message as for [`NotFound`](Self::NotFound).
    #[error("etcdserver: member not found")]
    Removed,
    #[error("etcdserver: member not found")]
    NotFound,
    /// The same addresses were added within the same second.
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
    /// The change and its context differ: no correct member proposes one.
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

    /// Parses the message of another member's refusal.
    pub fn from_message(words: &str) -> Option<MembershipRejection> {
        MembershipRejection::ALL.into_iter().find(|refused| refused.to_string() == words)
    }
}
