//! Identifies the user of a request and checks the user's permissions. This module contains the
//! steps before and after a read, and the functions behind the calls of the `Auth` service. In
//! etcd: `doSerialize` and `Authenticate`.
//!
//! ```text
//!   wait for freshness ─▶ authorize ─▶ open and read ─▶ check_admission ─▶ respond
//!                           user, permission               the auth revision has not changed
//! ```
//!
//! If users or roles change between `authorize` and `check_admission`, a read whose user was
//! checked fails, and the client must retry. The permission for a write is checked when the entry
//! is [applied](clearlane_replica::apply::auth). Before that, this module rejects a write only if
//! its token is invalid, or if it needs a user and names none. The crate `rpc` makes some further
//! checks in advance: for example, it requires the role `root` for a compaction, for a change of
//! members, and before it hashes a password.
//!
//! In the eras up to etcd 3.4, `authorize` takes the lock `batchTx`, and a check of a password
//! holds this lock for as long as bcrypt takes. So in these eras a separate thread waits for this
//! lock. The later eras check passwords in a pool of low priority.

pub mod credentials;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clearlane_auth::checks::{CheckResult, Checker};
use clearlane_auth::password::{self, HashError, PASSWORD_BYTES_MAX, SALT_BYTES};
use clearlane_auth::simple_tokens::{ALPHABET, LETTERS, SimpleToken};
use clearlane_auth::{AuthInfo, AuthRejection, AuthState, JwtError, TokenProvider};
use clearlane_contention::TaskLabel;
use clearlane_contention::YieldPoints;
use clearlane_proto::etcdserverpb::{
    AuthenticateRequest, AuthenticateResponse, InternalAuthenticateRequest, InternalRaftRequest,
};
use clearlane_replica::{Error, RequestError};
use ring::rand::{SecureRandom, SystemRandom};

use crate::auth::credentials::Credentials;
use crate::handle::Server;
use crate::observe::request_trace::{RequestTrace, Stage};
use crate::observe::task_labels::{AUTHENTICATE, PERMISSION};
use crate::read::executor::traced;
use crate::threads::JobKind;

/// Maximum number of jobs that wait for the password pool. If this many jobs wait, the last one
/// waits for about half a minute, with bcrypt's default cost on two cores.
const PASSWORDS_WAITING_MAX: usize = 1024;

/// The state of authentication when a read was permitted. It is compared with the state after the
/// read.
#[derive(Clone, Copy, Debug)]
#[must_use = "it is to be compared after the read"]
pub(crate) enum Admission {
    /// Authentication was disabled.
    Disabled,
    /// The read needs no permission for keys, and its request names either no user or a user whose
    /// auth revision is 0. So the read is not checked again.
    Unchecked,
    /// The auth revision for which the read was permitted: the revision of the request's
    /// [`AuthInfo`], or the current one if the user is checked later.
    At(u64),
}

/// Returns a function that bcrypt calls between its steps, so that requests that have arrived run
/// first.
fn offer_core() -> impl FnMut() {
    let mut steps = YieldPoints::default();
    move || steps.advance(YieldPoints::BYTES_PER_STEP)
}

impl Server {
    /// Checks whether the user may make this read. Call it once the member is fresh enough for the
    /// read.
    pub(crate) async fn authorize(
        &self,
        label: TaskLabel,
        trace: &mut RequestTrace,
        check: impl Fn(Checker<'_>) -> CheckResult + Send,
    ) -> Result<Admission, RequestError> {
        if !self.threads().auth().is_enabled() {
            return Ok(Admission::Disabled);
        }
        let user = self.auth_info().await?;
        let admission = match &user {
            Some(AuthInfo { revision: revision @ 1.., .. }) => Admission::At(*revision),
            _ => Admission::Unchecked,
        };
        if self.holds_batch_lock_to_check() {
            // etcd looks up the user under the lock. The look-up takes almost no time, so this code
            // only waits for the lock, and does nothing under it.
            let (store, number) = (self.threads().store(), trace.number);
            let wait = traced(*trace, Stage::Backend, move || {
                let _as = label.enter_numbered(number);
                store.with_auth_lock(&mut || ());
            });
            let ((), traced) = self.run_on_own_thread(wait).await?;
            *trace = traced;
        }
        self.threads().auth().with_state(|state| check(state.checker(user.as_ref())))?;
        Ok(admission)
    }

    /// Returns the admission for a read whose permission is checked after this call.
    pub(crate) fn current_admission(&self) -> Admission {
        if self.threads().auth().is_enabled() {
            Admission::At(self.auth_revision())
        } else {
            Admission::Disabled
        }
    }

    /// Fails if users or roles have changed since the check, or if authentication has been enabled
    /// since then. An [`Admission::Unchecked`] read never fails.
    pub(crate) fn check_admission(&self, admission: Admission) -> Result<(), RequestError> {
        let is_unchanged = match admission {
            Admission::Disabled => !self.threads().auth().is_enabled(),
            Admission::Unchecked => true,
            Admission::At(revision) => self.auth_revision() == revision,
        };
        if is_unchanged { Ok(()) } else { Err(AuthRejection::OldRevision.into()) }
    }

    /// Fails if `check` rejects the user of a request. Succeeds if authentication is disabled. This
    /// function is for requests that need no permission for keys.
    pub async fn require(
        &self,
        check: impl Fn(Checker<'_>) -> CheckResult + Send,
    ) -> Result<(), RequestError> {
        let mut trace = RequestTrace::start();
        let _no_data: Admission = self.authorize(*PERMISSION, &mut trace, check).await?;
        Ok(())
    }

    /// Checks whether the stream's user may watch these keys. Returns the user, or `None` if
    /// authentication is disabled.
    pub fn permit_watch(
        &self,
        key: &[u8],
        range_end: &[u8],
    ) -> Result<Option<Arc<str>>, AuthRejection> {
        if !self.threads().auth().is_enabled() {
            return Ok(None);
        }
        let user = self.find_user()?;
        let check = |state: &AuthState| state.checker(user.as_ref()).read(key, range_end);
        self.threads().auth().with_state(check)?;
        Ok(user.map(|user| user.username))
    }

    /// Returns whether a user that had permission to read these keys still has it.
    pub fn may_still_read(&self, user: &Arc<str>, key: &[u8], range_end: &[u8]) -> bool {
        self.threads().auth().with_state(|state| {
            let user = AuthInfo { username: Arc::clone(user), revision: state.revision };
            state.checker(Some(&user)).read(key, range_end).is_ok()
        })
    }

    /// Returns the auth revision. When an entry changes users or roles, the revision changes before
    /// any later entry is applied.
    pub fn auth_revision(&self) -> u64 {
        self.threads().auth().with_state(|state| state.revision)
    }

    /// Writes the user's name into the header of an entry, for the check when the entry is applied.
    /// Rejects a request that needs a user and has none, so that an anonymous client cannot fill
    /// the log.
    pub(crate) async fn name_user(
        &self,
        request: &mut InternalRaftRequest,
    ) -> Result<(), RequestError> {
        if let Some(AuthInfo { username, revision }) = self.auth_info().await? {
            let header = request.header.get_or_insert_default();
            header.username = username.as_ref().to_owned();
            header.auth_revision = revision;
        } else if self.needs_user(request) {
            // Authentication may have been disabled, and this member may not have applied this
            // change yet. So the request is rejected only if authentication is still enabled after
            // all acknowledged changes are applied here.
            self.linearizable_read_notify().await?;
            if self.threads().auth().is_enabled() {
                return Err(AuthRejection::UserEmpty.into());
            }
        }
        Ok(())
    }

    fn needs_user(&self, request: &InternalRaftRequest) -> bool {
        let no_keys = |_, _: &[u8]| None;
        self.threads().auth().with_state(|state| state.check_entry(request, &no_keys).is_err())
    }

    /// Returns the user, or `None` if the request names no user or authentication is disabled.
    /// Fails if the token is invalid.
    pub(crate) async fn auth_info(&self) -> Result<Option<AuthInfo>, RequestError> {
        self.wait_for_token().await?;
        Ok(self.find_user()?)
    }

    /// Waits until this member has applied the entry that assigned the request's token, if the
    /// member lags. A request with a forged token, whose index may be in the future, waits only for
    /// entries that are already committed.
    pub async fn wait_for_token(&self) -> Result<(), RequestError> {
        let auth = self.threads().auth();
        let (Credentials::Token(text), TokenProvider::Simple(_), true) =
            (self.credentials(), auth.tokens(), auth.is_enabled())
        else {
            return Ok(());
        };
        let is_behind = |token: SimpleToken<'_>| token.index > self.threads().status().applied();
        if SimpleToken::parse(text).is_some_and(is_behind) {
            Box::pin(self.linearizable_read_notify()).await?;
        }
        Ok(())
    }

    fn find_user(&self) -> Result<Option<AuthInfo>, AuthRejection> {
        let auth = self.threads().auth();
        if !auth.is_enabled() {
            return Ok(None);
        }
        let revision = auth.with_state(|state| state.revision);
        Ok(match self.credentials() {
            Credentials::None => None,
            Credentials::Certificate(name) => Some(AuthInfo { username: name.clone(), revision }),
            Credentials::Token(text) => Some(match auth.tokens() {
                TokenProvider::Simple(tokens) => {
                    let user = SimpleToken::parse(text)
                        .and_then(|token| tokens.use_token(token, self.threads().now()));
                    AuthInfo { username: user.ok_or(AuthRejection::InvalidToken)?, revision }
                }
                TokenProvider::Jwt(tokens) => {
                    tokens.user(text, unix_seconds()).ok_or(AuthRejection::InvalidToken)?
                }
            }),
        })
    }

    fn holds_batch_lock_to_check(&self) -> bool {
        self.threads().era().checks_hold_batch_lock
    }

    /// Performs a linearizable read of users and roles.
    pub async fn read_users<T>(
        &self,
        read: impl FnOnce(Checker<'_>, &AuthState) -> Result<T, AuthRejection>,
    ) -> Result<T, RequestError> {
        self.linearizable_read_notify().await?;
        let user = self.auth_info().await?;
        Ok(self.threads().auth().with_state(|state| read(state.checker(user.as_ref()), state))?)
    }

    /// Checks a user's password, and returns a token. Checks the password again if users or roles
    /// change before the token is returned.
    ///
    /// With simple tokens, a change of the password drops all tokens that the user has at that
    /// time. If this call has checked the old password and assigns a token after the change, the
    /// token is not returned to the client, and is removed when its TTL has passed.
    pub async fn authenticate(
        &self,
        request: AuthenticateRequest,
        trace: &mut RequestTrace,
    ) -> Result<AuthenticateResponse, RequestError> {
        trace.end_read_index(self.linearizable_read_notify().await?);
        let AuthenticateRequest { name, password } = request;
        // bcrypt ignores all bytes after the first [`PASSWORD_BYTES_MAX`].
        let bytes = password.as_bytes();
        let password = bytes[..bytes.len().min(PASSWORD_BYTES_MAX)].to_vec();
        loop {
            let checked = self.check_password(&name, password.clone(), trace).await?;
            let response = match self.threads().auth().tokens() {
                TokenProvider::Simple(_) => self.assign_token(&name).await,
                TokenProvider::Jwt(_) => self.sign_token(&name, checked).await,
            };
            trace.end_stage(Stage::Token);
            let response = response?;
            // The check is repeated if users or roles have changed since then, because the password
            // may also have changed.
            if self.threads().auth().with_state(|state| state.revision) == checked {
                return Ok(response);
            }
        }
    }

    /// Checks a password. Returns the auth revision of the check.
    async fn check_password(
        &self,
        name: &str,
        password: Vec<u8>,
        trace: &mut RequestTrace,
    ) -> Result<u64, RequestError> {
        let check = self.threads().auth().password_check(name)?;
        // As in etcd, no lock is held for a user that does not exist or has no password.
        if self.holds_batch_lock_to_check() && check.has_hash() {
            let (store, number) = (self.threads().store(), trace.number);
            let work = traced(*trace, Stage::Password, move || {
                let _as = AUTHENTICATE.enter_numbered(number);
                let mut checked = Err(AuthRejection::AuthFailed);
                store.with_auth_lock(&mut || checked = check.run(&password, &mut || ()));
                checked
            });
            let (checked, traced) = self.run_on_own_thread(work).await?;
            *trace = traced;
            return Ok(checked?);
        }
        let run = move || check.run(&password, &mut offer_core());
        let work = traced(*trace, Stage::Password, run);
        let (checked, traced) = self.run_in_password_pool(work).await?;
        *trace = traced;
        Ok(checked?)
    }

    async fn run_in_password_pool<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        let pool = self.threads().password_pool();
        if pool.queued_jobs() >= PASSWORDS_WAITING_MAX {
            return Err(RequestError::TooManyRequests);
        }
        let done = pool.run(JobKind::Short, move || {
            let _as = AUTHENTICATE.enter();
            work()
        });
        self.within_deadline(done).await?.ok_or(RequestError::Stopped)
    }

    async fn assign_token(&self, name: &str) -> Result<AuthenticateResponse, RequestError> {
        let simple_token = random_letters()?;
        // The entry contains no password, because the password was checked already.
        let request = InternalAuthenticateRequest {
            name: name.to_owned(),
            simple_token,
            ..InternalAuthenticateRequest::default()
        };
        self.with_credentials(Credentials::None).propose(request).await
    }

    async fn sign_token(
        &self,
        name: &str,
        revision: u64,
    ) -> Result<AuthenticateResponse, RequestError> {
        let (threads, name) = (self.threads().clone(), name.to_owned());
        // A signature with RSA may take milliseconds, so all signatures are made in the pool.
        let sign = move || match threads.auth().tokens() {
            TokenProvider::Jwt(tokens) => {
                let provider = tokens.provider();
                provider.sign(&name, revision, unix_seconds(), &SystemRandom::new())
            }
            TokenProvider::Simple(_) => Err(JwtError::VerifyOnly),
        };
        let signed = self.run_in_password_pool(sign).await?;
        let token = signed.map_err(|error| match error {
            JwtError::VerifyOnly => AuthRejection::VerifyOnly.into(),
            error => RequestError::Failed(Error::Signing(error.to_string())),
        })?;
        let header = self.header_at(self.store_revision().await?);
        Ok(AuthenticateResponse { header, token })
    }

    /// Returns the hash of a password, in the form that goes into the log.
    pub async fn hash_password(&self, password: String) -> Result<String, PasswordError> {
        let mut salt = [0; SALT_BYTES];
        fill_random(&mut salt)?;
        let cost = self.threads().auth().bcrypt_cost();
        let hash = move || password::hash(password.as_bytes(), cost, salt, &mut offer_core());
        Ok(self.run_in_password_pool(hash).await??)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    #[error(transparent)]
    Hash(#[from] HashError),
    #[error(transparent)]
    Request(#[from] RequestError),
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn fill_random(bytes: &mut [u8]) -> Result<(), RequestError> {
    let filled = SystemRandom::new().fill(bytes);
    filled.map_err(|_| Error::NoRandomNumbers.into())
}

/// Returns the text of a new simple token: [`LETTERS`] random letters, each equally likely.
fn random_letters() -> Result<String, RequestError> {
    let letters = ALPHABET.len() as u8;
    let fair_below = u8::MAX - u8::MAX % letters;
    let mut text = String::with_capacity(LETTERS);
    while text.len() < LETTERS {
        let mut bytes = [0; 2 * LETTERS];
        fill_random(&mut bytes)?;
        let drawn = bytes.iter().filter(|byte| **byte < fair_below).take(LETTERS - text.len());
        text.extend(drawn.map(|byte| char::from(ALPHABET[usize::from(byte % letters)])));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_differ_and_come_from_the_alphabet() {
        let (one, other) = (random_letters().unwrap(), random_letters().unwrap());
        assert_eq!((one.len(), other.len()), (LETTERS, LETTERS));
        assert_ne!(one, other);
        assert!(one.bytes().all(|letter| ALPHABET.contains(&letter)), "{one}");
    }
}
