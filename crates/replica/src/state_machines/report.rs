//! This member's report to a member that starts without data.

use clearlane_proto::nested::decode_raft_request;
use clearlane_proto::peerpb::{MembersReply, MembersRequest};
use clearlane_raft::Role;
use clearlane_wal::{Entry, EntryKind};

use super::Replica;
use crate::membership::{find_member, is_published};

impl Replica {
    /// Returns the reply to a member's request. The caller must clear `leader_term` unless a quorum
    /// has confirmed this leader in that term since the caller received the request.
    pub fn report_to(&self, request: &MembersRequest) -> MembersReply {
        let members: Vec<_> = self.members.iter().cloned().collect();
        let found = find_member(&members, request.member, &request.peer_urls);
        let id = found.map_or(request.member, |member| member.id);
        let leadership = self.raft.leadership();
        let is_leader = leadership.role == Role::Leader;
        MembersReply {
            cluster_id: self.metadata.cluster_id,
            from: self.metadata.node_id,
            is_new: self.raft.has_only_first_entries(),
            is_started: found.is_some_and(is_published)
                || self.raft.acknowledged_by(id) > 0
                || self.has_unapplied_publication(id),
            is_removed: self.members.is_removed(id),
            applied: self.applied.0,
            leader_term: if is_leader { leadership.term } else { 0 },
            members,
        }
    }

    /// Returns whether the log has an entry above the applied index that publishes client URLs of
    /// member `id`.
    fn has_unapplied_publication(&self, id: u64) -> bool {
        let publishes = |entry: &Entry| {
            let is_request = entry.kind == EntryKind::Normal && !entry.data.is_empty();
            let request = is_request.then(|| decode_raft_request(entry.data.clone()).ok());
            let attributes = request.flatten().and_then(|it| it.cluster_member_attr_set);
            attributes.is_some_and(|it| {
                let urls = it.member_attributes.map(|it| it.client_urls).unwrap_or_default();
                it.member_id == id && !urls.is_empty()
            })
        };
        self.raft.entries_above(self.applied.0).iter().any(publishes)
    }
}
