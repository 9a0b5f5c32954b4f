//! Members of the cluster, and changes of them.
//!
//! In etcd's messages 2 updates a member and 3 adds a learner. tikv's raft adds a learner with 2,
//! and reads 3 as 0. These types are etcd's, and are not used outside of the log; raft gets a
//! translation.

use bytes::Bytes;

use super::fields::{DecodeError, Fields, Value, put_bytes, put_number};

/// The members at one point of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    /// During joint consensus: the voters of the old configuration.
    pub voters_outgoing: Vec<u64>,
    /// During joint consensus: voters of the old configuration that become learners.
    pub learners_next: Vec<u64>,
    /// Whether raft leaves the joint configuration by itself.
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
    /// The members after a change of one member, sorted: what raft must also come to, which its
    /// driver checks. `None` if no voter would be left, or during joint consensus.
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
    /// Changes a member's addresses. Raft need not know.
    UpdateNode,
    AddLearnerNode,
}

/// One change of one member: the data of an entry of kind `ConfChange`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfChange {
    /// The id of the request that waits for the change; 0, and not written, if there is none.
    pub id: u64,
    pub kind: ConfChangeKind,
    pub node_id: u64,
    /// A [`MemberContext`](super::MemberContext) in JSON. Empty, and not written, for removals.
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
                (2, Value::Number(_)) => return Err(fields.error("a kind that does not exist")),
                (3, Value::Number(id)) => change.node_id = id,
                (4, Value::Bytes(context)) => change.context = Bytes::copy_from_slice(context),
                _ => return Err(fields.unknown_field()),
            }
        }
        Ok(change)
    }
}
