//! The clients, and each request on its way from a client to a member and back.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft::Error;
use clearlane_server::apply::EvaluatedCompares;
use clearlane_server::replica::{
    Completions, NO_DEADLINE, ROUND_LENGTH, ReplicaInput, RequestId, RequestOutcome as Heard,
};

use super::auth_clients::Login;
use super::user_requests::PermittedRead;
use super::{Cluster, Event, MemberEvent as Step, member_failed};
use crate::checkers::CheckResult;
use crate::clients::Client;
use crate::event_queue::{MILLISECOND, Micros};
use crate::history::{History, OperationOutcome, Request};
use crate::proposals::{Proposal, encode};
use crate::replies;
use crate::rng::Rng;
use crate::run_config::RunConfig;

/// Id of the client that does the final write; the others begin at 1.
pub(super) const LAST_CLIENT: u64 = 0;

#[derive(Debug)]
pub(super) enum RequestWaiter {
    Operation(usize),
    KeepAlive {
        lease: i64,
        since: Micros,
    },
    LeaseOp {
        is_revoke: bool,
    },
    /// A change of users or roles; `entry` is the id under which it was proposed.
    AuthOp {
        entry: Option<u64>,
    },
    /// A read index, in front of the comparison of a password.
    Login(Login),
    /// The entry that assigns a token, and the auth revision at which the password was right.
    Token {
        login: Login,
        revision: u64,
    },
    /// A read index, for the entry of the operation's token.
    TokenWait(usize),
    /// A read index, in front of a write that names no user although users count.
    NoUser(usize, Box<InternalRaftRequest>),
    /// A read index that should have come first.
    LateWait(Box<PermittedRead>),
    /// A read index, in front of a report to a member with a wiped disk.
    FirstStart {
        asking: u64,
        term: u64,
    },
    Ignored,
}

impl RequestWaiter {
    fn operation(&self) -> Option<usize> {
        match self {
            RequestWaiter::Operation(operation)
            | RequestWaiter::TokenWait(operation)
            | RequestWaiter::NoUser(operation, _) => Some(*operation),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct ClientPool {
    pub(super) clients: BTreeMap<u64, Client>,
    pub(super) history: History,
    /// By member and request.
    waiters: BTreeMap<(u64, RequestId), RequestWaiter>,
    /// The id under which each operation was proposed.
    pub(super) proposal_ids: BTreeMap<usize, u64>,
    pub(super) rng: Rng,
}

impl ClientPool {
    pub(super) fn new(config: &RunConfig, rng: &mut Rng) -> ClientPool {
        let client = |id| (id, Client::new(id, config.client_config, rng.split()));
        ClientPool {
            clients: (1..=config.clients).map(client).collect(),
            history: History::default(),
            waiters: BTreeMap::new(),
            proposal_ids: BTreeMap::new(),
            rng: rng.split(),
        }
    }

    /// Returns the operations that get no response because the member has crashed.
    pub(super) fn remove_requests_of(&mut self, member: u64) -> Vec<usize> {
        let lost = self.waiters.extract_if(.., |(at, _), _| *at == member);
        let mut lost: Vec<usize> = lost.filter_map(|(_, waiter)| waiter.operation()).collect();
        lost.sort_unstable();
        lost
    }

    pub(super) fn requests_at(&self, member: u64) -> Vec<RequestId> {
        self.waiters.keys().filter(|(at, _)| *at == member).map(|(_, request)| *request).collect()
    }

    /// Returns whether the request revokes a lease.
    pub(super) fn on_proposed(&mut self, member: u64, request: RequestId, id: u64) -> bool {
        match self.waiters.get_mut(&(member, request)) {
            Some(RequestWaiter::Operation(operation)) => {
                self.proposal_ids.insert(*operation, id);
                false
            }
            Some(RequestWaiter::LeaseOp { is_revoke }) => *is_revoke,
            Some(RequestWaiter::AuthOp { entry }) => {
                *entry = Some(id);
                false
            }
            _ => false,
        }
    }
}

impl Cluster {
    pub(super) fn plan_clients(&mut self) {
        let ids: Vec<u64> = self.clients.clients.keys().copied().collect();
        for id in ids {
            let wait = self.clients.rng.between(0, 1_000_000);
            self.events.schedule(wait, Event::ClientRequest(id));
        }
    }

    fn client_delay(&mut self) -> Micros {
        self.clients.rng.log_uniform(50, 2 * MILLISECOND)
    }

    pub(super) fn send_client_request(&mut self, id: u64) {
        if self.quiet.clients_stopped && id != LAST_CLIENT {
            return;
        }
        // Running or not.
        let members = self.machines.values().filter(|machine| !machine.is_removed);
        let members: Vec<u64> = members.map(|machine| machine.id).collect();
        let Some(client) = self.clients.clients.get_mut(&id) else { return };
        let Some(member) = client.choose_member(&members) else {
            self.events.schedule(100 * MILLISECOND, Event::ClientRequest(id));
            return;
        };
        let request = match id {
            LAST_CLIENT => client.final_put(),
            _ => client.request(),
        };
        let timeout = client.config.timeout;
        let now = self.events.now();
        let operation = self.clients.history.operations.len();
        client.pending_operation = Some(operation);
        if let Some(auth) = &mut self.auth {
            auth.choose_credentials(operation, id);
            self.checker.auth.on_invoke(operation);
        }
        let line = format_args!("client {id} wants #{operation} from {member}: {request:?}");
        self.trace.record(now, line);
        self.clients.history.invoke(now, id, member, request);
        let wait = self.client_delay();
        self.events.schedule(wait, Event::RequestArrives(operation));
        self.events.schedule(timeout, Event::ClientTimeout(operation));
    }

    pub(super) fn handle_client_request(&mut self, number: usize) -> CheckResult {
        let operation = &self.clients.history.operations[number];
        let (id, request) = (operation.member, operation.request.clone());
        let Some(running) = self.running(id) else {
            self.send_reply(number, OperationOutcome::Rejected);
            return Ok(());
        };
        if self.auth.is_some() {
            return self.serve_user(number);
        }
        let waiter = RequestWaiter::Operation(number);
        match &request {
            Request::Read { key, serializable } if *serializable || running.can_read_locally => {
                let store = &running.applier.store;
                let outcome = replies::read(&*store.begin_read(), key.as_deref(), *serializable);
                self.metrics.sole_voter_reads += u64::from(!*serializable);
                self.send_reply(number, outcome.map_err(member_failed(id))?);
            }
            Request::Read { .. } => self.submit(id, waiter, ReplicaInput::ReadIndex),
            _ => {
                let request = encode(&Proposal::Client(request));
                self.propose(id, waiter, request);
            }
        }
        Ok(())
    }

    /// The compares of a transaction are evaluated at this member alone, at once and when it is
    /// applied: all members must come to the same state.
    pub(super) fn propose(&mut self, id: u64, waiter: RequestWaiter, request: InternalRaftRequest) {
        let Some(running) = self.running(id) else { return };
        let compares = request.txn.as_ref().and_then(|txn| {
            let read = running.applier.store.begin_read();
            EvaluatedCompares::evaluate(&*read, &txn.compare).ok().map(Box::new)
        });
        let request = Box::new(request);
        self.submit(id, waiter, |of| ReplicaInput::Propose { request, compares, of });
    }

    /// Does nothing if the member does not run.
    pub(super) fn submit(
        &mut self,
        id: u64,
        waiter: RequestWaiter,
        input: impl FnOnce(RequestId) -> ReplicaInput,
    ) {
        let Some(running) = self.running_mut(id) else { return };
        let (request, _) = running.requests.submit(NO_DEADLINE, input);
        self.clients.waiters.insert((id, request), waiter);
        self.plan_net(id);
    }

    pub(super) fn cancel_request(&mut self, id: u64, operation: usize) {
        let mut waiters = self.clients.waiters.iter();
        let waiter = waiters.find(|(_, waiter)| waiter.operation() == Some(operation));
        let Some((&(member, request), _)) = waiter else { return };
        self.clients.waiters.remove(&(member, request));
        if let Some(running) = self.running_mut(id) {
            running.requests.release(request);
            self.plan_net(id);
        }
    }

    fn plan_net(&mut self, id: u64) {
        let Some(running) = self.running_mut(id) else { return };
        if !std::mem::replace(&mut running.is_net_planned, true) {
            let wait = self.rng.log_uniform(1, 300);
            self.plan(id, wait, Step::PollNet);
        }
    }

    pub(super) fn complete(&mut self, id: u64, completions: Completions) {
        if let Some(running) = self.running_mut(id) {
            running.completions.extend(completions);
            self.plan_net(id);
        }
    }

    /// A turn of the net thread: submits requests to the raft loop, and takes outcomes.
    pub(super) fn poll_net(&mut self, id: u64, is_round: bool) -> CheckResult {
        let now = self.events.now();
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let time_ns = machine.clock.elapsed(now).as_nanos() as u64;
        let Some(running) = &mut machine.running else { return Ok(()) };
        match is_round {
            true => running.requests.next_round(time_ns),
            false => running.is_net_planned = false,
        }
        running.requests.complete(std::mem::take(&mut running.completions));
        running.raft_loop_events.extend(running.requests.drain_inputs());
        let mut done = Vec::new();
        for request in self.clients.requests_at(id) {
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
            self.plan(id, ROUND_LENGTH.as_micros() as u64, Step::CheckTimeouts);
        }
        self.plan_poll(id);
        for (request, outcome) in done {
            if let Some(waiter) = self.clients.waiters.remove(&(id, request)) {
                self.on_request_outcome(id, waiter, outcome)?;
            }
        }
        Ok(())
    }

    fn on_request_outcome(
        &mut self,
        id: u64,
        waiter: RequestWaiter,
        outcome: Heard,
    ) -> CheckResult {
        if let Heard::NotProposed(error @ Error::Fatal(_)) = &outcome {
            return Err(member_failed(id)(error));
        }
        let number = match waiter {
            RequestWaiter::Operation(number) => number,
            RequestWaiter::KeepAlive { lease, since } => {
                let may = matches!(outcome, Heard::ReadReady(_));
                self.on_keep_alive(id, (lease, since), may);
                return Ok(());
            }
            RequestWaiter::FirstStart { asking, term } => {
                if matches!(outcome, Heard::ReadReady(_)) {
                    self.report_to_wiped(id, asking, Some(term));
                }
                return Ok(());
            }
            RequestWaiter::LeaseOp { .. } | RequestWaiter::Ignored => return Ok(()),
            other => return self.on_auth_outcome(id, other, outcome),
        };
        if self.auth.is_some() && matches!(outcome, Heard::ReadReady(_)) {
            return self.begin_user_step(id, number);
        }
        let request = &self.clients.history.operations[number].request;
        let outcome = match (outcome, request) {
            (Heard::ReadReady(_), Request::Read { key, .. }) => {
                let Some(running) = self.running(id) else { return Ok(()) };
                let read = running.applier.store.begin_read();
                let outcome = replies::read(&*read, key.as_deref(), false);
                outcome.map_err(member_failed(id))?
            }
            (Heard::Applied(Ok(reply)), _) => {
                OperationOutcome::Completed(replies::to_reply(request, &reply))
            }
            (Heard::TimedOut | Heard::DeadlineExceeded, _) => OperationOutcome::Unknown,
            _ => OperationOutcome::Rejected,
        };
        self.send_reply(number, outcome);
        Ok(())
    }

    pub(super) fn send_reply(&mut self, operation: usize, outcome: OperationOutcome) {
        let wait = self.client_delay();
        self.events.schedule(wait, Event::ReplyArrives(operation, outcome));
    }

    pub(super) fn break_connections(&mut self, id: u64) {
        for operation in self.clients.remove_requests_of(id) {
            self.send_reply(operation, OperationOutcome::Unknown);
        }
    }

    pub(super) fn on_reply(&mut self, number: usize, outcome: OperationOutcome) {
        let operation = &self.clients.history.operations[number];
        let id = operation.client;
        let Some(client) = self.clients.clients.get_mut(&id) else { return };
        if client.pending_operation != Some(number) {
            return;
        }
        client.on_outcome(&operation.request, &outcome);
        let pause = client.pause();
        let now = self.events.now();
        self.trace.record(now, format_args!("client {id} is told #{number} {outcome:?}"));
        if let OperationOutcome::Completed(reply) = &outcome
            && reply.changed
        {
            let request = self.clients.proposal_ids.get(&number).copied().unwrap_or(0);
            self.checker.acknowledged.push((request, reply.revision));
            self.quiet.last_write_done |= id == LAST_CLIENT;
        }
        if outcome != OperationOutcome::Unknown {
            self.clients.history.complete(now, number, outcome);
        }
        if !(id == LAST_CLIENT && self.quiet.last_write_done) {
            self.events.schedule(pause, Event::ClientRequest(id));
        }
    }

    pub(super) fn on_client_timeout(&mut self, number: usize) {
        let operation = &self.clients.history.operations[number];
        let (id, member) = (operation.client, operation.member);
        let Some(client) = self.clients.clients.get_mut(&id) else { return };
        if client.pending_operation != Some(number) {
            return;
        }
        client.on_outcome(&operation.request, &OperationOutcome::Unknown);
        let pause = client.pause();
        self.trace_line(format_args!("client {id} stops waiting for #{number}"));
        let wait = self.client_delay();
        self.plan(member, wait, Step::CancelRequest(number));
        self.events.schedule(pause, Event::ClientRequest(id));
    }
}
