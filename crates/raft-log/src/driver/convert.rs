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

    pub(crate) fn of_raft(state: &eraftpb::ConfState) -> ConfState {
        ConfState {
            voters: state.get_voters().to_vec(),
            learners: state.get_learners().to_vec(),
            voters_outgoing: state.get_voters_outgoing().to_vec(),
            learners_next: state.get_learners_next().to_vec(),
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

impl Entry {
    pub(crate) fn to_raft(&self) -> eraftpb::Entry {
        let mut entry = eraftpb::Entry::default();
        entry.set_entry_type(match self.kind {
            EntryKind::Normal => eraftpb::EntryType::EntryNormal,
            EntryKind::ConfChange => eraftpb::EntryType::EntryConfChange,
            EntryKind::ConfChangeV2 => eraftpb::EntryType::EntryConfChangeV2,
        });
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

/// What a change means to raft. None at all is a change of nobody, which raft passes over: it must
/// hear of every change that was committed, also of those that change nothing for it.
pub(crate) fn change_to_raft(change: Option<&ConfChange>) -> eraftpb::ConfChange {
    let mut to_raft = eraftpb::ConfChange::default();
    let Some(change) = change else { return to_raft };
    let kind = match change.kind {
        ConfChangeKind::AddNode => eraftpb::ConfChangeType::AddNode,
        ConfChangeKind::RemoveNode => eraftpb::ConfChangeType::RemoveNode,
        ConfChangeKind::AddLearnerNode => eraftpb::ConfChangeType::AddLearnerNode,
        ConfChangeKind::UpdateNode => return to_raft,
    };
    to_raft.set_change_type(kind);
    to_raft.set_node_id(change.node_id);
    to_raft
}

pub(crate) fn proposal(kind: EntryKind, data: Bytes) -> eraftpb::Message {
    let entry = Entry { kind, term: 0, index: 0, data };
    let mut message = eraftpb::Message::default();
    message.set_msg_type(eraftpb::MessageType::MsgPropose);
    message.set_entries(vec![entry.to_raft()].into());
    message
}
