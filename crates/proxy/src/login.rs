//! Logins of the proxy for clients that have a certificate and no token.
//!
//! A member sees only the certificate of the proxy. So the proxy logs in to the cluster for each
//! client certificate whose common name is in the file of `--client-cert-users`, and sends the
//! token with the requests of this client. All clients with the same name share a login.
//!
//! ```text
//!   no token ── first request ─▶ token ── a member rejects it ─▶ no token
//!       ▲  │
//!       │  └── rejected, or the cluster has no auth: this result is used for RECHECK_TIME
//!       └───────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The file has one line per name: the common name, the user, and the path of a file with the
//! password. Fields are separated by blanks, and a field with blanks is put between double quotes.
//! A path is relative to the directory of the mapping file. The proxy reads the password at each
//! login, so that it can be changed without a restart.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clearlane_net::tls::ClientName;
use clearlane_proto::etcdserverpb::AuthenticateRequest;
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use http::HeaderValue;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

use crate::status;
use crate::upstream::{Upstream, is_transport_error};

/// Longest time of a login, over several members if necessary.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// A failed login, and the result that the cluster has no auth, are used for this time. A login
/// costs a member tens of milliseconds of processor time.
const RECHECK_TIME: Duration = Duration::from_secs(1);
/// The message of a member whose cluster has no auth.
const AUTH_NOT_ENABLED: &str = "etcdserver: authentication is not enabled";
const FORMAT: &str = "COMMON-NAME USER PASSWORD-FILE";

/// The logins, by the common names of client certificates.
#[derive(Clone, Debug, Default)]
pub struct CertificateUsers {
    logins: HashMap<String, Arc<Login>>,
}

impl CertificateUsers {
    /// Reads a mapping file, and checks that each password can be read. Fails with a message for
    /// the operator, which has the number of the wrong line.
    pub fn read(path: &Path) -> Result<CertificateUsers, String> {
        check_mode(path, Secret::No)?;
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        // Some editors put a byte order mark first. It is no part of a name.
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let directory = path.parent().unwrap_or(Path::new(""));
        let mut logins = HashMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let login = parse_line(line, directory);
            let Some(login) = login.map_err(|why| format!("line {number}: {why}"))? else {
                continue;
            };
            let name = login.common_name.clone();
            if logins.insert(name.clone(), Arc::new(login)).is_some() {
                return Err(format!("line {number}: the common name {name:?} is listed twice"));
            }
        }
        if logins.is_empty() {
            return Err(format!("it has no line; expected lines of the form {FORMAT}"));
        }
        Ok(CertificateUsers { logins })
    }

    /// Returns the login for a client, if its name is mapped.
    pub(crate) fn login_of(&self, name: &ClientName) -> Option<&Arc<Login>> {
        self.logins.get(&*name.0)
    }
}

/// Returns the login of a line. `None` if the line is empty or a comment.
fn parse_line(line: &str, directory: &Path) -> Result<Option<Login>, String> {
    let fields = fields(line)?;
    let [common_name, user, password_file] = match <[String; 3]>::try_from(fields) {
        Ok(fields) => fields,
        Err(fields) if fields.is_empty() => return Ok(None),
        Err(fields) => {
            return Err(format!("it has {} fields; expected {FORMAT}", fields.len()));
        }
    };
    if [&common_name, &user, &password_file].iter().any(|field| field.is_empty()) {
        return Err(format!("a field is empty; expected {FORMAT}"));
    }
    let password_file = directory.join(password_file);
    check_mode(&password_file, Secret::Yes)
        .and_then(|()| read_password(&password_file))
        .map_err(|why| format!("the password file {}: {why}", password_file.display()))?;
    let state = Mutex::new(LoginState::LoggedOut);
    Ok(Some(Login { common_name, user, password_file, state }))
}

/// Splits a line at blanks that are not between double quotes. `#` at the start of a field begins a
/// comment.
fn fields(line: &str) -> Result<Vec<String>, String> {
    let mut fields = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() && !rest.starts_with('#') {
        let (field, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or("a double quote is not closed")?,
            None => rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len())),
        };
        if !after.is_empty() && !after.starts_with(char::is_whitespace) {
            return Err("a blank must follow a closing double quote".to_owned());
        }
        fields.push(field.to_owned());
        rest = after.trim_start();
    }
    Ok(fields)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Secret {
    Yes,
    No,
}

/// Fails if every user of the system may write the file. Logs a warning if other users may read a
/// secret.
fn check_mode(path: &Path, secret: Secret) -> Result<(), String> {
    let mode = path.metadata().map_err(|error| error.to_string())?.permissions().mode() & 0o777;
    if mode & 0o002 != 0 {
        return Err(format!("every user may write it (mode {mode:03o}); use chmod o-w"));
    }
    if secret == Secret::Yes && mode & 0o077 != 0 {
        let (path, mode) = (path.display(), format!("{mode:03o}"));
        tracing::warn!(%path, mode, "other users may read a password file; use chmod 600");
    }
    Ok(())
}

/// Returns the content of the file without the line break at its end.
fn read_password(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let password = password.strip_suffix('\r').unwrap_or(password);
    if password.is_empty() {
        return Err("it has no password".to_owned());
    }
    Ok(password.to_owned())
}

/// A user for the common name of client certificates, and its token.
#[derive(Debug)]
pub struct Login {
    common_name: String,
    user: String,
    password_file: PathBuf,
    /// Held during a login, so that all calls that need the token wait for the same login.
    state: Mutex<LoginState>,
}

#[derive(Debug)]
enum LoginState {
    LoggedOut,
    Token(HeaderValue),
    /// The cluster had no auth at this time.
    WithoutAuth(Instant),
    Failed(Status, Instant),
}

/// Names are unique in a mapping.
impl PartialEq for Login {
    fn eq(&self, other: &Login) -> bool {
        self.common_name == other.common_name
    }
}

impl Eq for Login {}

impl Hash for Login {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.common_name.hash(hasher);
    }
}

impl Login {
    /// Returns the token for a call, and logs in if there is none. Returns `None` if the cluster
    /// has no auth.
    pub(crate) async fn token(&self, upstream: &Upstream) -> Result<Option<HeaderValue>, Status> {
        let mut state = self.state.lock().await;
        match &*state {
            LoginState::Token(token) => return Ok(Some(token.clone())),
            LoginState::WithoutAuth(since) if since.elapsed() < RECHECK_TIME => return Ok(None),
            LoginState::Failed(status, since) if since.elapsed() < RECHECK_TIME => {
                return Err(status.clone());
            }
            _ => {}
        }
        let done = self.log_in(upstream).await;
        *state = match &done {
            Ok(Some(token)) => LoginState::Token(token.clone()),
            Ok(None) => LoginState::WithoutAuth(Instant::now()),
            Err(status) => LoginState::Failed(status.clone(), Instant::now()),
        };
        done
    }

    /// Notes that a member has rejected a call with this token, or without a token. The next call
    /// of [`token`](Login::token) logs in, unless another call has done so already.
    pub(crate) async fn reject(&self, used: Option<&HeaderValue>) {
        let mut state = self.state.lock().await;
        let is_current = match &*state {
            LoginState::Token(token) => used == Some(token),
            LoginState::WithoutAuth(_) => used.is_none(),
            LoginState::LoggedOut | LoginState::Failed(..) => false,
        };
        if is_current {
            *state = LoginState::LoggedOut;
        }
    }

    async fn log_in(&self, upstream: &Upstream) -> Result<Option<HeaderValue>, Status> {
        let deadline = Instant::now() + LOGIN_TIMEOUT;
        let failed = match timeout_at(deadline, self.authenticate(upstream)).await {
            Ok(Ok(token)) => return Ok(Some(token)),
            Ok(Err(status)) if status.message() == AUTH_NOT_ENABLED => return Ok(None),
            Ok(Err(status)) => status,
            Err(_) => Status::unavailable("no answer of a member"),
        };
        let (name, user, error) = (&self.common_name, &self.user, failed.message());
        tracing::warn!(name, user, error, "cannot log in for a client certificate");
        let code = match failed.code() {
            code @ (Code::Unavailable | Code::DeadlineExceeded) => code,
            _ => Code::Unauthenticated,
        };
        let why = format!(
            "clearlane grpc-proxy: cannot log in as user {user:?} for the certificate {name:?}: \
             {error}"
        );
        Err(Status::new(code, why))
    }

    /// Makes the call Authenticate, and repeats it while the connection is lost.
    async fn authenticate(&self, upstream: &Upstream) -> Result<HeaderValue, Status> {
        let path = self.password_file.clone();
        let read = tokio::task::spawn_blocking(move || read_password(&path)).await;
        let password = read
            .map_err(|_| Status::unavailable("the proxy stops"))?
            .map_err(|why| Status::unauthenticated(format!("the password file: {why}")))?;
        let request = AuthenticateRequest { name: self.user.clone(), password };
        loop {
            let member = upstream.wait_and_pick().await.ok_or_else(status::no_member)?;
            let Some((channel, generation)) = member.connection() else {
                sleep(RETRY_DELAY).await;
                continue;
            };
            let mut client = AuthClient::new(channel);
            let answer = tokio::select! {
                answer = client.authenticate(request.clone()) => answer,
                () = upstream.lost(&member, generation) => continue,
            };
            match answer {
                Ok(answer) => {
                    let mut token = HeaderValue::try_from(answer.into_inner().token)
                        .map_err(|_| Status::internal("the token is not printable"))?;
                    token.set_sensitive(true);
                    return Ok(token);
                }
                Err(status) if is_transport_error(&status) => {
                    member.doubt();
                    sleep(RETRY_DELAY).await;
                }
                Err(status) => return Err(status),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};

    use super::*;

    /// Reads a mapping file next to a file `secret` with a password.
    fn read(mapping: &str) -> Result<CertificateUsers, String> {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path().join("secret"), "pass word\n").unwrap();
        write(dir.path().join("empty"), "\n").unwrap();
        let path = dir.path().join("users");
        write(&path, mapping).unwrap();
        CertificateUsers::read(&path)
    }

    #[test]
    fn names_with_blanks_are_quoted() {
        let users = read("# who\n\nsystem:admin root secret\n\"my app\"  app secret # note\n");
        let users = users.unwrap();
        let login = users.login_of(&ClientName("my app".into())).unwrap();
        assert_eq!(login.user, "app");
        assert!(users.login_of(&ClientName("system:admin".into())).is_some());
        assert!(users.login_of(&ClientName("".into())).is_none());
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_name() {
        let users = read("\u{feff}admin root secret\n").unwrap();
        assert!(users.login_of(&ClientName("admin".into())).is_some());
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (mapping, message) in [
            ("", "it has no line; expected lines of the form COMMON-NAME USER PASSWORD-FILE"),
            ("a b", "line 1: it has 2 fields; expected COMMON-NAME USER PASSWORD-FILE"),
            ("# a\na b c d", "line 2: it has 4 fields; expected COMMON-NAME USER PASSWORD-FILE"),
            ("\"\" b secret", "line 1: a field is empty; expected COMMON-NAME USER PASSWORD-FILE"),
            ("\"a b secret", "line 1: a double quote is not closed"),
            ("\"a\"b c secret", "line 1: a blank must follow a closing double quote"),
            ("a b secret\na c secret", "line 2: the common name \"a\" is listed twice"),
        ] {
            assert_eq!(read(mapping).unwrap_err(), message, "{mapping:?}");
        }
        let message = read("a b empty").unwrap_err();
        assert!(message.ends_with("/empty: it has no password"), "{message}");
        let message = read("a b absent").unwrap_err();
        assert!(message.contains("/absent: No such file"), "{message}");
    }

    #[test]
    fn a_file_that_everyone_may_write_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let [secret, users] = ["secret", "users"].map(|name| dir.path().join(name));
        write(&secret, "word").unwrap();
        write(&users, "a b secret").unwrap();
        for writable in [&secret, &users] {
            set_permissions(writable, Permissions::from_mode(0o602)).unwrap();
            let message = CertificateUsers::read(&users).unwrap_err();
            assert!(message.ends_with("every user may write it (mode 602); use chmod o-w"));
            set_permissions(writable, Permissions::from_mode(0o600)).unwrap();
        }
        CertificateUsers::read(&users).unwrap();
    }
}
