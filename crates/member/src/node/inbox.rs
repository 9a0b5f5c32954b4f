//! What the raft thread is asked and told: a list that gathers while it works.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft_log::driver::Message;
use clearlane_raft_log::wal::group::Written;
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::copies::Received;
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
    /// A copy of another member's store is here, whole.
    Copy(Box<Received>),
    /// A copy has arrived at a member, or has not.
    CopySent {
        to: u64,
        arrived: bool,
    },
    /// It was to go to another member, and has not left this one.
    Returned(Message),
    /// Messages to this member get lost.
    Unreachable(u64),
    /// Somebody else is to lead.
    TransferLeader(u64),
    /// The others say that this member is none any more.
    Removed,
    Written(Written),
    Committed,
    /// The disk is nearly full, or is so no more.
    Room,
    Stop,
}

/// The list.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    gathering: Mutex<Vec<Input>>,
    arrived: Condvar,
    /// Of messages that gather.
    message_bytes: AtomicU64,
    taken: Notify,
}

/// While more than this gathers, members' streams are not read.
const MESSAGE_BYTES_MAX: u64 = 64 << 20;

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

    /// Messages of other members.
    pub(super) fn push_messages(&self, messages: Vec<Message>) {
        let bytes = messages.iter().map(Message::bytes).sum();
        self.message_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.push(messages.into_iter().map(Input::Message));
    }

    /// Waits until not too much has gathered.
    pub(super) async fn has_room(&self) {
        loop {
            let taken = self.taken.notified();
            if self.message_bytes.load(Ordering::Relaxed) <= MESSAGE_BYTES_MAX {
                return;
            }
            taken.await;
        }
    }

    /// All that has gathered; waits for it, but not longer than this.
    pub(super) fn take(&self, timeout: Duration) -> Vec<Input> {
        let mut gathering = self.gathering.lock();
        if gathering.is_empty() {
            self.arrived.wait_for(&mut gathering, timeout);
        }
        let taken = std::mem::take(&mut *gathering);
        drop(gathering);
        // What was counted and not taken yet is little.
        if self.message_bytes.swap(0, Ordering::Relaxed) > MESSAGE_BYTES_MAX {
            self.taken.notify_waiters();
        }
        taken
    }
}
