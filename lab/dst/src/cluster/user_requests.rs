//! What the server does in front of a request of a user, and behind a read, as steps that others
//! come between.
//!
//! ```text
//!   write   token applied here? ─▶ name the user ─▶ propose
//!   read    read index ─▶ token? ─▶ user, permission ─▶ open and read ─▶ compare the auth revision
//! ```
//!
//! The steps are those of `clearlane_server`'s `auth.rs`, which are async functions of threads.

use std::sync::Arc;

use clearlane_auth::simple_tokens::SimpleToken;
use clearlane_auth::{AuthInfo, AuthRejection, TokenProvider};
use clearlane_server::replica::{ReplicaInput, RequestOutcome as Heard};

use super::client_pool::RequestWaiter;
use super::{Cluster, MemberEvent as Step, member_failed};
use crate::auth_model::Access;
use crate::bugs::Bug;
use crate::checkers::auth::UserRead;
use crate::checkers::{CheckResult, Violation};
use crate::event_queue::MILLISECOND;
use crate::history::{OperationOutcome, Request};
use crate::proposals::{Proposal, encode, needs_of};
use crate::replies;

#[derive(Clone, Debug)]
pub(super) enum Credentials {
    None,
    Certificate(String),
    Token(String),
}

/// Under which conditions a read was permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// Authentication was disabled.
    Disabled,
    /// The auth revision of the check.
    At(u64),
}

/// A read between its steps.
#[derive(Debug)]
pub(super) struct PermittedRead {
    read: UserRead,
    admission: Admission,
    outcome: OperationOutcome,
}

impl Cluster {
    fn request(&self, number: usize) -> (u64, Request) {
        let operation = &self.clients.history.operations[number];
        (operation.member, operation.request.clone())
    }

    fn credentials(&self, number: usize) -> Credentials {
        let found = self.auth.as_ref().and_then(|auth| auth.credentials.get(&number));
        found.cloned().unwrap_or(Credentials::None)
    }

    pub(super) fn serve_user(&mut self, number: usize) -> CheckResult {
        let (id, request) = self.request(number);
        let Some(running) = self.running(id) else { return Ok(()) };
        let is_local = running.can_read_locally;
        match request {
            Request::Read { serializable, .. } if serializable || is_local => {
                self.metrics.sole_voter_reads += u64::from(!serializable);
                self.begin_user_step(id, number)
            }
            Request::Read { .. } if self.config.bug == Some(Bug::AuthorizedBeforeWait) => {
                self.begin_user_step(id, number)
            }
            Request::Read { .. } => {
                self.submit(id, RequestWaiter::Operation(number), ReplicaInput::ReadIndex);
                Ok(())
            }
            _ => self.begin_user_step(id, number),
        }
    }

    /// Waits for the entry of the request's token, if this member is behind.
    pub(super) fn begin_user_step(&mut self, id: u64, number: usize) -> CheckResult {
        let Some(running) = self.running(id) else { return Ok(()) };
        if running.applier.auth.is_enabled()
            && let Credentials::Token(text) = self.credentials(number)
            && let Some(token) = SimpleToken::parse(&text)
            && token.index > running.applier.applied_position.index
        {
            self.metrics.token_waits += 1;
            self.submit(id, RequestWaiter::TokenWait(number), ReplicaInput::ReadIndex);
            return Ok(());
        }
        self.end_user_step(id, number)
    }

    pub(super) fn end_user_step(&mut self, id: u64, number: usize) -> CheckResult {
        match self.request(number) {
            (_, Request::Read { .. }) => self.authorize(id, number),
            (_, request) => {
                let header = match self.header_for(id, &self.credentials(number))? {
                    Ok(header) => header,
                    Err(refused) => {
                        self.refuse(number, refused);
                        return Ok(());
                    }
                };
                let mut entry = encode(&Proposal::Client(request));
                entry.header = header;
                if entry.header.is_none() && self.current_admission(id) != Admission::Disabled {
                    // This member may not know yet that authentication was disabled.
                    let waiter = RequestWaiter::NoUser(number, Box::new(entry));
                    self.submit(id, waiter, ReplicaInput::ReadIndex);
                } else {
                    self.propose(id, RequestWaiter::Operation(number), entry);
                }
                Ok(())
            }
        }
    }

    /// Of a request that is one step of another.
    pub(super) fn on_auth_outcome(
        &mut self,
        id: u64,
        waiter: RequestWaiter,
        outcome: Heard,
    ) -> CheckResult {
        let is_ready = matches!(outcome, Heard::ReadReady(_));
        match waiter {
            RequestWaiter::AuthOp { entry } => self.on_auth_op(entry, &outcome),
            RequestWaiter::Login(login) if is_ready => self.check_password(id, login),
            RequestWaiter::Token { login, revision } => {
                return self.on_token(id, (login, revision), outcome);
            }
            RequestWaiter::TokenWait(number) if is_ready => return self.end_user_step(id, number),
            RequestWaiter::TokenWait(number) => self.send_reply(number, OperationOutcome::Rejected),
            RequestWaiter::LateWait(mut read) if is_ready => {
                read.admission = self.current_admission(id);
                self.plan_view(id, read);
            }
            RequestWaiter::NoUser(number, entry) if is_ready => match self.current_admission(id) {
                Admission::Disabled => {
                    self.propose(id, RequestWaiter::Operation(number), *entry);
                }
                Admission::At(_) => self.refuse(number, AuthRejection::UserEmpty),
            },
            RequestWaiter::NoUser(number, _) => {
                self.send_reply(number, OperationOutcome::Rejected);
            }
            RequestWaiter::LateWait(read) => {
                self.send_reply(read.read.operation, OperationOutcome::Rejected);
            }
            _ => {}
        }
        Ok(())
    }

    fn refuse(&mut self, number: usize, refused: AuthRejection) {
        self.trace_line(format_args!("#{number} is refused: {refused}"));
        self.checker.auth.refused_requests += 1;
        self.send_reply(number, OperationOutcome::Rejected);
    }

    fn authorize(&mut self, id: u64, number: usize) -> CheckResult {
        let user = match self.find_user(id, &self.credentials(number))? {
            Ok(user) => user,
            Err(refused) => {
                self.refuse(number, refused);
                return Ok(());
            }
        };
        let (_, request) = self.request(number);
        let Some((Access::Read, span)) = needs_of(&request).into_iter().next() else {
            return Ok(());
        };
        let Some(running) = self.running(id) else { return Ok(()) };
        let (auth, authorized_at) =
            (Arc::clone(&running.applier.auth), running.applier.applied_position.index);
        let check = |state: &clearlane_auth::AuthState| {
            state.checker(user.as_ref()).read(&span.key, &span.range_end)
        };
        if let Err(refused) = auth.with_state(check) {
            self.refuse(number, refused);
            return Ok(());
        }
        let permitted = PermittedRead {
            admission: match &user {
                Some(user) => Admission::At(user.revision),
                None => Admission::Disabled,
            },
            read: UserRead {
                operation: number,
                user: user.map(|user| user.username.as_ref().to_owned()),
                span,
                is_linearizable: !request.is_serializable(),
                authorized_at,
                viewed_at: 0,
                answered_at: 0,
            },
            outcome: OperationOutcome::Unknown,
        };
        if self.config.bug == Some(Bug::AuthorizedBeforeWait) && !request.is_serializable() {
            self.submit(id, RequestWaiter::LateWait(Box::new(permitted)), ReplicaInput::ReadIndex);
            return Ok(());
        }
        self.plan_view(id, Box::new(permitted));
        Ok(())
    }

    pub(super) fn plan_view(&mut self, id: u64, permitted: Box<PermittedRead>) {
        let wait = self.auth_delay();
        self.plan(id, wait, Step::ReadForUser(permitted));
    }

    fn auth_delay(&mut self) -> u64 {
        self.auth.as_mut().map_or(0, |auth| auth.rng.log_uniform(1, 50 * MILLISECOND))
    }

    /// If users count, each request of a read has a user: one without is refused by the check.
    fn current_admission(&self, id: u64) -> Admission {
        let auth = self.running(id).map(|running| &running.applier.auth);
        match auth.filter(|auth| auth.is_enabled()) {
            Some(auth) => Admission::At(auth.with_state(|state| state.revision)),
            None => Admission::Disabled,
        }
    }

    pub(super) fn read_for_user(&mut self, id: u64, mut it: Box<PermittedRead>) -> CheckResult {
        let Request::Read { key, serializable } = self.request(it.read.operation).1 else {
            return Ok(());
        };
        let Some(running) = self.running(id) else { return Ok(()) };
        let view = running.applier.store.begin_read();
        it.read.viewed_at = running.applier.applied_position.index;
        let outcome = replies::read(&*view, key.as_deref(), serializable);
        it.outcome = outcome.map_err(member_failed(id))?;
        drop(view);
        let wait = self.auth_delay();
        self.plan(id, wait, Step::CompareAuthRevision(it));
        Ok(())
    }

    pub(super) fn compare_auth_revision(&mut self, id: u64, mut it: PermittedRead) -> CheckResult {
        let Some(running) = self.running(id) else { return Ok(()) };
        it.read.answered_at = running.applier.applied_position.index;
        let is_compared = self.config.bug != Some(Bug::RevisionNotCompared);
        if is_compared && self.current_admission(id) != it.admission {
            self.refuse(it.read.operation, AuthRejection::OldRevision);
            return Ok(());
        }
        if it.outcome != OperationOutcome::Rejected {
            self.checker.auth.check_read(id, &it.read, &self.checker.model)?;
        }
        self.send_reply(it.read.operation, it.outcome);
        Ok(())
    }

    /// `None` if users do not count, or none is named.
    pub(super) fn find_user(
        &mut self,
        id: u64,
        credentials: &Credentials,
    ) -> Result<Result<Option<AuthInfo>, AuthRejection>, Violation> {
        let now = self.events.now();
        let Some(machine) = self.machines.get(&id) else { return Ok(Ok(None)) };
        let Some(applier) = machine.applier().filter(|applier| applier.auth.is_enabled()) else {
            return Ok(Ok(None));
        };
        let revision = applier.auth.with_state(|state| state.revision);
        let username = match credentials {
            Credentials::None => return Ok(Ok(None)),
            Credentials::Certificate(name) => name.as_str().into(),
            Credentials::Token(text) => {
                let (Some(token), TokenProvider::Simple(tokens)) =
                    (SimpleToken::parse(text), applier.auth.tokens())
                else {
                    return Ok(Err(AuthRejection::InvalidToken));
                };
                let Some(user) = tokens.use_token(token, machine.clock.elapsed(now)) else {
                    return Ok(Err(AuthRejection::InvalidToken));
                };
                let at = (id, applier.applied_position.index);
                let letters = text.split('.').next().unwrap_or_default();
                let token = (letters, token.index);
                self.checker.auth.check_token(at, token, &user, &self.checker.model)?;
                user
            }
        };
        Ok(Ok(Some(AuthInfo { username, revision })))
    }

    /// `is_new`: the store was opened, or users have changed.
    pub(super) fn check_auth(&self, id: u64, index: u64, is_new: bool) -> CheckResult {
        use crate::checkers::auth::{check_buckets, check_state};
        let Some(running) = self.running(id).filter(|_| self.auth.is_some()) else { return Ok(()) };
        let model = &self.checker.model;
        running.applier.auth.with_state(|state| check_state(id, index, state, model))?;
        if is_new {
            check_buckets(id, index, &*running.applier.store.begin_read(), model)?;
        }
        Ok(())
    }
}
