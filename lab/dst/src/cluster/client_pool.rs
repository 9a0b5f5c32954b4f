//! The clients, and the path of each request from a client to a member and back.
//!
//! ```text
//!   client ── delay ──▶ member: request queue ── network thread's turn ──▶ raft loop
//!   client ◀─ delay ─── member: outcome ◀────── network thread's turn ──── completions
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::task::{Context, Poll, Waker};

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft::Error;
use clearlane_raft::read_index::ReadNeed;
use clearlane_replica::apply::EvaluatedCompares;
use clearlane_replica::{
    Completions, NO_DEADLINE, ROUND_LENGTH, ReplicaInput, RequestId, RequestOutcome as Heard,
};

use super::auth_clients::Login;
use super::events::Outcome;
use super::{Cluster, member_failed};
use crate::bugs::Bug;
use crate::checkers::CheckResult;
use crate::clients::Client;
use crate::event_queue::{MILLISECOND, Micros};
use crate::history::{History, OperationOutcome, Request};
use crate::proposals::{Proposal, encode};
use crate::replies;
use crate::rng::Rng;
use crate::run_config::RunConfig;

/// The ID of the client that does the final write. The IDs of the other clients start at 1.
pub(super) const LAST_CLIENT: u64 = 0;

/// A step that a member takes later.
type Continuation = Box<dyn FnOnce(&mut Cluster, u64) -> CheckResult>;

pub(super) enum RequestWaiter {
    Operation(usize),
    /// A ReadIndex request. The first field is the operation that waits for it, if there is one.
    /// The second field is the member's next step, which is taken if the request is confirmed.
    /// Otherwise the operation is rejected.
    ReadIndex(Option<usize>, Continuation),
    /// A lease client's revocation.
    Revoke,
    /// A change of users or roles. The field is the request ID in its entry, or `None` before it is
    /// proposed.
    AuthOp(Option<u64>),
    /// A proposal to assign a token. The first field is the login of the user. The second field is
    /// the auth revision at which the password was compared.
    Token(Login, u64),
    Ignored,
}

impl fmt::Debug for RequestWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waiter of operation {:?}", self.operation())
    }
}

impl RequestWaiter {
    fn operation(&self) -> Option<usize> {
        match self {
            RequestWaiter::Operation(operation) => Some(*operation),
            RequestWaiter::ReadIndex(operation, _) => *operation,
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct ClientPool {
    pub(super) clients: BTreeMap<u64, Client>,
    pub(super) history: History,
    /// The waiters by member and request.
    waiters: BTreeMap<(u64, RequestId), RequestWaiter>,
    /// The request ID in the entry of an operation, by operation.
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

    /// Removes the waiters at a member that has crashed or left. Returns their operations, which
    /// get no response.
    pub(super) fn remove_requests_of(&mut self, member: u64) -> Vec<usize> {
        let lost = self.waiters.extract_if(.., |(at, _), _| *at == member);
        let mut lost: Vec<usize> = lost.filter_map(|(_, waiter)| waiter.operation()).collect();
        lost.sort_unstable();
        lost
    }

    pub(super) fn requests_at(&self, member: u64) -> Vec<RequestId> {
        self.waiters.keys().filter(|(at, _)| *at == member).map(|(_, request)| *request).collect()
    }

    /// Records the request ID `id` of a proposal. Returns whether the proposal is a lease client's
    /// revocation.
    pub(super) fn on_proposed(&mut self, member: u64, request: RequestId, id: u64) -> bool {
        match self.waiters.get_mut(&(member, request)) {
            Some(RequestWaiter::Operation(operation)) => {
                self.proposal_ids.insert(*operation, id);
                false
            }
            Some(RequestWaiter::AuthOp(entry)) => {
                *entry = Some(id);
                false
            }
            waiter => matches!(waiter, Some(RequestWaiter::Revoke)),
        }
    }
}

impl Cluster {
    pub(super) fn plan_clients(&mut self) {
        let ids: Vec<u64> = self.clients.clients.keys().copied().collect();
        for id in ids {
            let wait = self.clients.rng.between(0, 1_000_000);
            self.plan_client(id, wait);
        }
    }

    pub(super) fn plan_client(&mut self, id: u64, wait: Micros) {
        self.events.plan(wait, move |cluster| cluster.send_client_request(id));
    }

    fn client_delay(&mut self) -> Micros {
        self.clients.rng.log_uniform(50, 2 * MILLISECOND)
    }

    pub(super) fn send_client_request(&mut self, id: u64) {
        if self.quiet.clients_stopped && id != LAST_CLIENT {
            return;
        }
        let members: Vec<u64> = self.present().map(|machine| machine.id).collect();
        let Some(client) = self.clients.clients.get_mut(&id) else { return };
        let Some(member) = client.choose_member(&members) else {
            self.plan_client(id, 100 * MILLISECOND);
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
        self.events.plan_at(Some(member), wait, move |it| it.handle_client_request(operation));
        self.events.plan(timeout, move |cluster| cluster.on_client_timeout(operation));
    }

    pub(super) fn handle_client_request(&mut self, number: usize) -> CheckResult {
        let operation = &self.clients.history.operations[number];
        let (id, request) = (operation.member, &operation.request);
        let Some(running) = self.running(id) else {
            self.send_reply(number, OperationOutcome::Rejected);
            return Ok(());
        };
        match request {
            Request::Read { serializable, .. } if *serializable || running.can_read_locally => {
                self.metrics.sole_voter_reads += u64::from(!*serializable);
            }
            Request::Read { .. } if self.config.bug != Some(Bug::AuthorizedBeforeWait) => {
                self.submit_read(id, number);
                return Ok(());
            }
            _ => {}
        }
        self.serve(id, number)
    }

    /// Serves an operation at a member that is fresh enough for it.
    fn serve(&mut self, id: u64, number: usize) -> CheckResult {
        if self.auth.is_some() {
            return self.begin_user_step(id, number);
        }
        let Some(running) = self.running(id) else { return Ok(()) };
        match &self.clients.history.operations[number].request {
            Request::Read { key, serializable } => {
                let store = &running.applier.store;
                let outcome = replies::read(&*store.begin_read(), key.as_deref(), *serializable);
                self.send_reply(number, outcome.map_err(member_failed(id))?);
            }
            request => {
                let request = encode(&Proposal::Client(request.clone()));
                self.propose(id, RequestWaiter::Operation(number), request);
            }
        }
        Ok(())
    }

    /// Proposes a request. For a transaction, this member evaluates the compares before the
    /// proposal, and the other members do not. All members must still reach the same state when
    /// they apply the transaction.
    pub(super) fn propose(&mut self, id: u64, waiter: RequestWaiter, request: InternalRaftRequest) {
        let Some(running) = self.running(id) else { return };
        let compares = request.txn.as_ref().and_then(|txn| {
            let read = running.applier.store.begin_read();
            EvaluatedCompares::evaluate(&*read, &txn.compare).ok().map(Box::new)
        });
        let request = Box::new(request);
        self.submit(id, waiter, |of| ReplicaInput::Propose { request, compares, of });
    }

    /// Submits an input. Does nothing if the member is not running.
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

    /// Submits the ReadIndex request of an operation. When it is confirmed, the operation is
    /// served.
    fn submit_read(&mut self, id: u64, number: usize) {
        let read = |of| ReplicaInput::ReadIndex(of, ReadNeed::Applied);
        self.submit(id, RequestWaiter::Operation(number), read);
    }

    /// Submits a ReadIndex request. When the request is confirmed, the member calls `then`.
    /// `operation` is the operation that waits for the request, if there is one.
    pub(super) fn after_read_index<O: Outcome>(
        &mut self,
        id: u64,
        need: ReadNeed,
        operation: Option<usize>,
        then: impl FnOnce(&mut Cluster, u64) -> O + 'static,
    ) {
        let then = Box::new(|cluster: &mut Cluster, id| then(cluster, id).verdict());
        let waiter = RequestWaiter::ReadIndex(operation, then);
        self.submit(id, waiter, |of| ReplicaInput::ReadIndex(of, need));
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
            self.plan_step(id, wait, "looks after its clients", |cluster, id| {
                cluster.poll_net(id, false)
            });
        }
    }

    /// Plans the network thread's next search for requests that have timed out.
    pub(super) fn plan_timeouts(&mut self, id: u64, wait: Micros) {
        let words = "looks for requests that wait too long";
        self.plan_step(id, wait, words, |cluster, id| cluster.poll_net(id, true));
    }

    pub(super) fn complete(&mut self, id: u64, completions: Completions) {
        if let Some(running) = self.running_mut(id) {
            running.completions.extend(completions);
            self.plan_net(id);
        }
    }

    /// A turn of the network thread: it submits requests to the raft loop, and takes outcomes. If
    /// `is_round` is true, it also ends requests that have timed out.
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
            self.plan_timeouts(id, ROUND_LENGTH.as_micros() as u64);
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
        let is_ready = matches!(outcome, Heard::ReadReady(_));
        let number = match waiter {
            RequestWaiter::Operation(number) if is_ready => return self.serve(id, number),
            RequestWaiter::Operation(number) => number,
            RequestWaiter::ReadIndex(_, then) if is_ready => return then(self, id),
            RequestWaiter::ReadIndex(Some(number), _) => {
                self.send_reply(number, OperationOutcome::Rejected);
                return Ok(());
            }
            RequestWaiter::Token(login, revision) => {
                return self.on_token(id, (login, revision), outcome);
            }
            RequestWaiter::AuthOp(entry) => {
                self.on_auth_op(entry, &outcome);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let request = &self.clients.history.operations[number].request;
        let outcome = match outcome {
            Heard::Applied(Ok(reply)) => {
                OperationOutcome::Completed(replies::to_reply(request, &reply))
            }
            Heard::TimedOut | Heard::DeadlineExceeded => OperationOutcome::Unknown,
            _ => OperationOutcome::Rejected,
        };
        self.send_reply(number, outcome);
        Ok(())
    }

    pub(super) fn send_reply(&mut self, operation: usize, outcome: OperationOutcome) {
        let wait = self.client_delay();
        self.events.plan(wait, move |cluster| cluster.on_reply(operation, outcome));
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
            self.plan_client(id, pause);
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
        let words = "hears that a client gives up";
        self.plan_step(member, wait, words, move |it, id| it.cancel_request(id, number));
        self.plan_client(id, pause);
    }
}
