//! The requests of one net thread that wait for the raft loop or the apply loop.
//!
//! A request takes a slot, and its [`ReplicaInput`] goes to the raft loop together with all others
//! of the same turn of the runtime. Outcomes come back in bulk, and each wakes the task at its
//! slot. The queue reads no clock and wakes no thread, so a simulated member has the same one.
//!
//! * A slot is used again when its request has gone. Its generation tells requests apart: an
//!   outcome for an earlier one is dropped, and each request gets one outcome at most.
//! * A request without an outcome gets one after [`ROUNDS_MAX`] rounds, or when its deadline has
//!   passed.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use clearlane_raft as raft;
use clearlane_raft::read_index;

use super::{MemberChangeError, ReplicaInput};
use crate::{apply, membership};

pub const ROUND_LENGTH: Duration = Duration::from_millis(500);
/// At least etcd's time-out with its default settings: 5 s and twice an election time-out.
const ROUNDS_MAX: u32 = 15;
const SLOTS_MAX: u32 = 1 << 24;
const DEADLINE_CHECK_INTERVAL_MIN: Duration = Duration::from_millis(10);
pub const NO_DEADLINE: u64 = u64::MAX;

/// Identifies a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub queue: u8,
    pub slot: u32,
    /// Tells apart the requests that use the slot one after the other.
    pub generation: u32,
}

#[derive(Debug)]
pub enum RequestOutcome {
    /// The proposal was applied, or refused when it was to be.
    Applied(apply::ApplyResult),
    /// The same, with reads that the request has to make before it answers.
    AppliedInPart(Box<apply::PartialResponse>),
    /// Of a change of members: the members now, or why nothing has changed.
    MembersChanged(Result<Vec<membership::Member>, membership::MembershipRejection>),
    /// Raft refused the proposal.
    NotProposed(raft::Error),
    ChangeRejected(MemberChangeError),
    /// This member has applied enough for the read. The duration is how long that took after the
    /// read index was known.
    ReadReady(Duration),
    ReadFailed(read_index::ReadIndexError),
    /// After [`ROUNDS_MAX`]. A read will not be made; what was proposed may still be applied.
    TimedOut,
    /// Like `TimedOut`, by the client's deadline.
    DeadlineExceeded,
}

#[derive(Debug)]
pub struct RequestQueue {
    number: u8,
    round: u32,
    round_ends_ns: u64,
    /// The first deadline within the round.
    next_deadline_ns: u64,
    last_check_ns: u64,
    inputs: Vec<ReplicaInput>,
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    /// The round in which it was submitted.
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

    /// Returns the id, and whether this is the first input since the last
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

    /// Frees the slot, with an outcome or without. Returns whether this is the first input since
    /// the last [`drain_inputs`](RequestQueue::drain_inputs).
    pub fn release(&mut self, id: RequestId) -> bool {
        let there = std::mem::take(&mut self.slots[id.slot as usize].state);
        self.free.push(id.slot);
        match there {
            SlotState::Waiting(_) => self.push_input(ReplicaInput::Cancel(id)),
            SlotState::Free | SlotState::Done(_) => false,
        }
    }

    /// Outcomes of requests that are gone or have one are dropped.
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

    /// The next call of [`check_deadlines`](RequestQueue::check_deadlines) that a deadline needs
    /// before the end of the round.
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

    /// Completes each request that has waited too long.
    ///
    /// A timer for each would cost more than most answers. So a request has the number of the round
    /// in which it came, and all are checked at the end of a round. Only a deadline within the
    /// current round makes that earlier:
    ///
    /// ```text
    ///   rounds      │ . . . . . . . . . │ . . . . . . . . . │
    ///   deadlines       ├──────────────────────────────▶ a   known from the second line on
    ///                      ├────▶ b                          known at once
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
