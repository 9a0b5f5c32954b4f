//! An administrator that changes users, roles and passwords, and clients that get tokens.
//!
//! The administrator starts at a random time. Its first changes follow each other quickly: they
//! create roles and users, and enable authentication. After them it makes random changes.
//!
//! A client gets a token by the steps of `Server::authenticate` in the crate `server`, with other
//! events between them: wait for a ReadIndex request, compare the password, propose, compare the
//! auth revision.

use std::collections::{BTreeMap, VecDeque};

use clearlane_auth::AuthRejection;
use clearlane_auth::simple_tokens::SimpleToken;
use clearlane_proto::etcdserverpb::RequestHeader;
use clearlane_raft::read_index::ReadNeed;
use clearlane_replica::RequestOutcome as Heard;
use clearlane_replica::apply::AppliedResponse;

use super::Cluster;
use super::client_pool::RequestWaiter;
use super::user_requests::Credentials;
use crate::auth_model::{AuthOp, KeySpan, ROOT};
use crate::auth_proposals::{PASSWORDS, hash_of, may_do};
use crate::checkers::CheckResult;
use crate::checkers::auth::check_login;
use crate::event_queue::{MILLISECOND, Micros, SECOND};
use crate::lease_model::LeaseOp;
use crate::proposals::{Proposal, encode};
use crate::rng::Rng;

const USERS: [&str; 4] = ["alice", "bob", "carol", ROOT];
const ROLES: [&str; 4] = ["reader", "writer", "tenant", ROOT];
/// The ranges of keys that are granted. Four contain keys of the clients, one contains all keys of
/// the clients and the lease clients, and three contain keys of the lease clients.
const SPANS: [(&str, &str); 8] = [
    ("k", "l"),
    ("k1", "k4"),
    ("k2", ""),
    ("k3", "k9"),
    ("k", "\0"),
    ("m", "n"),
    ("m1", "m4"),
    ("m3", "m7"),
];

#[derive(Debug)]
pub(super) struct AuthClients {
    pause_max: Micros,
    pub(super) rng: Rng,
    /// The remaining first changes, in the order in which they are proposed.
    setup: VecDeque<AuthOp>,
    setup_member: Option<u64>,
    /// The newest token of each user, by user name. A token may be invalid.
    pub(super) tokens: BTreeMap<String, String>,
    logins: u64,
    /// The credentials of the client of an operation, by operation.
    pub(super) credentials: BTreeMap<usize, Credentials>,
}

/// The credentials of a client that logs in with a password.
#[derive(Clone, Debug)]
pub(super) struct Login {
    username: String,
    password: &'static str,
}

impl AuthClients {
    pub(super) fn new(mut rng: Rng) -> AuthClients {
        AuthClients {
            pause_max: rng.log_uniform(100 * MILLISECOND, 3 * SECOND),
            setup: setup(&mut rng),
            rng,
            setup_member: None,
            tokens: BTreeMap::new(),
            logins: 0,
            credentials: BTreeMap::new(),
        }
    }

    fn user(&mut self) -> String {
        self.rng.choose(&USERS).map(ToString::to_string).unwrap_or_default()
    }

    fn role(&mut self) -> String {
        self.rng.choose(&ROLES[..3]).map(ToString::to_string).unwrap_or_default()
    }

    fn span(&mut self) -> KeySpan {
        let (key, end) = self.rng.choose(&SPANS).copied().unwrap_or_default();
        KeySpan::new(key.as_bytes(), end.as_bytes())
    }

    fn hash(&mut self) -> String {
        hash_of(self.rng.choose(&PASSWORDS).copied().unwrap_or_default())
    }

    /// Chooses the credentials of an operation. The final client is root, because another user
    /// might have no permission for the final write.
    pub(super) fn choose_credentials(&mut self, operation: usize, client: u64) {
        let name = match client {
            super::client_pool::LAST_CLIENT => ROOT,
            _ => USERS[client as usize % USERS.len()],
        };
        let credentials = match client {
            super::client_pool::LAST_CLIENT => Credentials::Certificate(name.to_owned()),
            _ if self.rng.permille(500) => match self.tokens.get(name) {
                Some(token) => Credentials::Token(token.clone()),
                None => Credentials::None,
            },
            _ => Credentials::Certificate(name.to_owned()),
        };
        self.credentials.insert(operation, credentials);
    }

    /// Lease clients are never root. So a revocation by root is always from the leader.
    pub(super) fn lease_user(&mut self) -> Credentials {
        Credentials::Certificate(self.rng.choose(&USERS[..3]).map_or("", |name| *name).to_owned())
    }
}

fn setup(rng: &mut Rng) -> VecDeque<AuthOp> {
    let mut ops = Vec::new();
    for (role, span) in [("reader", SPANS[0]), ("writer", SPANS[4]), ("tenant", SPANS[5])] {
        ops.push(AuthOp::AddRole(role.to_owned()));
        let span = KeySpan::new(span.0.as_bytes(), span.1.as_bytes());
        ops.push(AuthOp::Grant { role: role.to_owned(), span, may_read: true, may_write: true });
    }
    for (name, role) in [("alice", "writer"), ("bob", "reader"), ("carol", "tenant")] {
        let hash = (!rng.permille(100)).then(|| hash_of(PASSWORDS[0]));
        ops.push(AuthOp::AddUser { name: name.to_owned(), hash });
        ops.push(AuthOp::GrantRole { user: name.to_owned(), role: role.to_owned() });
    }
    ops.push(AuthOp::AddUser { name: ROOT.to_owned(), hash: Some(hash_of(PASSWORDS[0])) });
    ops.push(AuthOp::GrantRole { user: ROOT.to_owned(), role: ROOT.to_owned() });
    ops.push(AuthOp::Enable);
    ops.into()
}

impl Cluster {
    pub(super) fn plan_auth_clients(&mut self) {
        if let Some(auth) = &mut self.auth {
            let wait = SECOND + auth.rng.log_uniform(MILLISECOND, 8 * SECOND);
            self.events.plan(wait, Cluster::run_auth_client);
        }
    }

    pub(super) fn run_auth_client(&mut self) {
        if self.quiet.clients_stopped {
            return;
        }
        let up = self.up();
        let Some(auth) = &mut self.auth else { return };
        let pause = match auth.setup.is_empty() {
            true => auth.rng.log_uniform(MILLISECOND, auth.pause_max),
            false => auth.rng.log_uniform(100, 5 * MILLISECOND),
        };
        let member = auth.setup_member.filter(|id| up.contains(id) && !auth.setup.is_empty());
        let member = member.or_else(|| auth.rng.choose(&up).copied());
        auth.setup_member = member;
        self.events.plan(pause, Cluster::run_auth_client);
        let Some(member) = member else { return };
        if auth.setup.is_empty() && auth.rng.permille(200) {
            return self.begin_login(member);
        }
        let Some(op) = auth.setup.pop_front().or_else(|| self.random_auth_op(member)) else {
            return;
        };
        self.trace_line(format_args!("an administrator asks {member}: {op:?}"));
        let name = match self.auth.as_mut().is_some_and(|auth| auth.rng.permille(50)) {
            true => USERS[0],
            false => ROOT,
        };
        let mut request = encode(&Proposal::Auth(op));
        let credentials = Credentials::Certificate(name.to_owned());
        if let Ok(Ok(header)) = self.header_for(member, &credentials) {
            request.header = header;
            self.propose(member, RequestWaiter::AuthOp(None), request);
        }
    }

    /// Returns a random change, or `None` if the member is not running. Most changes are valid for
    /// the users and roles that the member has now.
    fn random_auth_op(&mut self, member: u64) -> Option<AuthOp> {
        let store = self.running(member).map(|running| running.applier.auth.state())?;
        let auth = self.auth.as_mut()?;
        let (name, role) = (auth.user(), auth.role());
        let is_root = name == ROOT;
        Some(match auth.rng.between(0, 99) {
            0..=19 => {
                let span = auth.span();
                let may = *auth.rng.choose(&[(true, true), (true, false), (false, true)])?;
                AuthOp::Grant { role, span, may_read: may.0, may_write: may.1 }
            }
            20..=31 => {
                let granted = store.permissions_of(&role).unwrap_or_default();
                let (key, end) = match auth.rng.choose(&granted) {
                    Some(found) if may_do(found).is_some() => {
                        (found.key.clone(), found.range_end.clone())
                    }
                    _ => ("k".into(), "l".into()),
                };
                AuthOp::Revoke { role, span: KeySpan::new(&key, &end) }
            }
            32..=51 => {
                AuthOp::GrantRole { user: name, role: if is_root { ROOT.into() } else { role } }
            }
            52..=59 => {
                let has = store.roles_of(&name).unwrap_or_default();
                AuthOp::RevokeRole {
                    role: auth.rng.choose(&has).cloned().unwrap_or(role),
                    user: name,
                }
            }
            60..=69 => {
                let hash = (!auth.rng.permille(100)).then(|| auth.hash());
                AuthOp::AddUser { name, hash }
            }
            70..=74 => AuthOp::DeleteUser(name),
            75..=81 => AuthOp::ChangePassword { name, hash: auth.hash() },
            82..=87 => AuthOp::AddRole(auth.rng.choose(&ROLES)?.to_string()),
            88..=90 => AuthOp::DeleteRole(auth.rng.choose(&ROLES)?.to_string()),
            91..=95 => AuthOp::Enable,
            _ => AuthOp::Disable,
        })
    }

    pub(super) fn on_auth_op(&mut self, entry: Option<u64>, outcome: &Heard) {
        let place = entry.and_then(|id| self.checker.model.applied_request(id));
        if let (Heard::Applied(Ok(_)), Some(place)) = (outcome, place) {
            self.metrics.auth_changes += 1;
            self.checker.auth.on_acknowledged(place.index);
        }
    }

    fn begin_login(&mut self, member: u64) {
        let Some(auth) = &mut self.auth else { return };
        let password = auth.rng.choose(&PASSWORDS).copied().unwrap_or_default();
        let login = Login { username: auth.user(), password };
        self.trace_line(format_args!("{} logs in at {member}", login.username));
        self.after_read_index(member, ReadNeed::Applied, None, |cluster, id| {
            cluster.check_password(id, login);
        });
    }

    /// Compares the password. If the password is correct, a delayed step proposes the token. The
    /// delay simulates the time of the comparison on another thread.
    pub(super) fn check_password(&mut self, id: u64, login: Login) {
        let Some(running) = self.running(id) else { return };
        let Ok(check) = running.applier.auth.password_check(&login.username) else { return };
        let Ok(revision) = check.run(login.password.as_bytes(), &mut || ()) else { return };
        let Some(auth) = &mut self.auth else { return };
        let wait = auth.rng.log_uniform(MILLISECOND, 200 * MILLISECOND);
        self.plan_step(id, wait, "has compared a password", move |cluster, id| {
            cluster.propose_login(id, login, revision);
        });
    }

    pub(super) fn propose_login(&mut self, id: u64, login: Login, revision: u64) {
        let Some(auth) = &mut self.auth else { return };
        auth.logins += 1;
        let op = AuthOp::Authenticate {
            name: login.username.clone(),
            letters: format!("l{}", auth.logins),
        };
        self.propose(id, RequestWaiter::Token(login, revision), encode(&Proposal::Auth(op)));
    }

    pub(super) fn on_token(
        &mut self,
        id: u64,
        (login, revision): (Login, u64),
        outcome: Heard,
    ) -> CheckResult {
        let Heard::Applied(Ok(AppliedResponse::Authenticate(response))) = outcome else {
            return Ok(());
        };
        let Some(running) = self.running(id) else { return Ok(()) };
        if running.applier.auth.with_state(|state| state.revision) != revision {
            // The password may have been changed since it was compared.
            self.check_password(id, login);
            return Ok(());
        }
        let index = SimpleToken::parse(&response.token).map_or(0, |token| token.index);
        check_login(id, index, (&login.username, login.password), &self.checker.model)?;
        if let Some(auth) = &mut self.auth {
            auth.tokens.insert(login.username, response.token);
        }
        Ok(())
    }

    /// Proposes a lease operation. While authentication is enabled, the header of the proposal
    /// names a random user other than root.
    pub(super) fn propose_lease_op(&mut self, member: u64, op: LeaseOp) {
        let waiter = match op {
            LeaseOp::Revoke(_) => RequestWaiter::Revoke,
            _ => RequestWaiter::Ignored,
        };
        let mut request = encode(&Proposal::Lease(op));
        if let Some(credentials) = self.auth.as_mut().map(AuthClients::lease_user) {
            let Ok(Ok(header)) = self.header_for(member, &credentials) else { return };
            request.header = header;
        }
        self.propose(member, waiter, request);
    }

    /// Returns the header that the server would give to a proposal with these credentials. The
    /// header is `None` if authentication is disabled or there are no credentials. The inner error
    /// is the server's rejection of the credentials. The outer error is a broken rule.
    pub(super) fn header_for(
        &mut self,
        id: u64,
        credentials: &Credentials,
    ) -> Result<Result<Option<RequestHeader>, AuthRejection>, crate::checkers::Violation> {
        let user = self.find_user(id, credentials)?;
        Ok(user.map(|user| {
            user.map(|user| RequestHeader {
                username: user.username.as_ref().to_owned(),
                auth_revision: user.revision,
                ..RequestHeader::default()
            })
        }))
    }
}
