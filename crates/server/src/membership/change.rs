//! What may happen to a member, as the log says it.
//!
//! | change | kind | context |
//! |---|---|---|
//! | add a voter | `AddNode` | the member, `isPromote` false |
//! | add a learner | `AddLearnerNode` | the same, `isLearner` |
//! | promote | `AddNode` | its id, `isPromote` true |
//! | update | `UpdateNode` | the member with its new addresses |
//! | remove | `RemoveNode` | none |
//!
//! A cluster that begins writes its first members as such changes, too:
//! [`MemberChange::initial_conf_change`].

use clearlane_wal::{ConfChange, ConfChangeKind, MemberContext};

use super::ids::member_id;
use super::member::Member;
use super::rejection::MembershipRejection;
use super::urls;

/// A change of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// A new member comes.
    Add {
        /// Its number; see [`MemberChange::add`].
        id: u64,
        /// Where its peers reach it.
        peer_urls: Vec<String>,
        /// Whether it only listens.
        is_learner: bool,
    },
    /// A member leaves, for good.
    Remove {
        /// Its number.
        id: u64,
    },
    /// A member can be reached elsewhere.
    Update {
        /// Its number.
        id: u64,
        /// Where its peers reach it from now on.
        peer_urls: Vec<String>,
    },
    /// A learner becomes a voter.
    Promote {
        /// Its number.
        id: u64,
    },
}

impl MemberChange {
    /// A new member, under the number that its addresses and the time give it.
    pub fn add(
        peer_urls: &[String],
        is_learner: bool,
        unix_seconds: u64,
    ) -> Result<MemberChange, MembershipRejection> {
        let peer_urls = urls::sorted_peer_urls(peer_urls)?;
        let id = member_id(&peer_urls, "", Some(unix_seconds));
        Ok(MemberChange::Add { id, peer_urls, is_learner })
    }

    /// Other addresses for a member.
    pub fn update(id: u64, peer_urls: &[String]) -> Result<MemberChange, MembershipRejection> {
        Ok(MemberChange::Update { id, peer_urls: urls::sorted_peer_urls(peer_urls)? })
    }

    /// How the log of a new cluster speaks of one of its first members.
    pub fn initial_conf_change(member: &Member) -> ConfChange {
        conf_change(0, ConfChangeKind::AddNode, member.id, Some(member.to_context(None)))
    }

    /// The member that it is about.
    pub fn id(&self) -> u64 {
        match self {
            MemberChange::Add { id, .. }
            | MemberChange::Remove { id }
            | MemberChange::Update { id, .. }
            | MemberChange::Promote { id } => *id,
        }
    }

    /// As the log says it. `request` is the number under which a request waits for it.
    pub fn to_conf_change(&self, request: u64) -> ConfChange {
        let id = self.id();
        let context = |peer_urls: &[String], is_learner, is_promote| {
            let peer_urls = peer_urls.to_vec();
            Some(MemberContext { id, peer_urls, is_learner, is_promote, ..Default::default() })
        };
        let (kind, context) = match self {
            MemberChange::Add { peer_urls, is_learner: false, .. } => {
                (ConfChangeKind::AddNode, context(peer_urls, false, Some(false)))
            }
            MemberChange::Add { peer_urls, is_learner: true, .. } => {
                (ConfChangeKind::AddLearnerNode, context(peer_urls, true, Some(false)))
            }
            MemberChange::Promote { .. } => {
                (ConfChangeKind::AddNode, context(&[], false, Some(true)))
            }
            MemberChange::Update { peer_urls, .. } => {
                (ConfChangeKind::UpdateNode, context(peer_urls, false, None))
            }
            MemberChange::Remove { .. } => (ConfChangeKind::RemoveNode, None),
        };
        conf_change(request, kind, id, context)
    }
}

fn conf_change(
    id: u64,
    kind: ConfChangeKind,
    node_id: u64,
    context: Option<MemberContext>,
) -> ConfChange {
    let context = context.map(|context| context.encode().into()).unwrap_or_default();
    ConfChange { id, kind, node_id, context }
}

/// What a change means to the table, if it makes sense at all.
#[derive(Debug)]
pub(super) enum ParsedChange {
    Add(Member),
    Promote,
    Remove,
    Update(Vec<String>),
}

impl ParsedChange {
    /// A change whose parts contradict each other has none: raft and the table would take different
    /// things from it.
    pub(super) fn parse(change: &ConfChange) -> Result<ParsedChange, MembershipRejection> {
        if change.node_id == 0 {
            return Err(MembershipRejection::Inconsistent);
        }
        if change.kind == ConfChangeKind::RemoveNode {
            return Ok(ParsedChange::Remove);
        }
        let context = MemberContext::decode(&change.context)
            .map_err(|_| MembershipRejection::Inconsistent)?;
        if context.id != change.node_id {
            return Err(MembershipRejection::Inconsistent);
        }
        let promotes = context.is_promote == Some(true);
        match change.kind {
            ConfChangeKind::AddNode if promotes => Ok(ParsedChange::Promote),
            ConfChangeKind::AddNode if !context.is_learner => {
                Ok(ParsedChange::Add(Member::from_context(context)))
            }
            ConfChangeKind::AddLearnerNode if context.is_learner && !promotes => {
                Ok(ParsedChange::Add(Member::from_context(context)))
            }
            ConfChangeKind::UpdateNode => Ok(ParsedChange::Update(context.peer_urls)),
            _ => Err(MembershipRejection::Inconsistent),
        }
    }
}
