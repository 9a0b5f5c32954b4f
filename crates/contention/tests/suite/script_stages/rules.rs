//! Runs the scripts on the lock's rules without a lock, in virtual time. Each command takes one
//! tick, and waking takes no time.

use std::collections::BTreeMap;

use clearlane_contention::rules::{BlockedInterval, LockState, Ticket};
use clearlane_contention::{LockMode, TaskLabel};

use crate::script::{Holds, Stage, Waits};

#[derive(Default)]
pub(crate) struct RulesStage {
    state: LockState,
    now_ns: u64,
    tickets: BTreeMap<TaskLabel, (Ticket, LockMode)>,
    blocked_intervals: Vec<BlockedInterval>,
}

impl Stage for RulesStage {
    fn ask(&mut self, actor: TaskLabel, mode: LockMode) {
        self.now_ns += 1;
        let arrival = self.state.acquire(actor, mode, self.now_ns);
        self.tickets.insert(actor, (arrival.ticket, mode));
    }

    fn release(&mut self, actor: TaskLabel) {
        self.now_ns += 1;
        let (ticket, mode) = self.tickets.remove(&actor).expect("it holds");
        for woken in self.state.release(ticket, mode, self.now_ns).wake {
            self.state.poll(woken, self.now_ns);
        }
        self.blocked_intervals.extend(self.state.take_blocked_intervals());
    }

    fn holds(&self) -> Vec<Holds> {
        let holds = self.state.holders();
        holds.map(|party| Holds { actor: party.task, mode: party.mode }).collect()
    }

    fn waits(&self) -> Vec<Waits> {
        let waits = self.state.waiters().map(|waiting| {
            let front = waiting.blocker.expect("waking takes no time here");
            let (actor, mode) = (waiting.waiter.task, waiting.waiter.mode);
            Waits { actor, mode, front: front.task, stance: front.state }
        });
        waits.collect()
    }

    fn blame(&self) -> Vec<(Waits, u64)> {
        let mut counts: BTreeMap<_, u64> = BTreeMap::new();
        for BlockedInterval { waiter, mode, blocker: front, .. } in &self.blocked_intervals {
            *counts.entry((*waiter, *mode, front.task, front.state)).or_default() += 1;
        }
        let to_line =
            |((actor, mode, front, stance), count)| (Waits { actor, mode, front, stance }, count);
        counts.into_iter().map(to_line).collect()
    }
}
