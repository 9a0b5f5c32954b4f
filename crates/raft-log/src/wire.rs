//! Placeholder until the wire module is merged.

use bytes::Bytes;

/// What an entry is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntryKind {
    /// A request.
    #[default]
    Normal,
    /// A change of one member.
    ConfChange,
    /// A change of several members.
    ConfChangeV2,
}

/// An entry of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// What it is for.
    pub kind: EntryKind,
    /// In which term it was made.
    pub term: u64,
    /// Its place.
    pub index: u64,
    /// What it says.
    pub data: Bytes,
}

/// What a member must not forget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The newest term it has seen.
    pub term: u64,
    /// For whom it has voted in that.
    pub vote: u64,
    /// Up to where it knows entries to be committed.
    pub commit: u64,
}

/// Who is a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    /// Those who vote.
    pub voters: Vec<u64>,
    /// Those who listen.
    pub learners: Vec<u64>,
    /// The old voters, while a joint change is under way.
    pub voters_outgoing: Vec<u64>,
    /// Those who become learners when it ends.
    pub learners_next: Vec<u64>,
    /// Whether it ends by itself.
    pub auto_leave: bool,
}

/// What a change of one member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfChangeKind {
    /// Adds a voter, or promotes a learner.
    AddNode,
    /// Removes a member.
    RemoveNode,
    /// Changes a member's addresses.
    UpdateNode,
    /// Adds a learner.
    AddLearnerNode,
}

/// A change of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfChange {
    /// Which request.
    pub id: u64,
    /// What it does.
    pub kind: ConfChangeKind,
    /// To whom.
    pub node_id: u64,
    /// The member, as JSON.
    pub context: Bytes,
}
