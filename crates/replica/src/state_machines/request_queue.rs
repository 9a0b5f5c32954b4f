//! The requests of one network thread that wait for the raft loop or the apply loop.
//!
//! A request takes a slot. Its [`ReplicaInput`] is sent to the raft loop together with all other
//! inputs that the thread has submitted since it last sent inputs. Outcomes return in batches, and
//! each outcome wakes the task at its slot. The queue reads no clock and wakes no thread, so a
//! simulated member uses the same queue.
//!
//! ```text
//!   network thread            raft loop, apply loop
//!   submit ─▶ slot 7, gen 3 ─▶ ReplicaInput ... ─▶ (id of slot 7, gen 3; outcome)
//!   poll   ◀─ outcome ◀────────── complete ◀──────────┘
//!   release: slot 7 is free; its next request has gen 4
//! ```
//!
//! * A slot is reused after its request has been released. The generation distinguishes the
//!   requests of a slot: an outcome for an earlier request is dropped, and each request gets at
//!   most one outcome.
//! * A request without an outcome gets one after [`ROUNDS_MAX`] rounds, or when its deadline has
//!   passed.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use clearlane_raft as raft;
use clearlane_raft::read_index;

use super::{MemberChangeError, ReplicaInput};
use crate::{apply, membership};

pub const ROUND_LENGTH: Duration = Duration::from_millis(500);
/// Maximum number of rounds of 500 ms that a request may wait. The first round may be partial, so
/// the wait is 7 to 7.5 s. That is at least etcd's default time-out: 5 s plus two election
/// time-outs of 1 s.
const ROUNDS_MAX: u32 = 15;
const SLOTS_MAX: u32 = 1 << 24;
const DEADLINE_CHECK_INTERVAL_MIN: Duration = Duration::from_millis(10);
pub const NO_DEADLINE: u64 = u64::MAX;

/// Identifies a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub queue: u8,
    pub slot: u32,
    /// Distinguishes requests that use the same slot one after the other.
    pub generation: u32,
}

#[derive(Debug)]
pub enum RequestOutcome {
    /// The proposal was applied, or rejected when its entry was to be applied.
    Applied(apply::ApplyResult),
    /// Like `Applied`, but the request must still make some reads for its response.
    AppliedInPart(Box<apply::PartialResponse>),
    /// The outcome of a change of members: the new members, or the reason why nothing has changed.
    /// The list is empty for a request that only sets a member's attributes or the cluster's
    /// version.
    MembersChanged(Result<Vec<membership::Member>, membership::MembershipRejection>),
    /// The proposal was rejected before it became an entry: by raft, because a queue is full, or
    /// because too many entries are not applied yet.
    NotProposed(raft::Error),
    ChangeRejected(MemberChangeError),
    /// The read may be made now. The duration is how long the read has waited for this member to
    /// apply entries, after the read index was known.
    ReadReady(Duration),
    ReadFailed(read_index::ReadIndexError),
    /// [`ROUNDS_MAX`] rounds have passed. A read will not be made; a proposal may still be applied.
    TimedOut,
    /// The client's deadline has passed. Otherwise like `TimedOut`.
    DeadlineExceeded,
}

#[derive(Debug)]
pub struct RequestQueue {
    number: u8,
    round: u32,
    round_ends_ns: u64,
    /// The first deadline before the end of the round, or [`NO_DEADLINE`].
    next_deadline_ns: u64,
    last_check_ns: u64,
    inputs: Vec<ReplicaInput>,
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    /// The number of the round when the request was submitted.
    round: u32,
    deadline_ns: u64,
    state: SlotState,
}

#[derive(Debug, Default)]
enum SlotState {
    #[default]
    Free,
    Waiting(Option<Waker>),
    Done(Box<RequestOutcome>),
}

impl RequestQueue {
    pub fn new(number: u8) -> RequestQueue {
        RequestQueue {
            number,
            round: 0,
            round_ends_ns: NO_DEADLINE,
            next_deadline_ns: NO_DEADLINE,
            last_check_ns: 0,
            inputs: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Adds a request. Returns its id, and whether this is the first input since the last
    /// [`drain_inputs`](RequestQueue::drain_inputs).
    pub fn submit(
        &mut self,
        deadline_ns: u64,
        input: impl FnOnce(RequestId) -> ReplicaInput,
    ) -> (RequestId, bool) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        assert!(slot < SLOTS_MAX, "requests are bounded long before");
        let there = &mut self.slots[slot as usize];
        there.generation = there.generation.wrapping_add(1);
        (there.round, there.deadline_ns) = (self.round, deadline_ns);
        there.state = SlotState::Waiting(None);
        let id = RequestId { queue: self.number, slot, generation: there.generation };
        if deadline_ns < self.round_ends_ns {
            self.next_deadline_ns = self.next_deadline_ns.min(deadline_ns);
        }
        (id, self.push_input(input(id)))
    }

    fn push_input(&mut self, input: ReplicaInput) -> bool {
        self.inputs.push(input);
        self.inputs.len() == 1
    }

    pub fn drain_inputs(&mut self) -> Vec<ReplicaInput> {
        std::mem::take(&mut self.inputs)
    }

    pub fn poll(&mut self, id: RequestId, context: &mut Context<'_>) -> Poll<RequestOutcome> {
        let there = &mut self.slots[id.slot as usize].state;
        match std::mem::take(there) {
            SlotState::Done(outcome) => Poll::Ready(*outcome),
            SlotState::Waiting(_) => {
                *there = SlotState::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            SlotState::Free => panic!("polled again after its outcome"),
        }
    }

    /// Frees the slot of a request. If the request has no outcome, adds an input that cancels it.
    /// Returns whether this is the first input since the last
    /// [`drain_inputs`](RequestQueue::drain_inputs).
    pub fn release(&mut self, id: RequestId) -> bool {
        let there = std::mem::take(&mut self.slots[id.slot as usize].state);
        self.free.push(id.slot);
        match there {
            SlotState::Waiting(_) => self.push_input(ReplicaInput::Cancel(id)),
            SlotState::Free | SlotState::Done(_) => false,
        }
    }

    /// Stores outcomes. Outcomes of requests that were released or have an outcome are dropped.
    pub fn complete(&mut self, completions: impl IntoIterator<Item = (RequestId, RequestOutcome)>) {
        for (id, outcome) in completions {
            let there = &mut self.slots[id.slot as usize];
            if there.generation == id.generation && matches!(there.state, SlotState::Waiting(_)) {
                there.complete(outcome);
            }
        }
    }

    pub fn is_done(&self, id: RequestId) -> bool {
        let there = &self.slots[id.slot as usize];
        there.generation == id.generation && matches!(there.state, SlotState::Done(_))
    }

    /// Returns the time at which [`check_deadlines`](RequestQueue::check_deadlines) must be called
    /// for the next deadline in this round. Returns `None` if the round has no further deadline.
    pub fn next_check_ns(&self) -> Option<u64> {
        let look_ns = self
            .next_deadline_ns
            .max(self.last_check_ns + DEADLINE_CHECK_INTERVAL_MIN.as_nanos() as u64);
        (self.next_deadline_ns != NO_DEADLINE).then_some(look_ns)
    }

    pub fn next_round(&mut self, now_ns: u64) {
        self.round += 1;
        self.round_ends_ns = now_ns + ROUND_LENGTH.as_nanos() as u64;
        self.check_deadlines(now_ns);
    }

    /// Completes each request that has waited too long, and adds an input that cancels it.
    ///
    /// A timer for each request would cost more than most responses. So a request stores the number
    /// of the round in which it was submitted, and all requests are checked at the end of a round.
    /// An earlier check is scheduled only for a deadline within the current round:
    ///
    /// ```text
    ///   rounds      │ . . . first . . . │ . . . second  . . │
    ///   deadlines       ├──────────────────────────────▶ a   scheduled in the second round
    ///                      ├────▶ b                          scheduled immediately
    /// ```
    pub fn check_deadlines(&mut self, now_ns: u64) {
        (self.next_deadline_ns, self.last_check_ns) = (NO_DEADLINE, now_ns);
        for (slot, there) in self.slots.iter_mut().enumerate() {
            if !matches!(there.state, SlotState::Waiting(_)) {
                continue;
            }
            let outcome = if there.deadline_ns <= now_ns {
                RequestOutcome::DeadlineExceeded
            } else if self.round - there.round >= ROUNDS_MAX {
                RequestOutcome::TimedOut
            } else {
                if there.deadline_ns < self.round_ends_ns {
                    self.next_deadline_ns = self.next_deadline_ns.min(there.deadline_ns);
                }
                continue;
            };
            there.complete(outcome);
            let (queue, slot) = (self.number, slot as u32);
            let id = RequestId { queue, slot, generation: there.generation };
            self.inputs.push(ReplicaInput::Cancel(id));
        }
    }
}

impl Slot {
    fn complete(&mut self, outcome: RequestOutcome) {
        let before = std::mem::replace(&mut self.state, SlotState::Done(Box::new(outcome)));
        if let SlotState::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}
