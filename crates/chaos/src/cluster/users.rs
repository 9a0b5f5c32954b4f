//! Clients: from a wish to the moment when somebody is told, or nobody ever is.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use clearlane_member::core::{
    Answer, Completions, Input, NEVER, Outcome as Heard, ROUND, RequestId,
};
use clearlane_raft_log::driver::Error;

use super::{Cluster, Event, Input as Step, broken};
use crate::chance::Chance;
use crate::clients::Client;
use crate::history::{History, Outcome, Request};
use crate::judge::Verdict;
use crate::machine::Machine;
use crate::proposals::{Proposal, encode};
use crate::replies;
use crate::terms::Terms;
use crate::world::{MILLISECOND, Micros};

/// The client that asks for the last write. It is not among the others.
pub(super) const LAST_CLIENT: u64 = 0;

/// What waits for the outcome of a request.
#[derive(Debug)]
pub(super) enum Asker {
    /// A client.
    Operation(usize),
    /// A tenant that keeps a lease alive, and since when it waits.
    KeepAlive { lease: i64, since: Micros },
    /// A tenant that wants something else, perhaps the end of a lease.
    Act { is_end: bool },
    /// None.
    Nobody,
}

/// All clients, and what they wait for.
#[derive(Debug)]
pub(super) struct Users {
    pub(super) clients: BTreeMap<u64, Client>,
    pub(super) history: History,
    /// What waits at the net threads, by member.
    requests: BTreeMap<(u64, RequestId), Asker>,
    /// Where operations wait.
    pending: BTreeMap<usize, (u64, RequestId)>,
    /// The ids under which operations were proposed.
    pub(super) ids: BTreeMap<usize, u64>,
    pub(super) chance: Chance,
}

impl Users {
    pub(super) fn new(terms: &Terms, chance: &mut Chance) -> Users {
        let client = |id| (id, Client::new(id, terms.habits, chance.part()));
        Users {
            clients: (1..=terms.clients).map(client).collect(),
            history: History::default(),
            requests: BTreeMap::new(),
            pending: BTreeMap::new(),
            ids: BTreeMap::new(),
            chance: chance.part(),
        }
    }

    /// Whom an operation was sent to.
    pub(super) fn member_of(&self, operation: usize) -> u64 {
        self.history.operations()[operation].member
    }

    /// The member has crashed: what was asked there is answered by none.
    pub(super) fn crashed(&mut self, member: u64) -> Vec<usize> {
        let lost = self.pending.iter().filter(|(_, (at, _))| *at == member);
        let lost: Vec<usize> = lost.map(|(operation, _)| *operation).collect();
        for operation in &lost {
            self.pending.remove(operation);
        }
        self.requests.retain(|(at, _), _| *at != member);
        lost
    }

    /// The requests that wait at a member.
    pub(super) fn waiting(&self, member: u64) -> Vec<RequestId> {
        self.requests.keys().filter(|(at, _)| *at == member).map(|(_, request)| *request).collect()
    }

    /// A request has its outcome.
    pub(super) fn take(&mut self, member: u64, request: RequestId) -> Option<Asker> {
        let asker = self.requests.remove(&(member, request))?;
        if let Asker::Operation(operation) = &asker {
            self.pending.remove(operation);
        }
        Some(asker)
    }

    /// A request was proposed under an id. Says whether it ends a lease.
    pub(super) fn was_proposed(&mut self, member: u64, request: RequestId, id: u64) -> bool {
        match self.requests.get(&(member, request)) {
            Some(Asker::Operation(operation)) => {
                self.ids.insert(*operation, id);
                false
            }
            Some(Asker::Act { is_end }) => *is_end,
            _ => false,
        }
    }

    /// Whether some client waits for an answer.
    pub(super) fn anybody_waits(&self) -> bool {
        self.clients.values().any(|client| client.waits_for.is_some())
    }
}

impl Cluster {
    pub(super) fn plan_clients(&mut self) {
        let ids: Vec<u64> = self.users.clients.keys().copied().collect();
        for id in ids {
            let wait = self.users.chance.between(0, 1_000_000);
            self.world.after(wait, Event::Wants(id));
        }
    }

    /// Between a client and a member.
    fn distance(&mut self) -> Micros {
        self.users.chance.of_any_size(50, 2 * MILLISECOND)
    }

    pub(super) fn wants(&mut self, id: u64) {
        if self.quiet.clients_rest && id != LAST_CLIENT {
            return;
        }
        let here: Vec<u64> = self.users_may_ask();
        let Some(client) = self.users.clients.get_mut(&id) else { return };
        let Some(member) = client.choose(&here) else {
            self.world.after(100 * MILLISECOND, Event::Wants(id));
            return;
        };
        let request = match id {
            LAST_CLIENT => client.put(),
            _ => client.request(),
        };
        let patience = client.patience();
        let now = self.world.now();
        let operation = self.users.history.invoke(now, id, member, request);
        if let Some(client) = self.users.clients.get_mut(&id) {
            client.waits_for = Some(operation);
        }
        let request = self.users.history.operations()[operation].request.clone();
        self.line(format_args!("client {id} wants #{operation} from {member}: {request:?}"));
        let wait = self.distance();
        self.world.after(wait, Event::Asks(operation));
        self.world.after(patience, Event::Patience(operation));
    }

    /// Clients know the addresses of all who are members, running or not.
    fn users_may_ask(&self) -> Vec<u64> {
        let here = self.machines.values().filter(|machine| !machine.is_gone);
        here.map(|machine| machine.id).collect()
    }

    /// A request arrives at a member.
    pub(super) fn asked(&mut self, number: usize) -> Verdict {
        let operation = &self.users.history.operations()[number];
        let (id, request) = (operation.member, operation.request.clone());
        let running = self.machines.get(&id).and_then(|machine| machine.running.as_ref());
        let Some(running) = running else {
            self.tell(number, Outcome::Refused);
            return Ok(());
        };
        let asker = Asker::Operation(number);
        match &request {
            Request::Read { key, serializable } if *serializable || running.is_alone => {
                let reply =
                    replies::read(&*running.applier.store().read(), key.as_deref(), *serializable);
                let reply = reply.map_err(|error| broken(id, &error))?;
                self.figures.read_alone += u64::from(!*serializable);
                self.tell(number, reply.map_or(Outcome::Refused, Outcome::Done));
            }
            Request::Read { .. } => self.submit(id, asker, Input::Read),
            _ => {
                let request = Box::new(encode(&Proposal::Client(request)));
                self.submit(id, asker, |of| Input::Propose(request, of));
            }
        }
        Ok(())
    }

    /// Leaves a request with a member's net thread, if the member runs.
    pub(super) fn submit(&mut self, id: u64, asker: Asker, input: impl FnOnce(RequestId) -> Input) {
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else { return };
        let (request, _) = running.requests.submit(NEVER, input);
        if let Asker::Operation(operation) = &asker {
            self.users.pending.insert(*operation, (id, request));
        }
        self.users.requests.insert((id, request), asker);
        self.plan_net(id);
    }

    /// A client gives up an operation.
    pub(super) fn give_up(&mut self, id: u64, operation: usize) {
        let Some((member, request)) = self.users.pending.remove(&operation) else { return };
        self.users.requests.remove(&(member, request));
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        if let Some(running) = running {
            running.requests.release(request);
            self.plan_net(id);
        }
    }

    fn plan_net(&mut self, id: u64) {
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else { return };
        if !std::mem::replace(&mut running.is_net_planned, true) {
            let wait = self.chance.of_any_size(1, 300);
            self.plan(id, wait, Step::Net);
        }
    }

    /// Outcomes have come to a member's net thread.
    pub(super) fn complete(&mut self, id: u64, completions: Completions) {
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        if let Some(running) = running {
            running.completions.extend(completions);
            self.plan_net(id);
        }
    }

    /// A turn of a net thread: what was submitted goes to the raft loop, and requests hear their outcomes.
    pub(super) fn net(&mut self, id: u64, is_round: bool) -> Verdict {
        let now = self.world.now();
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let time_ns = machine.clock.time(now).as_nanos() as u64;
        let Some(running) = &mut machine.running else { return Ok(()) };
        match is_round {
            true => running.requests.next_round(time_ns),
            false => running.is_net_planned = false,
        }
        running.requests.complete(std::mem::take(&mut running.completions));
        running.inbox.extend(running.requests.take_inputs());
        let mut done = Vec::new();
        for request in self.users.waiting(id) {
            if !running.requests.is_done(request) {
                continue;
            }
            let mut context = Context::from_waker(Waker::noop());
            let Poll::Ready(outcome) = running.requests.poll(request, &mut context) else {
                continue;
            };
            running.requests.release(request);
            done.push((request, outcome));
        }
        if is_round {
            self.plan(id, ROUND.as_micros() as u64, Step::Round);
        }
        self.plan_poll(id);
        for (request, outcome) in done {
            if let Some(asker) = self.users.take(id, request) {
                self.hears(id, asker, outcome)?;
            }
        }
        Ok(())
    }

    /// A request has its outcome.
    fn hears(&mut self, id: u64, asker: Asker, outcome: Heard) -> Verdict {
        if let Heard::NotProposed(error @ Error::Stopped(_)) = &outcome {
            return Err(broken(id, error));
        }
        let number = match asker {
            Asker::Operation(number) => number,
            Asker::KeepAlive { lease, since } => {
                let may = matches!(outcome, Heard::MayRead(_));
                return self.tenant_hears(id, (lease, since), may);
            }
            Asker::Act { .. } | Asker::Nobody => return Ok(()),
        };
        let request = &self.users.history.operations()[number].request;
        let told = match (outcome, request) {
            (Heard::MayRead(_), Request::Read { key, .. }) => {
                let applier = self.machines.get(&id).and_then(Machine::applier);
                let Some(applier) = applier else { return Ok(()) };
                let reply = replies::read(&*applier.store().read(), key.as_deref(), false);
                let reply = reply.map_err(|error| broken(id, &error))?;
                reply.map_or(Outcome::Refused, Outcome::Done)
            }
            (Heard::Applied(Answer::Request(Ok(reply))), _) => {
                Outcome::Done(replies::of(request, &reply))
            }
            (Heard::TimedOut | Heard::TooLate, _) => Outcome::Open,
            _ => Outcome::Refused,
        };
        self.tell(number, told);
        Ok(())
    }

    /// An answer sets out for its client.
    fn tell(&mut self, operation: usize, outcome: Outcome) {
        let wait = self.distance();
        self.world.after(wait, Event::Told(operation, outcome));
    }

    /// Clients of a member that has crashed notice that the connection is broken.
    pub(super) fn connections_break(&mut self, id: u64) {
        for operation in self.users.crashed(id) {
            self.tell(operation, Outcome::Open);
        }
    }

    pub(super) fn told(&mut self, number: usize, outcome: Outcome) {
        let operation = &self.users.history.operations()[number];
        let id = operation.client;
        let Some(client) = self.users.clients.get_mut(&id) else { return };
        if client.waits_for != Some(number) {
            return;
        }
        client.hears(&operation.request, &outcome);
        let pause = client.pause();
        let now = self.world.now();
        self.trace.line(now, format_args!("client {id} is told #{number} {outcome:?}"));
        if let Outcome::Done(reply) = &outcome
            && reply.changed
        {
            let request = self.users.ids.get(&number).copied().unwrap_or(0);
            self.judge.acknowledged.acknowledge(request, reply.revision);
            self.quiet.last_write_done |= id == LAST_CLIENT;
        }
        if outcome != Outcome::Open {
            self.users.history.end(now, number, outcome);
        }
        if !(id == LAST_CLIENT && self.quiet.last_write_done) {
            self.world.after(pause, Event::Wants(id));
        }
    }

    pub(super) fn loses_patience(&mut self, number: usize) {
        let operation = &self.users.history.operations()[number];
        let (id, member) = (operation.client, operation.member);
        let Some(client) = self.users.clients.get_mut(&id) else { return };
        if client.waits_for != Some(number) {
            return;
        }
        client.hears(&operation.request, &Outcome::Open);
        let pause = client.pause();
        self.line(format_args!("client {id} loses its patience with #{number}"));
        let wait = self.distance();
        self.plan(member, wait, Step::GiveUp(number));
        self.world.after(pause, Event::Wants(id));
    }
}
