//! Which user makes a request, and whether it may: the steps of a read in front of its data and
//! behind it, and the calls of the service Auth. etcd's `doSerialize` and `Authenticate`.
//!
//! ```text
//!   wait for freshness ─▶ authorize ─▶ open and read ─▶ check_admission ─▶ answer
//!                           user, permission                the auth revision is still the same
//! ```
//!
//! Between the two, users and roles may change; then the client asks again. A write is checked
//! when it is [applied](crate::apply::auth). Until etcd 3.4 a check holds the lock of the batch,
//! and the check of a password does for as long as bcrypt takes; so the old eras do it on a thread
//! of the request. The others check passwords in a pool of low priority.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clearlane_auth::checks::{CheckResult, Checker};
use clearlane_auth::password::{self, HashError, PASSWORD_BYTES_MAX, SALT_BYTES};
use clearlane_auth::simple_tokens::{ALPHABET, LETTERS, SimpleToken};
use clearlane_auth::{AuthInfo, AuthRejection, AuthState, JwtError, TokenProvider};
use clearlane_backend::Era;
use clearlane_contention::TaskLabel;
use clearlane_net::sched::YieldPoints;
use clearlane_proto::etcdserverpb::{
    AuthenticateRequest, AuthenticateResponse, InternalAuthenticateRequest, InternalRaftRequest,
};
use ring::rand::{SecureRandom, SystemRandom};

use crate::credentials::Credentials;
use crate::error::Error;
use crate::handle::Server;
use crate::read_executor::traced;
use crate::request_error::RequestError;
use crate::request_trace::{RequestTrace, Stage};
use crate::task_labels::{AUTHENTICATE, PERMISSION};
use crate::threads::JobKind;

/// Passwords that wait for the pool. With bcrypt's default cost the last waits for about half a
/// minute on two cores.
const PASSWORDS_WAITING_MAX: usize = 1024;

/// Under which conditions a read was permitted.
#[derive(Clone, Copy, Debug)]
#[must_use = "it is to be compared after the read"]
pub(crate) enum Admission {
    /// Authentication was disabled.
    Disabled,
    /// The read asks for no key, and names no user or one without a revision.
    Unchecked,
    /// Users and roles were those of this auth revision.
    At(u64),
}

/// Between two steps of bcrypt: requests that have come meanwhile go first.
fn offer_core() -> impl FnMut() {
    let mut steps = YieldPoints::default();
    move || steps.advance(YieldPoints::BYTES_PER_STEP)
}

impl Server {
    /// Whether the user may make this read. To be called when the member is fresh enough for it.
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
            // etcd looks the user up under the lock. What costs time is to wait for it.
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

    /// That of a read which is checked now.
    pub(crate) fn current_admission(&self) -> Admission {
        if self.threads().auth().is_enabled() {
            Admission::At(self.auth_revision())
        } else {
            Admission::Disabled
        }
    }

    /// Users and roles are still those of the check.
    pub(crate) fn check_admission(&self, admission: Admission) -> Result<(), RequestError> {
        let is_unchanged = match admission {
            Admission::Disabled => !self.threads().auth().is_enabled(),
            Admission::Unchecked => true,
            Admission::At(revision) => self.auth_revision() == revision,
        };
        if is_unchanged { Ok(()) } else { Err(AuthRejection::OldRevision.into()) }
    }

    /// For requests that need no permission for keys.
    pub async fn require(
        &self,
        check: impl Fn(Checker<'_>) -> CheckResult + Send,
    ) -> Result<(), RequestError> {
        let mut trace = RequestTrace::start();
        let _no_data: Admission = self.authorize(*PERMISSION, &mut trace, check).await?;
        Ok(())
    }

    /// Whether the stream's user may watch these keys. Returns the user; `None` if authentication
    /// is disabled.
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

    /// Whether a user that might read these keys still may.
    pub fn may_still_read(&self, user: &Arc<str>, key: &[u8], range_end: &[u8]) -> bool {
        self.threads().auth().with_state(|state| {
            let user = AuthInfo { username: Arc::clone(user), revision: state.revision };
            state.checker(Some(&user)).read(key, range_end).is_ok()
        })
    }

    /// Changes with users and roles, before a later entry is applied.
    pub fn auth_revision(&self) -> u64 {
        self.threads().auth().with_state(|state| state.revision)
    }

    /// Names the user in the header of an entry, for the check when it is applied.
    /// What needs a user and has none is refused here: an anonymous client shall not fill the log.
    pub(crate) async fn name_user(
        &self,
        request: &mut InternalRaftRequest,
    ) -> Result<(), RequestError> {
        if let Some(AuthInfo { username, revision }) = self.auth_info().await? {
            let header = request.header.get_or_insert_default();
            header.username = username.as_ref().to_owned();
            header.auth_revision = revision;
        } else if self.needs_user(request) {
            // This member may not know yet that authentication was disabled.
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

    /// `None` if the request names no user, or authentication is disabled.
    pub(crate) async fn auth_info(&self) -> Result<Option<AuthInfo>, RequestError> {
        self.wait_for_token().await?;
        Ok(self.find_user()?)
    }

    /// Waits until this member has applied the entry that assigned the request's token, if it is
    /// behind. A token of the future gains nothing: what is committed now is waited for.
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
        self.threads().store().era() < Era::V3_5
    }

    /// A linearizable read of users and roles.
    pub async fn read_users<T>(
        &self,
        read: impl FnOnce(Checker<'_>, &AuthState) -> Result<T, AuthRejection>,
    ) -> Result<T, RequestError> {
        self.linearizable_read_notify().await?;
        let user = self.auth_info().await?;
        Ok(self.threads().auth().with_state(|state| read(state.checker(user.as_ref()), state))?)
    }

    /// Returns a token for a user that shows its password.
    pub async fn authenticate(
        &self,
        request: AuthenticateRequest,
        trace: &mut RequestTrace,
    ) -> Result<AuthenticateResponse, RequestError> {
        trace.end_read_index(self.linearizable_read_notify().await?);
        let AuthenticateRequest { name, password } = request;
        // bcrypt does not look at the rest.
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
            // Else the password may have been changed meanwhile.
            if self.threads().auth().with_state(|state| state.revision) == checked {
                return Ok(response);
            }
        }
    }

    /// Returns the auth revision at which it is the user's password.
    async fn check_password(
        &self,
        name: &str,
        password: Vec<u8>,
        trace: &mut RequestTrace,
    ) -> Result<u64, RequestError> {
        let check = self.threads().auth().password_check(name)?;
        // For a user that does not exist etcd holds no lock either.
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
        // The entry has no password: it was checked.
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
        // A signature takes up to a millisecond.
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

    /// As it goes into the log.
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

impl From<AuthRejection> for RequestError {
    fn from(refused: AuthRejection) -> RequestError {
        RequestError::Rejected(refused.into())
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn fill_random(bytes: &mut [u8]) -> Result<(), RequestError> {
    let filled = SystemRandom::new().fill(bytes);
    filled.map_err(|_| Error::NoRandomNumbers.into())
}

/// Each of the letters is as likely.
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
