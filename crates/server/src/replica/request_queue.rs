//! The requests of one net thread that wait for the raft loop or the apply loop.
//!
//! A request takes a slot, and its [`ReplicaInput`] goes to the raft loop together with all others
//! of the same turn of the runtime. Outcomes come back in bulk, and each wakes the task that waits
//! at its slot. The queue is a state machine: it reads no clock and wakes no thread, so a simulated
//! member has the same one.
//!
//! * A slot is used again when its request has gone. Its generation tells requests apart: an
//!   outcome for an earlier one is dropped, and each request gets one outcome at most.
//! * A request without an outcome gets one after [`ROUNDS_MAX`] rounds, or when its deadline has
//!   passed.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use clearlane_raft as raft;
use clearlane_raft::read_index;

use super::{MemberChangeError, ProposalResult, ReplicaInput};

/// Length of a round.
pub const ROUND_LENGTH: Duration = Duration::from_millis(500);
/// Rounds that a request waits: at least etcd's time-out with its default settings, 5 s and twice
/// an election time-out.
const ROUNDS_MAX: u32 = 15;
/// Slots of one queue.
const SLOTS_MAX: u32 = 1 << 24;
/// Shortest time between two checks of deadlines.
const DEADLINE_CHECK_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// The deadline of a request that has none.
pub const NO_DEADLINE: u64 = u64::MAX;

/// A request that waits: its queue, its slot there, and which of the requests that had this slot it
/// is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// The queue's number.
    pub queue: u8,
    /// The slot.
    pub slot: u32,
    /// Counts the requests of the slot.
    pub generation: u32,
}

/// What has become of a request.
#[derive(Debug)]
pub enum RequestOutcome {
    /// Of a proposal: it is applied, or was refused when it was.
    Applied(ProposalResult),
    /// Raft does not take the proposal.
    NotProposed(raft::Error),
    /// The members do not allow the change.
    ChangeRejected(MemberChangeError),
    /// Of a read: this member has applied enough. How long that took, once it was known how much
    /// that is.
    ReadReady(Duration),
    /// Of a read: why not.
    ReadFailed(read_index::ReadIndexError),
    /// Nothing came back in time. What was proposed may still be applied.
    TimedOut,
    /// The same, and the time was the client's.
    DeadlineExceeded,
}

/// The requests of one net thread.
#[derive(Debug)]
pub struct RequestQueue {
    number: u8,
    round: u32,
    /// When this round is over.
    round_ends_ns: u64,
    /// The first deadline before that.
    next_deadline_ns: u64,
    /// When all were looked through.
    last_check_ns: u64,
    inputs: Vec<ReplicaInput>,
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    /// In which round it was submitted.
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
    /// A queue without requests.
    pub fn new(number: u8) -> RequestQueue {
        let (inputs, slots, free) = Default::default();
        let (round_ends_ns, soonest_ns) = (NO_DEADLINE, NO_DEADLINE);
        RequestQueue {
            number,
            round: 0,
            round_ends_ns,
            next_deadline_ns: soonest_ns,
            last_check_ns: 0,
            inputs,
            slots,
            free,
        }
    }

    /// Takes a request in. Says under which id, and whether it is the first since inputs were
    /// [taken](RequestQueue::drain_inputs).
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

    /// What is to go to the raft loop.
    pub fn drain_inputs(&mut self) -> Vec<ReplicaInput> {
        std::mem::take(&mut self.inputs)
    }

    /// The outcome of a request, if it is there; otherwise its task is woken when it comes.
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

    /// The request has gone, with its outcome or without. Its slot is free. Says whether that is
    /// the first input since they were [taken](RequestQueue::drain_inputs).
    pub fn release(&mut self, id: RequestId) -> bool {
        let there = std::mem::take(&mut self.slots[id.slot as usize].state);
        self.free.push(id.slot);
        match there {
            SlotState::Waiting(_) => self.push_input(ReplicaInput::Cancel(id)),
            SlotState::Free | SlotState::Done(_) => false,
        }
    }

    /// Outcomes have come. Those of requests that have gone, or have had theirs, are dropped.
    pub fn complete(&mut self, completions: impl IntoIterator<Item = (RequestId, RequestOutcome)>) {
        for (id, outcome) in completions {
            let there = &mut self.slots[id.slot as usize];
            if there.generation == id.generation && matches!(there.state, SlotState::Waiting(_)) {
                there.complete(outcome);
            }
        }
    }

    /// Whether the outcome of a request is there.
    pub fn is_done(&self, id: RequestId) -> bool {
        let there = &self.slots[id.slot as usize];
        there.generation == id.generation && matches!(there.state, SlotState::Done(_))
    }

    /// When to call [`check_deadlines`](RequestQueue::check_deadlines), because a deadline passes
    /// before the round is over.
    pub fn next_check_ns(&self) -> Option<u64> {
        let look_ns = self
            .next_deadline_ns
            .max(self.last_check_ns + DEADLINE_CHECK_INTERVAL_MIN.as_nanos() as u64);
        (self.next_deadline_ns != NO_DEADLINE).then_some(look_ns)
    }

    /// A round is over.
    pub fn next_round(&mut self, now_ns: u64) {
        self.round += 1;
        self.round_ends_ns = now_ns + ROUND_LENGTH.as_nanos() as u64;
        self.check_deadlines(now_ns);
    }

    /// Ends the wait of each request that has waited too long.
    ///
    /// A timer for each would cost more than most answers. So requests remember in which round they
    /// came, and all are looked through at the end of a round. Only a deadline within the round at
    /// hand makes that earlier:
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
