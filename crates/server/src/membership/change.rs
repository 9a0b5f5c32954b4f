//! A change of one member, and its form in the log.
//!
//! | change | kind | context |
//! |---|---|---|
//! | add a voter | `AddNode` | the member, `isPromote` false |
//! | add a learner | `AddLearnerNode` | the same, `isLearner` |
//! | promote | `AddNode` | its id, `isPromote` true |
//! | update | `UpdateNode` | the member with its new addresses |
//! | remove | `RemoveNode` | none |
//!
//! A new cluster writes its first members as such changes: [`MemberChange::initial_conf_change`].

use clearlane_wal::{ConfChange, ConfChangeKind, MemberContext};

use super::member::{from_context, to_context};
use super::{Member, MembershipRejection, member_id, urls};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    Add {
        /// See [`MemberChange::add`].
        id: u64,
        peer_urls: Vec<String>,
        is_learner: bool,
    },
    Remove {
        id: u64,
    },
    Update {
        id: u64,
        peer_urls: Vec<String>,
    },
    Promote {
        id: u64,
    },
}

impl MemberChange {
    /// The id is a hash of the addresses and the time.
    pub fn add(
        peer_urls: &[String],
        is_learner: bool,
        unix_seconds: u64,
    ) -> Result<MemberChange, MembershipRejection> {
        let peer_urls = urls::sorted_peer_urls(peer_urls)?;
        let id = member_id(&peer_urls, "", Some(unix_seconds));
        Ok(MemberChange::Add { id, peer_urls, is_learner })
    }

    pub fn update(id: u64, peer_urls: &[String]) -> Result<MemberChange, MembershipRejection> {
        Ok(MemberChange::Update { id, peer_urls: urls::sorted_peer_urls(peer_urls)? })
    }

    /// The change that adds an initial member of a new cluster.
    pub fn initial_conf_change(member: &Member) -> ConfChange {
        conf_change(0, ConfChangeKind::AddNode, member.id, Some(to_context(member)))
    }

    pub fn id(&self) -> u64 {
        match self {
            MemberChange::Add { id, .. }
            | MemberChange::Remove { id }
            | MemberChange::Update { id, .. }
            | MemberChange::Promote { id } => *id,
        }
    }

    /// `request` is the id under which a request waits for the entry.
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

#[derive(Debug)]
pub(super) enum ParsedChange {
    Add(Member),
    Promote,
    Remove,
    Update(Vec<String>),
}

impl ParsedChange {
    /// `Err` if change and context contradict each other: raft and the table would read them
    /// differently.
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
                Ok(ParsedChange::Add(from_context(context)))
            }
            ConfChangeKind::AddLearnerNode if context.is_learner && !promotes => {
                Ok(ParsedChange::Add(from_context(context)))
            }
            ConfChangeKind::UpdateNode => Ok(ParsedChange::Update(context.peer_urls)),
            _ => Err(MembershipRejection::Inconsistent),
        }
    }
}
