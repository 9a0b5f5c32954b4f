//! The steps of a request in runs with users. Other events of the simulation happen between the
//! steps. A request with a token waits until the member has applied the entry that assigned the
//! token. A linearizable read first waits for its ReadIndex request.
//!
//! ```text
//!   write   wait for the token's entry ─▶ add the user's name ─▶ propose
//!   read    ReadIndex request ─▶ wait for the token's entry ─▶ check the permission
//!             ─▶ open and read ─▶ check that the auth revision has not changed
//! ```
//!
//! In the server, these steps are async functions of the module `auth`.

use std::sync::Arc;

use clearlane_auth::simple_tokens::SimpleToken;
use clearlane_auth::{AuthInfo, AuthRejection, TokenProvider};
use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft::read_index::ReadNeed;

use super::client_pool::RequestWaiter;
use super::{Cluster, member_failed};
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

/// The state of authentication when a read was permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// Authentication was disabled.
    Disabled,
    /// Authentication was enabled. The value is the auth revision at which the permission was
    /// checked.
    At(u64),
}

/// A read that was permitted, before it is answered.
#[derive(Debug)]
struct PermittedRead {
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

    /// Starts a request. If this member has not applied the entry that assigned the request's
    /// token, the request first waits for that entry.
    pub(super) fn begin_user_step(&mut self, id: u64, number: usize) -> CheckResult {
        let Some(running) = self.running(id) else { return Ok(()) };
        if running.applier.auth.is_enabled()
            && let Credentials::Token(text) = self.credentials(number)
            && let Some(token) = SimpleToken::parse(&text)
            && token.index > running.applier.applied_position.index
        {
            self.metrics.token_waits += 1;
            self.after_read_index(id, ReadNeed::Applied, Some(number), move |cluster, id| {
                cluster.end_user_step(id, number)
            });
            return Ok(());
        }
        self.end_user_step(id, number)
    }

    fn end_user_step(&mut self, id: u64, number: usize) -> CheckResult {
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
                    // The request names no user, but authentication is enabled here. An entry that
                    // this member has not applied yet may have disabled it. So the request first
                    // waits for a ReadIndex request.
                    self.after_read_index(id, ReadNeed::Applied, Some(number), move |it, id| {
                        it.propose_without_user(id, number, entry);
                    });
                } else {
                    self.propose(id, RequestWaiter::Operation(number), entry);
                }
                Ok(())
            }
        }
    }

    fn propose_without_user(&mut self, id: u64, number: usize, entry: InternalRaftRequest) {
        match self.current_admission(id) {
            Admission::Disabled => self.propose(id, RequestWaiter::Operation(number), entry),
            Admission::At(_) => self.refuse(number, AuthRejection::UserEmpty),
        }
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
            // With this bug, the member waits for the ReadIndex request only after the permission
            // check.
            self.after_read_index(id, ReadNeed::Applied, Some(number), |cluster, id| {
                let admission = cluster.current_admission(id);
                cluster.plan_view(id, PermittedRead { admission, ..permitted });
            });
            return Ok(());
        }
        self.plan_view(id, permitted);
        Ok(())
    }

    fn plan_view(&mut self, id: u64, permitted: PermittedRead) {
        let wait = self.auth_delay();
        self.plan_step(id, wait, "reads for a user", |cluster, id| {
            cluster.read_for_user(id, permitted)
        });
    }

    fn auth_delay(&mut self) -> u64 {
        self.auth.as_mut().map_or(0, |auth| auth.rng.log_uniform(1, 50 * MILLISECOND))
    }

    /// Returns the member's present state of authentication. A permitted read is rejected if this
    /// state differs from the state in which it was permitted.
    fn current_admission(&self, id: u64) -> Admission {
        let auth = self.running(id).map(|running| &running.applier.auth);
        match auth.filter(|auth| auth.is_enabled()) {
            Some(auth) => Admission::At(auth.with_state(|state| state.revision)),
            None => Admission::Disabled,
        }
    }

    fn read_for_user(&mut self, id: u64, mut it: PermittedRead) -> CheckResult {
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
        self.plan_step(id, wait, "compares the auth revision", |cluster, id| {
            cluster.compare_auth_revision(id, it)
        });
        Ok(())
    }

    fn compare_auth_revision(&mut self, id: u64, mut it: PermittedRead) -> CheckResult {
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

    /// Returns the user of the credentials, and the auth revision. Returns `None` if authentication
    /// is disabled or there are no credentials. A token that is not valid is rejected. Fails if the
    /// member accepts a token that it should reject.
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

    /// Checks the member's users and roles after the entry `index`. If `is_new` is true, also
    /// checks the records in the store: it was just opened, or users or roles have changed.
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
