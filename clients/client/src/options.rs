//! Options of a client: TLS, user and timeouts.
//!
//! The defaults suit a cluster nearby. etcd may disconnect a client that pings more often than
//! every five seconds, so the default of [`Options::keep_alive`] is longer.

use std::fmt;
use std::time::Duration;

use tonic::transport::ClientTlsConfig;

/// The options of a client: how it connects, who its user is, and how long it waits.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) tls: Option<ClientTlsConfig>,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) keep_alive: (Duration, Duration),
}

impl Default for Options {
    fn default() -> Self {
        Options {
            tls: None,
            credentials: None,
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(10),
            keep_alive: (Duration::from_secs(6), Duration::from_secs(3)),
        }
    }
}

impl Options {
    /// The defaults: no TLS, no user, 2 seconds to connect, and 10 seconds for a request.
    pub fn new() -> Options {
        Options::default()
    }

    /// Uses TLS for all endpoints, including `http` endpoints.
    ///
    /// ```no_run
    /// # fn main() -> std::io::Result<()> {
    /// use clearlane_client::{Certificate, ClientTlsConfig, Identity, Options};
    ///
    /// let (certificate, key) = (std::fs::read("client.pem")?, std::fs::read("client-key.pem")?);
    /// let tls = ClientTlsConfig::new()
    ///     .ca_certificate(Certificate::from_pem(std::fs::read("ca.pem")?))
    ///     .identity(Identity::from_pem(certificate, key))
    ///     .domain_name("etcd.example.org");
    /// let options = Options::new().tls(tls);
    /// # Ok(())
    /// # }
    /// ```
    pub fn tls(self, tls: ClientTlsConfig) -> Options {
        Options { tls: Some(tls), ..self }
    }

    /// Sets the user. The client fetches a token with the password, and fetches another one when
    /// the server rejects the token. A server without authentication is accepted.
    pub fn user(self, name: impl Into<String>, password: impl Into<String>) -> Options {
        let credentials = Credentials { name: name.into(), password: password.into() };
        Options { credentials: Some(credentials), ..self }
    }

    /// Maximum time to open one connection.
    pub fn connect_timeout(self, timeout: Duration) -> Options {
        Options { connect_timeout: timeout, ..self }
    }

    /// Maximum time of a request with all its retries. Defragmentation, snapshots, and waiting for
    /// a lock or an election have no limit. Fetching a token is a separate request with the same
    /// limit. A request that is repeated with a new token also starts with the full limit.
    pub fn request_timeout(self, timeout: Duration) -> Options {
        Options { request_timeout: timeout, ..self }
    }

    /// While requests are in flight, the client pings every `interval`, and closes the connection
    /// if there is no response within `timeout`. The sum of `interval` and `timeout` should be less
    /// than the [request timeout](Self::request_timeout), so that there is time for another
    /// endpoint.
    pub fn keep_alive(self, interval: Duration, timeout: Duration) -> Options {
        Options { keep_alive: (interval, timeout), ..self }
    }
}

#[derive(Clone)]
pub(crate) struct Credentials {
    pub(crate) name: String,
    pub(crate) password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let options = Options::new().user("root", "secret");
        let shown = format!("{options:?}");
        assert!(shown.contains("root") && !shown.contains("secret"), "{shown}");
    }
}
