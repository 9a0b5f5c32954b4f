//! A network thread's place: what its requests ask goes out together, and what comes back is handed
//! out together.
//!
//! # The idea
//!
//! Waking a thread costs more than answering a small request. Here the raft thread wakes a network
//! thread once for all its answers, and that thread wakes its own tasks, which costs next to
//! nothing. The other way it is the same: requests that are read from sockets in one turn of the
//! runtime leave their questions in a list, and behind them runs the desk's task and sends it.
//!
//! ```text
//!   one turn     read a, ask │ read b, ask │ read c, ask │ desk: send [a b c]
//!   a later one  desk: take [a b c], wake them │ a answers │ b answers │ c answers
//! ```
//!
//! The lock around a desk's list is taken by the tasks of one thread only, so nobody waits for it.
//!
//! # Time-outs
//!
//! A question that gets no answer for etcd's seven seconds is answered by the desk, and so is one
//! whose client [does not wait any longer](Desk::until). A timer for each would cost more than most
//! answers; so the desk counts half seconds, each question remembers in which one it was asked, and at
//! the end of each all are looked through.
//!
//! Most clients set a time, and for most it is so long that the answer comes first. Only a time that
//! ends within the half second at hand makes the desk look earlier:
//!
//! ```text
//!   half seconds   │ . . . . . . . . . │ . . . . . . . . . │
//!   asked              a  b      c
//!   client waits       ├──────────────────────────────▶ a   found at the second line: look at its end
//!                         ├────▶ b                          looked at then
//! ```
//!
//! # Giving up
//!
//! A task that is dropped, because its client went away or its time is over, frees its place when it
//! goes. An answer may be on its way to it, and the next one who has the place must not get that: so
//! each question has a number, and an answer to another one is dropped.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use clearlane_locks::now_ns;
use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft_log::driver;
use clearlane_read_index as read_index;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, sleep};

use super::Shared;
use super::inbox::{Input, Place, SLOTS_MAX};
use crate::core::{Answer, ChangeError};
use crate::membership::Change;

/// What has become of a question.
#[derive(Debug)]
pub enum Outcome {
    /// Of a proposal: it is applied, or was refused when it was.
    Applied(Answer),
    /// Raft does not take the proposal.
    NotProposed(driver::Error),
    /// The members do not allow the change.
    NotChanged(ChangeError),
    /// Of a read: this member has applied enough. How long that took, once it was known how much that
    /// is.
    MayRead(Duration),
    /// Of a read: why not.
    MayNotRead(read_index::Error),
    /// Of a proposal: the leader who had it has gone, and what it had is not to be found with the new one.
    LeaderLost,
    /// Nothing came back in time. What was proposed may still be applied.
    TimedOut,
    /// The same, and it was the client who has set the time.
    TooLate,
}

/// How often the desk looks for questions that are too old.
const ROUND: Duration = Duration::from_millis(500);
/// So many rounds a question waits: at least etcd's time-out with its default settings, 5 s and twice
/// an election time-out.
const ROUNDS_MAX: u32 = 15;

/// Before a client's time is over nobody looks oftener than this.
const LOOK: Duration = Duration::from_millis(10);
/// Of a client who waits for as long as it takes.
const NEVER: u64 = u64::MAX;

/// What the raft thread brings.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    letters: Mutex<Vec<(Place, Outcome)>>,
    arrived: Notify,
}

impl Mailbox {
    pub(super) fn put(&self, letters: &mut Vec<(Place, Outcome)>) {
        self.letters.lock().append(letters);
        self.arrived.notify_one();
    }
}

/// The place of one thread's requests.
#[derive(Clone)]
pub struct Desk {
    shared: Arc<Shared>,
    table: Arc<Table>,
    /// When the client whose desk this is does not wait any more.
    until_ns: u64,
}

struct Table {
    number: u8,
    mailbox: Arc<Mailbox>,
    lists: Mutex<Lists>,
}

struct Lists {
    /// Half seconds since the desk was opened.
    round: u32,
    /// When this one is over.
    round_ends_ns: u64,
    /// The first time of a client that is over before that.
    soonest_ns: u64,
    /// When all were looked through.
    looked_ns: u64,
    asks: Vec<Input>,
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Default for Lists {
    fn default() -> Lists {
        let (asks, slots, free) = Default::default();
        Lists { round: 0, round_ends_ns: NEVER, soonest_ns: NEVER, looked_ns: 0, asks, slots, free }
    }
}

#[derive(Default)]
struct Slot {
    question: u32,
    /// When it was asked.
    round: u32,
    /// When its client does not wait any more.
    until_ns: u64,
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    Free,
    Waits(Option<Waker>),
    Done(Box<Outcome>),
}

impl Desk {
    pub(super) fn new(shared: &Arc<Shared>) -> Desk {
        let mailbox = Arc::new(Mailbox::default());
        let mut desks = shared.desks.lock();
        let number = u8::try_from(desks.len()).expect("a thread each, and no more");
        desks.push(Arc::clone(&mailbox));
        let table = Arc::new(Table { number, mailbox, lists: Mutex::default() });
        Desk { shared: Arc::clone(shared), table, until_ns: NEVER }
    }

    /// The same for a client who waits until then only, on the clock of the [locks](now_ns). What is
    /// asked here is answered a hundredth of a second later at the latest.
    pub fn until(&self, until_ns: u64) -> Desk {
        Desk { shared: Arc::clone(&self.shared), table: Arc::clone(&self.table), until_ns }
    }

    /// The deadline of what is asked here, if there is one.
    pub fn until_ns(&self) -> Option<u64> {
        (self.until_ns != NEVER).then_some(self.until_ns)
    }

    /// Proposes a request that was [checked](crate::requests::check()).
    pub fn propose(&self, request: impl Into<Box<InternalRaftRequest>>) -> Asked {
        self.ask(|place| Input::Propose(request.into(), place))
    }

    /// Proposes a change of members.
    pub fn change_members(&self, change: Change) -> Asked {
        self.ask(|place| Input::ChangeMembers(change, place))
    }

    /// Asks when this member has applied all that was acknowledged until now.
    pub fn read(&self) -> Asked {
        self.ask(Input::Read)
    }

    fn ask(&self, input: impl FnOnce(Place) -> Input) -> Asked {
        let mut lists = self.table.lists.lock();
        let slot = lists.free.pop().unwrap_or_else(|| {
            lists.slots.push(Slot::default());
            (lists.slots.len() - 1) as u32
        });
        assert!(slot < SLOTS_MAX, "requests are bounded long before");
        let round = lists.round;
        let there = &mut lists.slots[slot as usize];
        there.question = there.question.wrapping_add(1);
        (there.round, there.until_ns) = (round, self.until_ns);
        there.state = State::Waits(None);
        let place = Place { desk: self.table.number, slot, question: there.question };
        if self.until_ns < lists.round_ends_ns {
            // The desk's task runs behind this one in any case, and sees it.
            lists.soonest_ns = lists.soonest_ns.min(self.until_ns);
        }
        let is_first = lists.asks.is_empty();
        lists.asks.push(input(place));
        drop(lists);
        if is_first {
            self.table.mailbox.arrived.notify_one();
        }
        Asked { table: Arc::clone(&self.table), place }
    }

    /// The desk's task. It ends when it is dropped.
    pub async fn run(self) {
        let mut rounds = tokio::time::interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let soonest = self.table.soonest();
            tokio::select! {
                () = self.table.mailbox.arrived.notified() => {}
                _ = rounds.tick() => self.table.next_round(),
                () = sleep(soonest.unwrap_or(ROUND)), if soonest.is_some() => self.table.look(),
            }
            let asks = std::mem::take(&mut self.table.lists.lock().asks);
            if !asks.is_empty() {
                self.shared.inbox.push(asks);
            }
            self.table.hand_out();
        }
    }
}

impl Table {
    /// How long until it is time to look, because a client's time is over before the round is.
    fn soonest(&self) -> Option<Duration> {
        let lists = self.lists.lock();
        let look_ns = lists.soonest_ns.max(lists.looked_ns + LOOK.as_nanos() as u64);
        let is_there = lists.soonest_ns != NEVER;
        drop(lists);
        is_there.then(|| Duration::from_nanos(look_ns.saturating_sub(now_ns())))
    }

    fn next_round(&self) {
        {
            let mut lists = self.lists.lock();
            lists.round += 1;
            lists.round_ends_ns = now_ns() + ROUND.as_nanos() as u64;
        }
        self.look();
    }

    /// Answers what is too old.
    fn look(&self) {
        let now_ns = now_ns();
        let mut lists = self.lists.lock();
        let lists = &mut *lists;
        (lists.soonest_ns, lists.looked_ns) = (NEVER, now_ns);
        for (slot, there) in lists.slots.iter_mut().enumerate() {
            let State::Waits(waker) = &mut there.state else { continue };
            let outcome = if there.until_ns <= now_ns {
                Outcome::TooLate
            } else if lists.round - there.round >= ROUNDS_MAX {
                Outcome::TimedOut
            } else {
                if there.until_ns < lists.round_ends_ns {
                    lists.soonest_ns = lists.soonest_ns.min(there.until_ns);
                }
                continue;
            };
            let waker = waker.take();
            there.state = State::Done(Box::new(outcome));
            waker.inspect(Waker::wake_by_ref);
            let (desk, slot) = (self.number, slot as u32);
            lists.asks.push(Input::GiveUp(Place { desk, slot, question: there.question }));
        }
    }

    fn hand_out(&self) {
        let letters = std::mem::take(&mut *self.mailbox.letters.lock());
        let mut lists = self.lists.lock();
        for (place, outcome) in letters {
            let there = &mut lists.slots[place.slot as usize];
            // Otherwise who waited has given up meanwhile, and the raft thread did not know yet.
            if there.question == place.question
                && let State::Waits(waker) = &mut there.state
            {
                let waker = waker.take();
                there.state = State::Done(Box::new(outcome));
                waker.inspect(Waker::wake_by_ref);
            }
        }
    }
}

/// Waits for what becomes of a question. Dropping it gives up.
#[must_use = "nobody is asked for nothing"]
pub struct Asked {
    table: Arc<Table>,
    place: Place,
}

impl Future for Asked {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut lists = self.table.lists.lock();
        let there = &mut lists.slots[self.place.slot as usize].state;
        match std::mem::take(there) {
            State::Done(outcome) => Poll::Ready(*outcome),
            State::Waits(_) => {
                *there = State::Waits(Some(context.waker().clone()));
                Poll::Pending
            }
            State::Free => panic!("asked again after the answer"),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut lists = self.table.lists.lock();
        let there = std::mem::take(&mut lists.slots[self.place.slot as usize].state);
        if let State::Waits(_) = there {
            let is_first = lists.asks.is_empty();
            lists.asks.push(Input::GiveUp(self.place));
            if is_first {
                self.table.mailbox.arrived.notify_one();
            }
        }
        lists.free.push(self.place.slot);
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("number", &self.table.number).finish_non_exhaustive()
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").field("place", &self.place).finish_non_exhaustive()
    }
}
