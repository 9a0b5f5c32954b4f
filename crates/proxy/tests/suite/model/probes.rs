//! Probes: [`ProbeBatches`] decides who shares one, and the events of the simulation do the rest.

use std::collections::BTreeMap;

use clearlane_proxy::cache::probe::{Joined, ProbeBatches};
use clearlane_proxy::cache::range::Span;

use super::bugs::Bug;
use super::world::Time;
use super::{Action, Simulation};

/// Who waits for a probe.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiter {
    Read(u64),
    /// The feed that keeps its scope fresh for serializable reads.
    Freshness(usize),
    /// The creation of a watch in this session.
    Creation(usize),
    /// A request for progress in this session.
    Progress(usize),
}

/// A successful probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probed {
    pub(super) revision: i64,
    pub(super) started: Time,
}

#[derive(Debug, Default)]
pub(super) struct Probes {
    batches: ProbeBatches,
    waiting: Vec<Waiter>,
    in_flight: BTreeMap<u64, InFlight>,
    next: u64,
}

#[derive(Debug)]
struct InFlight {
    started: Time,
    waiters: Vec<Waiter>,
    result: Option<Probed>,
}

impl Simulation {
    pub(super) fn probe(&mut self, waiter: Waiter) {
        if self.bug == Some(Bug::ProbeInFlight)
            && let Some(mut probe) = self.probes.in_flight.last_entry()
        {
            probe.get_mut().waiters.push(waiter);
            return;
        }
        match self.probes.batches.join() {
            Joined::Start => self.start_probe(vec![waiter]),
            Joined::First | Joined::Wait => self.probes.waiting.push(waiter),
        }
    }

    fn start_probe(&mut self, waiters: Vec<Waiter>) {
        let id = self.probes.next;
        self.probes.next += 1;
        let probe = InFlight { started: self.now, waiters, result: None };
        self.probes.in_flight.insert(id, probe);
        self.after(1..8, Action::ProbeEffect(id));
    }

    /// The member makes the linearizable read.
    pub(super) fn probe_effect(&mut self, id: u64) {
        if self.chance(0.05) {
            // The member died. The probe is sent to another one.
            return self.after(1..20, Action::ProbeEffect(id));
        }
        let probe = self.probes.in_flight.get_mut(&id).unwrap();
        let (mut user, mut span) = (None, Span::of_prefix(b""));
        if self.bug == Some(Bug::OtherIdentity)
            && let Some(Waiter::Read(read)) = probe.waiters.first()
            && let Some(read) = self.reads.get(read)
        {
            user = self.connections[read.connection].user;
            span = read.span.clone();
        }
        let revision = self.world.revision;
        let is_permitted = self.world.auth().permits(user, &span);
        probe.result = is_permitted.then_some(Probed { revision, started: probe.started });
        self.after(1..15, Action::ProbeEnd(id));
    }

    pub(super) fn probe_end(&mut self, id: u64) {
        let probe = self.probes.in_flight.remove(&id).unwrap();
        for waiter in probe.waiters {
            match waiter {
                Waiter::Read(read) => self.read_probed(read, probe.result),
                Waiter::Freshness(feed) => self.freshness_probed(feed, probe.result),
                Waiter::Creation(session) => self.creation_probed(session, probe.result),
                Waiter::Progress(session) => self.progress_probed(session, probe.result),
            }
        }
        if self.probes.batches.ended() {
            let waiters = std::mem::take(&mut self.probes.waiting);
            self.start_probe(waiters);
        }
        self.scopes_changed();
    }
}
