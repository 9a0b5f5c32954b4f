//! The members of the cluster, and changes to the members.
//!
//! In etcd's messages, a change of kind 2 updates a member, and kind 3 adds a learner. In tikv's
//! raft, kind 2 adds a learner, and kind 3 is read as kind 0. The types here are etcd's. The crate
//! `raft` translates them for tikv's library, and the other crates use them unchanged.

use bytes::Bytes;

use super::fields::{DecodeError, Fields, Value, put_bytes, put_number};

/// The members at one index of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    /// The voters of the old configuration, during joint consensus.
    pub voters_outgoing: Vec<u64>,
    /// The voters of the old configuration that become learners, during joint consensus.
    pub learners_next: Vec<u64>,
    /// If true, raft leaves the joint configuration by itself.
    pub auto_leave: bool,
}

impl ConfState {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let lists = [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next];
        for (ids, field) in lists.into_iter().zip(1..) {
            for id in ids {
                put_number(&mut out, field, *id);
            }
        }
        put_number(&mut out, 5, u64::from(self.auto_leave));
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<ConfState, DecodeError> {
        let mut fields = Fields::new("configuration", bytes);
        let mut state = ConfState::default();
        while let Some((field, value)) = fields.next()? {
            match (field, value) {
                (1, value) => fields.ids(value, &mut state.voters)?,
                (2, value) => fields.ids(value, &mut state.learners)?,
                (3, value) => fields.ids(value, &mut state.voters_outgoing)?,
                (4, value) => fields.ids(value, &mut state.learners_next)?,
                (5, Value::Number(leave)) => state.auto_leave = fields.bool(leave)?,
                _ => return Err(fields.unknown_field()),
            }
        }
        Ok(state)
    }
}

impl ConfState {
    /// Returns the members after a change of one member, sorted. Raft must get the same result: the
    /// crate `replica` compares the two results. Returns `None` if no voter would remain, or during
    /// joint consensus.
    pub fn after_change(&self, change: &ConfChange) -> Option<ConfState> {
        let mut after = self.clone();
        let id = change.node_id;
        if change.kind != ConfChangeKind::UpdateNode {
            after.voters.retain(|voter| *voter != id);
            after.learners.retain(|learner| *learner != id);
        }
        match change.kind {
            ConfChangeKind::AddNode => after.voters.push(id),
            ConfChangeKind::AddLearnerNode => after.learners.push(id),
            ConfChangeKind::RemoveNode | ConfChangeKind::UpdateNode => {}
        }
        after.voters.sort_unstable();
        after.learners.sort_unstable();
        (!after.voters.is_empty() && self.voters_outgoing.is_empty()).then_some(after)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConfChangeKind {
    /// Adds a voter, or promotes a learner.
    #[default]
    AddNode,
    RemoveNode,
    /// Changes a member's addresses. Raft need not know of this change.
    UpdateNode,
    AddLearnerNode,
}

/// One change of one member. It is the data of an entry of kind `ConfChange`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfChange {
    /// The id of the request that waits for the change. If no request waits, the id is 0 and is not
    /// written.
    pub id: u64,
    pub kind: ConfChangeKind,
    pub node_id: u64,
    /// A [`MemberContext`](super::MemberContext) in JSON. For removals it is empty and is not
    /// written.
    pub context: Bytes,
}

impl ConfChange {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.context.len() + 36);
        if self.id != 0 {
            put_number(&mut out, 1, self.id);
        }
        put_number(&mut out, 2, self.kind as u64);
        put_number(&mut out, 3, self.node_id);
        if !self.context.is_empty() {
            put_bytes(&mut out, 4, &self.context);
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<ConfChange, DecodeError> {
        let mut fields = Fields::new("configuration change", bytes);
        let mut change = ConfChange::default();
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Number(id)) => change.id = id,
                (2, Value::Number(0)) => change.kind = ConfChangeKind::AddNode,
                (2, Value::Number(1)) => change.kind = ConfChangeKind::RemoveNode,
                (2, Value::Number(2)) => change.kind = ConfChangeKind::UpdateNode,
                (2, Value::Number(3)) => change.kind = ConfChangeKind::AddLearnerNode,
                (2, Value::Number(_)) => return Err(fields.error("unknown kind")),
                (3, Value::Number(id)) => change.node_id = id,
                (4, Value::Bytes(context)) => change.context = Bytes::copy_from_slice(context),
                _ => return Err(fields.unknown_field()),
            }
        }
        Ok(change)
    }
}
