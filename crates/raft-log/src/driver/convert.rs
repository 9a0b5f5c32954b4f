//! Between raft's own types and ours.
//!
//! tikv's raft counts the kinds of membership changes differently from etcd: "add a learner" is 2
//! there and 3 in etcd, and etcd's 2, "update the addresses", does not exist. So a change is never
//! decoded by raft: what lies in the log is etcd's, and raft is told what it means to raft.

use bytes::Bytes;
use raft::eraftpb;

use crate::wire::{ConfChange, ConfChangeKind, ConfState, Entry, EntryKind, HardState};

impl ConfState {
    pub(crate) fn to_raft(&self) -> eraftpb::ConfState {
        let mut state = eraftpb::ConfState::default();
        state.set_voters(self.voters.clone());
        state.set_learners(self.learners.clone());
        state.set_voters_outgoing(self.voters_outgoing.clone());
        state.set_learners_next(self.learners_next.clone());
        state.set_auto_leave(self.auto_leave);
        state
    }

    /// In order: raft keeps ids in sets, whose order depends on what has been in them, and members
    /// that agree must have the same bytes.
    pub(crate) fn of_raft(state: &eraftpb::ConfState) -> ConfState {
        let in_order = |ids: &[u64]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        ConfState {
            voters: in_order(state.get_voters()),
            learners: in_order(state.get_learners()),
            voters_outgoing: in_order(state.get_voters_outgoing()),
            learners_next: in_order(state.get_learners_next()),
            auto_leave: state.get_auto_leave(),
        }
    }
}

impl HardState {
    pub(crate) fn to_raft(self) -> eraftpb::HardState {
        let mut state = eraftpb::HardState::default();
        state.set_term(self.term);
        state.set_vote(self.vote);
        state.set_commit(self.commit);
        state
    }

    pub(crate) fn of_raft(state: &eraftpb::HardState) -> HardState {
        HardState { term: state.term, vote: state.vote, commit: state.commit }
    }
}

impl EntryKind {
    pub(crate) fn to_raft(self) -> eraftpb::EntryType {
        match self {
            EntryKind::Normal => eraftpb::EntryType::EntryNormal,
            EntryKind::ConfChange => eraftpb::EntryType::EntryConfChange,
            EntryKind::ConfChangeV2 => eraftpb::EntryType::EntryConfChangeV2,
        }
    }
}

impl Entry {
    pub(crate) fn to_raft(&self) -> eraftpb::Entry {
        let mut entry = eraftpb::Entry::default();
        entry.set_entry_type(self.kind.to_raft());
        entry.set_term(self.term);
        entry.set_index(self.index);
        entry.set_data(self.data.clone());
        entry
    }

    pub(crate) fn of_raft(entry: &eraftpb::Entry) -> Entry {
        let kind = match entry.get_entry_type() {
            eraftpb::EntryType::EntryNormal => EntryKind::Normal,
            eraftpb::EntryType::EntryConfChange => EntryKind::ConfChange,
            eraftpb::EntryType::EntryConfChangeV2 => EntryKind::ConfChangeV2,
        };
        Entry { kind, term: entry.term, index: entry.index, data: entry.data.clone() }
    }
}

/// What changes mean to raft: one is made at once, several by way of a joint configuration, none at
/// all leaves it. A change of nobody is passed over.
pub(crate) fn changes_to_raft(changes: &[ConfChange]) -> eraftpb::ConfChangeV2 {
    let single = |change: &ConfChange| {
        let mut single = eraftpb::ConfChangeSingle::default();
        let kind = match change.kind {
            ConfChangeKind::AddNode => eraftpb::ConfChangeType::AddNode,
            ConfChangeKind::RemoveNode => eraftpb::ConfChangeType::RemoveNode,
            ConfChangeKind::AddLearnerNode => eraftpb::ConfChangeType::AddLearnerNode,
            ConfChangeKind::UpdateNode => return single,
        };
        single.set_change_type(kind);
        single.set_node_id(change.node_id);
        single
    };
    let mut to_raft = eraftpb::ConfChangeV2::default();
    to_raft.set_changes(changes.iter().map(single).collect());
    to_raft
}

pub(crate) fn proposal(kind: EntryKind, data: Bytes) -> eraftpb::Message {
    let entry = Entry { kind, term: 0, index: 0, data };
    let mut message = eraftpb::Message::default();
    message.set_msg_type(eraftpb::MessageType::MsgPropose);
    message.set_entries(vec![entry.to_raft()].into());
    message
}
