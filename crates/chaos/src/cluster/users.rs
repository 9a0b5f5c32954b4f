//! Clients: from a wish to the moment when somebody is told, or nobody ever is.

use std::collections::BTreeMap;

use clearlane_member::core::{Answer, Core, Reads};
use clearlane_raft_log::driver::Error;

use super::tenants::READERS;
use super::{Cluster, Event, Input, broken};
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

/// All clients, and what they wait for.
#[derive(Debug)]
pub(super) struct Users {
    pub(super) clients: BTreeMap<u64, Client>,
    pub(super) history: History,
    /// Where operations are, and under which id if they were proposed there.
    pending: BTreeMap<usize, (u64, Option<u64>)>,
    /// Operations by member and id.
    proposed: BTreeMap<(u64, u64), usize>,
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
            pending: BTreeMap::new(),
            proposed: BTreeMap::new(),
            ids: BTreeMap::new(),
            chance: chance.part(),
        }
    }

    /// Whom an operation was sent to.
    pub(super) fn member_of(&self, operation: usize) -> u64 {
        self.history.operations()[operation].member
    }

    /// Nobody waits any more.
    pub(super) fn give_up(&mut self, operation: usize, core: &mut Core) {
        let Some((member, id)) = self.pending.remove(&operation) else { return };
        match id {
            Some(id) => {
                self.proposed.remove(&(member, id));
                core.give_up(id);
            }
            None => drop(core.cancel_read(operation as u64)),
        }
    }

    /// The member has crashed: what was asked there is answered by nobody.
    pub(super) fn crashed(&mut self, member: u64) -> Vec<usize> {
        let lost = self.pending.iter().filter(|(_, (at, _))| *at == member);
        let lost: Vec<usize> = lost.map(|(operation, _)| *operation).collect();
        for operation in &lost {
            self.pending.remove(operation);
        }
        self.proposed.retain(|(at, _), _| *at != member);
        lost
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
        let running = self.machines.get_mut(&id).and_then(|machine| machine.running.as_mut());
        let Some(running) = running else {
            self.tell(number, Outcome::Refused);
            return Ok(());
        };
        let core = &mut running.core;
        match &request {
            Request::Read { key, serializable: true } => {
                let reply = replies::read(&*core.store().read(), key.as_deref(), true);
                let reply = reply.map_err(|error| broken(id, &error))?;
                self.tell(number, reply.map_or(Outcome::Refused, Outcome::Done));
            }
            Request::Read { .. } => match core.read(number as u64) {
                Ok(()) => drop(self.users.pending.insert(number, (id, None))),
                Err(_) => self.tell(number, Outcome::Refused),
            },
            _ => match core.propose(encode(&Proposal::Client(request))) {
                Ok(request) => {
                    self.users.pending.insert(number, (id, Some(request)));
                    self.users.proposed.insert((id, request), number);
                    self.users.ids.insert(number, request);
                }
                Err(error @ Error::Stopped(_)) => return Err(broken(id, &error)),
                Err(_) => self.tell(number, Outcome::Refused),
            },
        }
        self.plan_poll(id);
        Ok(())
    }

    /// Readers may look now, or are told that they may not.
    pub(super) fn readers_hear(&mut self, id: u64, reads: Reads) -> Verdict {
        let (readers, may_look) = match reads {
            Reads::Go(readers) => (readers, true),
            Reads::Fail(_, readers) => (readers, false),
        };
        for reader in readers {
            if reader >= READERS {
                self.tenant_hears(id, reader, may_look)?;
                continue;
            }
            let number = reader as usize;
            self.users.pending.remove(&number);
            let request = &self.users.history.operations()[number].request;
            let Request::Read { key, .. } = request else { continue };
            let core = self.machines.get(&id).and_then(Machine::core);
            let outcome = match core.filter(|_| may_look) {
                Some(core) => {
                    let reply = replies::read(&*core.store().read(), key.as_deref(), false);
                    let reply = reply.map_err(|error| broken(id, &error))?;
                    reply.map_or(Outcome::Refused, Outcome::Done)
                }
                None => Outcome::Refused,
            };
            self.tell(number, outcome);
        }
        Ok(())
    }

    /// A proposal was applied where it was made.
    pub(super) fn answered(&mut self, id: u64, request: u64, answer: Answer) {
        let Answer::Request(answer) = answer else { return };
        let Some(number) = self.users.proposed.remove(&(id, request)) else { return };
        self.users.pending.remove(&number);
        let asked = &self.users.history.operations()[number].request;
        let outcome = match answer {
            Ok(reply) => Outcome::Done(replies::of(asked, &reply)),
            Err(_) => Outcome::Refused,
        };
        self.tell(number, outcome);
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
        self.plan(member, wait, Input::GiveUp(number));
        self.world.after(pause, Event::Wants(id));
    }
}
