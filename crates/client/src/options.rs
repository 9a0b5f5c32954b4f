//! How a client connects, as which user, and how long it waits.
//!
//! The defaults suit a cluster next door. Two of them are bound to etcd's: a server of its kind may
//! cut off a client that pings more often than every five seconds, so [`Options::keep_alive`]
//! begins above that.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::error::{Error, Result};

/// How a client connects. Begin with [`Options::default`] or [`Options::new`].
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) tls: Option<Tls>,
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
    /// The defaults: no TLS, no user, 2 seconds to connect and 10 for a request.
    pub fn new() -> Options {
        Options::default()
    }

    /// Speaks TLS to all endpoints, whether they say `https` or not.
    pub fn tls(self, tls: Tls) -> Options {
        Options { tls: Some(tls), ..self }
    }

    /// As this user. A token is fetched with the password, used for all requests, and fetched anew
    /// when the server does not take it any more. A server without authentication is fine, too.
    pub fn user(self, name: impl Into<String>, password: impl Into<String>) -> Options {
        let credentials = Credentials { name: name.into(), password: password.into() };
        Options { credentials: Some(credentials), ..self }
    }

    /// So long an endpoint has to take a connection.
    pub fn connect_timeout(self, timeout: Duration) -> Options {
        Options { connect_timeout: timeout, ..self }
    }

    /// So long a request may take, with all repetitions. What takes as long as it takes has no such
    /// limit: defragmenting, copying, a physical compaction, and waiting for a lock or an election.
    pub fn request_timeout(self, timeout: Duration) -> Options {
        Options { request_timeout: timeout, ..self }
    }

    /// While requests are under way, asks every `interval` whether the other side is still there,
    /// and gives the connection up if nothing comes within `timeout`. Together they should be less
    /// than the [request's](Self::request_timeout), so that there is time to ask another endpoint.
    pub fn keep_alive(self, interval: Duration, timeout: Duration) -> Options {
        Options { keep_alive: (interval, timeout), ..self }
    }
}

/// A user and a password.
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

/// Which servers to trust, and how to be trusted.
///
/// ```no_run
/// # fn main() -> clearlane_client::Result<()> {
/// use clearlane_client::{Options, Tls};
///
/// let tls = Tls::new()
///     .ca_file("ca.pem")?
///     .identity_files("client.pem", "client-key.pem")?
///     .server_name("etcd.example.org");
/// let options = Options::new().tls(tls);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tls {
    config: ClientTlsConfig,
}

impl Tls {
    /// Trusts no server yet.
    pub fn new() -> Tls {
        Tls::default()
    }

    /// Trusts servers whose certificate one of these has signed: a file in PEM.
    pub fn ca_file(self, path: impl AsRef<Path>) -> Result<Tls> {
        Ok(self.ca_pem(read(path.as_ref())?))
    }

    /// The same, with the text of such a file.
    pub fn ca_pem(self, pem: impl AsRef<[u8]>) -> Tls {
        Tls { config: self.config.ca_certificate(Certificate::from_pem(pem)) }
    }

    /// Shows this certificate to servers that ask for one: two files in PEM.
    pub fn identity_files(
        self,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Tls> {
        Ok(self.identity_pem(read(certificate.as_ref())?, read(key.as_ref())?))
    }

    /// The same, with the texts of such files.
    pub fn identity_pem(self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Tls {
        Tls { config: self.config.identity(Identity::from_pem(certificate, key)) }
    }

    /// Servers are called this in their certificates, whatever their address is.
    pub fn server_name(self, name: impl Into<String>) -> Tls {
        Tls { config: self.config.domain_name(name) }
    }

    pub(crate) fn config(&self) -> ClientTlsConfig {
        self.config.clone()
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::Setup(format!("{}: {error}", path.display())))
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

    #[test]
    fn a_missing_file_is_named() {
        let error = Tls::new().ca_file("nowhere/ca.pem").unwrap_err();
        assert!(error.to_string().starts_with("nowhere/ca.pem: "), "{error}");
    }
}
