//! The bare rules in made-up time: each command takes one tick, and waking takes none.

use std::collections::BTreeMap;

use clearlane_locks::{
    Actor, Mode,
    gate::{Gate, Stretch, Ticket},
};

use crate::script::{Holds, Stage, Waits};

/// A gate, who is at it, and what happened there.
#[derive(Default)]
pub(crate) struct OnGate {
    gate: Gate,
    now_ns: u64,
    tickets: BTreeMap<Actor, (Ticket, Mode)>,
    stretches: Vec<Stretch>,
}

impl Stage for OnGate {
    fn ask(&mut self, actor: Actor, mode: Mode) {
        self.now_ns += 1;
        let arrival = self.gate.arrive(actor, mode, self.now_ns);
        self.tickets.insert(actor, (arrival.ticket, mode));
    }

    fn try_ask(&mut self, actor: Actor, mode: Mode) -> bool {
        self.now_ns += 1;
        let ticket = self.gate.try_arrive(actor, mode, self.now_ns);
        self.tickets.extend(ticket.map(|ticket| (actor, (ticket, mode))));
        ticket.is_some()
    }

    fn release(&mut self, actor: Actor) {
        self.now_ns += 1;
        let (ticket, mode) = self.tickets.remove(&actor).expect("it holds");
        for woken in self.gate.leave(ticket, mode, self.now_ns).wake {
            self.gate.poll(woken, self.now_ns);
        }
        self.stretches.extend(self.gate.take_stretches());
    }

    fn holds(&self) -> Vec<Holds> {
        let holds = self.gate.inside();
        holds.map(|party| Holds { actor: party.actor, mode: party.mode }).collect()
    }

    fn waits(&self) -> Vec<Waits> {
        let waits = self.gate.waiting().map(|waiting| {
            let front = waiting.front.expect("waking takes no time here");
            let (actor, mode) = (waiting.waiter.actor, waiting.waiter.mode);
            Waits { actor, mode, front: front.actor, stance: front.stance }
        });
        waits.collect()
    }

    fn blame(&self) -> Vec<(Waits, u64)> {
        let mut counts: BTreeMap<_, u64> = BTreeMap::new();
        for Stretch { waiter, mode, front, .. } in &self.stretches {
            *counts.entry((*waiter, *mode, front.actor, front.stance)).or_default() += 1;
        }
        let to_line =
            |((actor, mode, front, stance), count)| (Waits { actor, mode, front, stance }, count);
        counts.into_iter().map(to_line).collect()
    }
}
