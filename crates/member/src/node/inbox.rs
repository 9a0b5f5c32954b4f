//! What the raft thread is asked and told: a list that gathers while it works.

use std::time::Duration;

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft_log::driver::Message;
use clearlane_raft_log::wal::group::Written;
use parking_lot::{Condvar, Mutex};

use crate::membership::Change;

/// Where an answer goes: a desk, and a place there. The question tells it from others that have
/// had the same place before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) desk: u8,
    /// Below 2^24.
    pub(super) slot: u32,
    pub(super) question: u32,
}

/// So many may wait at one desk.
pub(super) const SLOTS_MAX: u32 = 1 << 24;

impl Place {
    /// As readers are named: no two that wait have the same place.
    pub(super) fn name(self) -> u64 {
        u64::from(self.desk) << 56 | u64::from(self.slot) << 32 | u64::from(self.question)
    }

    pub(super) fn of_name(name: u64) -> Place {
        let slot = (name >> 32) as u32 & (SLOTS_MAX - 1);
        Place { desk: (name >> 56) as u8, slot, question: name as u32 }
    }
}

/// One thing for the raft thread.
#[derive(Debug)]
pub(super) enum Input {
    Propose(Box<InternalRaftRequest>, Place),
    ChangeMembers(Change, Place),
    Read(Place),
    /// Nobody waits at this place any more.
    GiveUp(Place),
    Message(Message),
    Written(Written),
    Committed,
    /// Leadership goes to this member.
    TransferLeader(u64),
    Stop,
}

/// The list.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    gathering: Mutex<Vec<Input>>,
    arrived: Condvar,
}

impl Inbox {
    pub(super) fn push(&self, inputs: impl IntoIterator<Item = Input>) {
        let mut gathering = self.gathering.lock();
        let was_empty = gathering.is_empty();
        gathering.extend(inputs);
        let is_first = was_empty && !gathering.is_empty();
        drop(gathering);
        if is_first {
            self.arrived.notify_one();
        }
    }

    /// All that has gathered; waits for it, but not longer than this.
    pub(super) fn take(&self, timeout: Duration) -> Vec<Input> {
        let mut gathering = self.gathering.lock();
        if gathering.is_empty() {
            self.arrived.wait_for(&mut gathering, timeout);
        }
        std::mem::take(&mut *gathering)
    }
}
