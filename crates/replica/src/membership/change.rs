//! A change of one member, and its form in the log.
//!
//! | change | kind | context |
//! |---|---|---|
//! | add a voter | `AddNode` | the member, `isPromote` false |
//! | add a learner | `AddLearnerNode` | the member, `isPromote` false, `isLearner` true |
//! | promote | `AddNode` | the member's id, `isPromote` true |
//! | update | `UpdateNode` | the member's id and its new peer URLs |
//! | remove | `RemoveNode` | none |
//!
//! A new cluster writes its first members as such changes, without `isPromote`:
//! [`MemberChange::initial_conf_change`].

use bytes::Bytes;
use clearlane_wal::{ConfChange, ConfChangeKind, MemberContext};

use super::member::{from_context, to_context};
use super::{Member, MembershipRejection, member_id, urls};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// Adds a member. Only the first members of a cluster have a name here.
    Add(Member),
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
    /// Returns the change that adds a member. The member's id is a hash of the addresses and the
    /// time.
    pub fn add(
        peer_urls: &[String],
        is_learner: bool,
        unix_seconds: u64,
    ) -> Result<MemberChange, MembershipRejection> {
        let peer_urls = urls::sorted_peer_urls(peer_urls)?;
        let id = member_id(&peer_urls, "", Some(unix_seconds));
        Ok(MemberChange::Add(Member { id, peer_urls, is_learner, ..Member::default() }))
    }

    pub fn update(id: u64, peer_urls: &[String]) -> Result<MemberChange, MembershipRejection> {
        Ok(MemberChange::Update { id, peer_urls: urls::sorted_peer_urls(peer_urls)? })
    }

    /// Returns the change that adds an initial member of a new cluster.
    pub fn initial_conf_change(member: &Member) -> ConfChange {
        conf_change(0, ConfChangeKind::AddNode, to_context(member))
    }

    pub fn id(&self) -> u64 {
        match self {
            MemberChange::Add(member) => member.id,
            MemberChange::Remove { id }
            | MemberChange::Update { id, .. }
            | MemberChange::Promote { id } => *id,
        }
    }

    /// Encodes the change. `request` is the id under which a request waits for the entry.
    pub fn to_conf_change(&self, request: u64) -> ConfChange {
        let id = self.id();
        let (kind, context) = match self.clone() {
            MemberChange::Add(member) => {
                let kind = match member.is_learner {
                    true => ConfChangeKind::AddLearnerNode,
                    false => ConfChangeKind::AddNode,
                };
                (kind, MemberContext { is_promote: Some(false), ..to_context(&member) })
            }
            MemberChange::Promote { .. } => {
                let context = MemberContext { id, is_promote: Some(true), ..Default::default() };
                (ConfChangeKind::AddNode, context)
            }
            MemberChange::Update { peer_urls, .. } => {
                let context = MemberContext { id, peer_urls, ..Default::default() };
                (ConfChangeKind::UpdateNode, context)
            }
            MemberChange::Remove { .. } => {
                let (kind, context) = (ConfChangeKind::RemoveNode, Bytes::new());
                return ConfChange { id: request, kind, node_id: id, context };
            }
        };
        conf_change(request, kind, context)
    }

    /// Decodes a change. Fails if the context cannot be decoded or contradicts the kind or the id
    /// of the change: raft uses the kind and the id, and the member table uses the context.
    pub fn parse(change: &ConfChange) -> Result<MemberChange, MembershipRejection> {
        let id = change.node_id;
        if change.kind == ConfChangeKind::RemoveNode {
            return Ok(MemberChange::Remove { id });
        }
        let context = MemberContext::decode(&change.context)
            .map_err(|_| MembershipRejection::Inconsistent)?;
        if context.id != id {
            return Err(MembershipRejection::Inconsistent);
        }
        match (change.kind, context.is_promote == Some(true), context.is_learner) {
            (ConfChangeKind::AddNode, true, _) => Ok(MemberChange::Promote { id }),
            (ConfChangeKind::AddNode, false, false)
            | (ConfChangeKind::AddLearnerNode, false, true) => {
                Ok(MemberChange::Add(from_context(context)))
            }
            (ConfChangeKind::UpdateNode, ..) => {
                Ok(MemberChange::Update { id, peer_urls: context.peer_urls })
            }
            _ => Err(MembershipRejection::Inconsistent),
        }
    }
}

fn conf_change(id: u64, kind: ConfChangeKind, context: MemberContext) -> ConfChange {
    ConfChange { id, kind, node_id: context.id, context: context.encode().into() }
}
