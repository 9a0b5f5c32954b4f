//! What the raft thread is asked and told: a list that gathers while it works.
//!
//! Who puts the first thing into an empty list wakes the thread, if it sleeps, and nobody else does. *How* it is
//! woken is its own business: it [sleeps](Arrivals) in a future, on whatever it has to run futures with.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft_log::driver::Message;
use clearlane_raft_log::wal::group::Written;
use parking_lot::Mutex;
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
    gathering: Mutex<Gathering>,
    /// Of messages that gather.
    message_bytes: AtomicU64,
    taken: Notify,
}

#[derive(Debug, Default)]
struct Gathering {
    inputs: Vec<Input>,
    /// The raft thread's, while it sleeps.
    sleeper: Option<Waker>,
}

/// While more than this gathers, members' streams are not read.
const MESSAGE_BYTES_MAX: u64 = 64 << 20;

impl Inbox {
    pub(super) fn push(&self, inputs: impl IntoIterator<Item = Input>) {
        let mut gathering = self.gathering.lock();
        gathering.inputs.extend(inputs);
        let is_empty = gathering.inputs.is_empty();
        let sleeper = if is_empty { None } else { gathering.sleeper.take() };
        drop(gathering);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
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

    /// All that has gathered. Nobody is to be woken for a while.
    pub(super) fn take(&self) -> Vec<Input> {
        let mut gathering = self.gathering.lock();
        gathering.sleeper = None;
        let taken = std::mem::take(&mut gathering.inputs);
        drop(gathering);
        // What was counted and not taken yet is little.
        if self.message_bytes.swap(0, Ordering::Relaxed) > MESSAGE_BYTES_MAX {
            self.taken.notify_waiters();
        }
        taken
    }

    /// For the thread that takes.
    pub(super) fn arrivals(&self) -> Arrivals<'_> {
        Arrivals(self)
    }
}

/// What the raft thread waits for.
#[derive(Clone, Copy, Debug)]
pub struct Arrivals<'i>(&'i Inbox);

impl Arrivals<'_> {
    /// Whether there is something already.
    pub fn are_there(self) -> bool {
        !self.0.gathering.lock().inputs.is_empty()
    }

    /// Waits until there is something. One at a time may.
    pub async fn any(self) {
        poll_fn(|context| {
            let mut gathering = self.0.gathering.lock();
            if !gathering.inputs.is_empty() {
                return Poll::Ready(());
            }
            gathering.sleeper = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The same for a thread that has nothing else to do, but not longer than this.
    pub fn sleep(self, timeout: Duration) {
        let end = Instant::now() + timeout;
        let waker = Waker::from(Arc::new(Sleeper(thread::current())));
        let mut any = pin!(self.any());
        while any.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }
}

/// A thread that is parked.
struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
