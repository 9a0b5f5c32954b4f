//! Conversion between raft's own types and ours.
//!
//! tikv's raft numbers the kinds of membership changes differently from etcd: "add a learner" is 2
//! in tikv's raft and 3 in etcd. etcd's 2, "update the addresses", does not exist in tikv's raft. A
//! leader in tikv's raft decodes each proposed change to find out whether it changes any member. If
//! the leader cannot decode a proposal, such as a change with etcd's kind 3, it silently drops the
//! proposal.
//!
//! So raft never decodes etcd's bytes. Inside raft and in messages, these bytes are wrapped in a
//! field that raft skips. In the write-ahead log, and in the entries that the owner of a
//! [`RaftNode`](crate::RaftNode) receives, they are not wrapped. When a change is applied, raft
//! receives the change in raft's own numbering.
//!
//! ```text
//!                     bytes inside raft                raft decodes
//!   one change        7a LENGTH etcd's bytes           a change of node 0, and an unknown field 15
//!   several changes   12 00 7a LENGTH etcd's bytes     a list of one empty change, and field 15
//!   leave             (nothing)                        an empty change, as raft itself proposes it
//! ```

use bytes::Bytes;
use raft::eraftpb;

use clearlane_wal::{ConfChange, ConfChangeKind, ConfState, Entry, EntryKind, HardState};

pub(crate) trait RaftForm {
    type Raft;

    fn to_raft(&self) -> Self::Raft;

    fn from_raft(raft: &Self::Raft) -> Self;
}

impl RaftForm for ConfState {
    type Raft = eraftpb::ConfState;

    fn to_raft(&self) -> eraftpb::ConfState {
        let ConfState { voters, learners, voters_outgoing, learners_next, auto_leave } =
            self.clone();
        eraftpb::ConfState {
            voters,
            learners,
            voters_outgoing,
            learners_next,
            auto_leave,
            ..Default::default()
        }
    }

    /// Sorts the ids, because raft keeps them in hash sets. Members that have the same
    /// configuration must encode it as the same bytes.
    fn from_raft(state: &eraftpb::ConfState) -> ConfState {
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

impl RaftForm for HardState {
    type Raft = eraftpb::HardState;

    fn to_raft(&self) -> eraftpb::HardState {
        let HardState { term, vote, commit } = *self;
        eraftpb::HardState { term, vote, commit, ..Default::default() }
    }

    fn from_raft(state: &eraftpb::HardState) -> HardState {
        HardState { term: state.term, vote: state.vote, commit: state.commit }
    }
}

impl RaftForm for EntryKind {
    type Raft = eraftpb::EntryType;

    fn to_raft(&self) -> eraftpb::EntryType {
        match self {
            EntryKind::Normal => eraftpb::EntryType::EntryNormal,
            EntryKind::ConfChange => eraftpb::EntryType::EntryConfChange,
            EntryKind::ConfChangeV2 => eraftpb::EntryType::EntryConfChangeV2,
        }
    }

    fn from_raft(kind: &eraftpb::EntryType) -> EntryKind {
        match kind {
            eraftpb::EntryType::EntryNormal => EntryKind::Normal,
            eraftpb::EntryType::EntryConfChange => EntryKind::ConfChange,
            eraftpb::EntryType::EntryConfChangeV2 => EntryKind::ConfChangeV2,
        }
    }
}

impl RaftForm for Entry {
    type Raft = eraftpb::Entry;

    fn to_raft(&self) -> eraftpb::Entry {
        let (entry_type, data) = (self.kind.to_raft(), wrap_data(self.kind, &self.data));
        let Entry { term, index, .. } = *self;
        eraftpb::Entry { entry_type, term, index, data, ..Default::default() }
    }

    fn from_raft(entry: &eraftpb::Entry) -> Entry {
        let kind = EntryKind::from_raft(&entry.get_entry_type());
        // Data from a peer was checked earlier, and data from the disk was wrapped by this module.
        let data =
            unwrap_data(kind.to_raft(), &entry.data).expect("all changes in raft are wrapped");
        Entry { kind, term: entry.term, index: entry.index, data }
    }
}

/// The tag of a field with number 15 that contains bytes. Raft's message for a membership change
/// has no such field.
const WRAPPING: u8 = 15 << 3 | 2;

/// The encoded field 2 of a message with several changes. The field contains one empty change.
const EMPTY_CHANGE: [u8; 2] = [2 << 3 | 2, 0];

fn wrap_data(kind: EntryKind, data: &Bytes) -> Bytes {
    if kind == EntryKind::Normal || data.is_empty() {
        return data.clone();
    }
    let some = if kind == EntryKind::ConfChangeV2 { &EMPTY_CHANGE[..] } else { &[] };
    let mut wrapped = [some, &[WRAPPING]].concat();
    let mut length = data.len();
    while length >= 0x80 {
        wrapped.push(length as u8 | 0x80);
        length >>= 7;
    }
    wrapped.push(length as u8);
    wrapped.extend_from_slice(data);
    Bytes::from(wrapped)
}

/// Returns the data of an entry without the wrapping. Returns `None` if the data of a membership
/// change does not have the form that `wrap_data` produces.
pub(crate) fn unwrap_data(kind: eraftpb::EntryType, data: &Bytes) -> Option<Bytes> {
    if kind == eraftpb::EntryType::EntryNormal || data.is_empty() {
        return Some(data.clone());
    }
    let several = kind == eraftpb::EntryType::EntryConfChangeV2;
    let some = if several { &EMPTY_CHANGE[..] } else { &[] };
    let rest = data.strip_prefix(some)?.strip_prefix(&[WRAPPING])?;
    let digits = rest.iter().take(4).position(|byte| byte & 0x80 == 0)? + 1;
    let digit = |length: usize, byte: &u8| length << 7 | usize::from(byte & 0x7f);
    let length = rest[..digits].iter().rev().fold(0, digit);
    let bare = &rest[digits..];
    (length > 0 && bare.len() == length).then(|| data.slice_ref(bare))
}

/// Converts a change to raft's numbering. Returns `None` for a change of addresses, which raft does
/// not support.
pub(crate) fn change_to_raft(change: &ConfChange) -> Option<eraftpb::ConfChange> {
    let change_type = match change.kind {
        ConfChangeKind::AddNode => eraftpb::ConfChangeType::AddNode,
        ConfChangeKind::RemoveNode => eraftpb::ConfChangeType::RemoveNode,
        ConfChangeKind::AddLearnerNode => eraftpb::ConfChangeType::AddLearnerNode,
        ConfChangeKind::UpdateNode => return None,
    };
    let node_id = change.node_id;
    Some(eraftpb::ConfChange { change_type, node_id, ..Default::default() })
}

pub(crate) fn proposal_message(from: u64, kind: EntryKind, data: Bytes) -> eraftpb::Message {
    let entries = vec![Entry { kind, term: 0, index: 0, data }.to_raft()].into();
    let msg_type = eraftpb::MessageType::MsgPropose;
    eraftpb::Message { msg_type, from, entries, ..Default::default() }
}
