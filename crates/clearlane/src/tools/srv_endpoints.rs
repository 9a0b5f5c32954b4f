//! `--discovery-srv` of the proxies: the endpoints are the targets of SRV records. The records are
//! read only once, at startup.
//!
//! Unless `--insecure-discovery` is set, targets without TLS are dropped, as in etcd. If there is
//! an authority, a target is also dropped if it cannot be reached, or if its certificate is not
//! valid. If all targets are dropped, `--endpoints` is used.
//!
//! Without an authority, etcd also drops targets that cannot be reached. Clearlane keeps them,
//! because a proxy notices when they can be reached again.

use std::fmt::Write as _;
use std::time::Duration;

use clearlane_net::tls::Dialer;
use tokio::time::timeout;

use super::BoxError;
use crate::config::arguments::FlagReader;
use crate::config::table::{Flag, flag};
use crate::config::value::ValueKind::{Switch, Text};
use crate::discovery::dns::{ClientTarget, DnsDiscovery};

/// Time limit of the connection that checks one target, as in etcd.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) const DOMAIN: Flag = flag("discovery-srv", Text, "").help(
    "DNS domain whose SRV records name the endpoints: _etcd-client-ssl._tcp.DOMAIN and \
     _etcd-client._tcp.DOMAIN. Replaces --endpoints.",
);
pub(super) const NAME: Flag = flag("discovery-srv-name", Text, "").help(
    "Suffix of the service name in these SRV records: with blue, _etcd-client-blue._tcp.DOMAIN.",
);
pub(super) const INSECURE: Flag = flag("insecure-discovery", Switch, "false")
    .help("Accept endpoints without TLS from SRV records, and do not check the other endpoints.");

/// Returns the endpoints that SRV records name. The result is empty if `--discovery-srv` is not
/// set, or if all targets were dropped and `--endpoints` is set. `authority` opens connections that
/// verify the server's certificate.
pub(super) async fn discover(
    flags: &FlagReader,
    authority: Option<&Dialer>,
) -> Result<Vec<ClientTarget>, BoxError> {
    let domain = flags.text(DOMAIN.name);
    if domain.is_empty() {
        return Ok(Vec::new());
    }
    let discovery = DnsDiscovery {
        domain: domain.to_owned(),
        service_suffix: flags.text(NAME.name).to_owned(),
        servers: Vec::new(),
    };
    let found = discovery.find_clients().await?;
    if flags.switch(INSECURE.name) {
        return Ok(found);
    }
    let (kept, dropped) = check(found, authority).await;
    if !dropped.is_empty() {
        tracing::warn!(dropped, "some endpoints of --discovery-srv are not used");
    }
    if kept.is_empty() && !flags.is_set("endpoints") {
        return Err(format!(
            "--discovery-srv: no endpoint can be used: {dropped}; --insecure-discovery turns this \
             check off"
        )
        .into());
    }
    Ok(kept)
}

/// Returns the secure targets, and the reasons why the others were dropped.
async fn check(
    found: Vec<ClientTarget>,
    authority: Option<&Dialer>,
) -> (Vec<ClientTarget>, String) {
    let checks = found.into_iter().map(|found| async move {
        let failure = failure(&found, authority).await;
        (found, failure)
    });
    let (mut kept, mut dropped) = (Vec::new(), String::new());
    for (found, failure) in futures_util::future::join_all(checks).await {
        match failure {
            None => kept.push(found),
            Some(why) => {
                let separator = if dropped.is_empty() { "" } else { "; " };
                let ClientTarget { scheme, target } = found;
                let _ = write!(dropped, "{separator}{scheme}://{} {why}", target.address());
            }
        }
    }
    (kept, dropped)
}

/// Returns the reason why a target must not be used, or `None` if it may be used.
async fn failure(found: &ClientTarget, authority: Option<&Dialer>) -> Option<String> {
    if found.scheme != "https" {
        return Some("is insecure".to_owned());
    }
    let url = format!("https://{}", found.target.address());
    match timeout(CHECK_TIMEOUT, authority?.connect(&url)).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(format!("failed the check: {error}")),
        Err(_) => Some(format!("failed the check: no handshake within {CHECK_TIMEOUT:?}")),
    }
}

#[cfg(test)]
#[path = "../../tests/tls/authority.rs"]
mod authority;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use clearlane_net::tls::protocol::ProtocolConfig;
    use clearlane_net::tls::{TlsAcceptor, TlsInfo};
    use tokio::net::TcpListener;

    use super::authority::Authority;
    use super::*;
    use crate::discovery::dns::Target;

    fn found(scheme: &'static str, at: SocketAddr) -> ClientTarget {
        let (host, port) = (at.ip().to_string(), at.port());
        ClientTarget { scheme, target: Target { host, port, priority: 1, weight: 2 } }
    }

    /// Starts a server that accepts TLS handshakes with a certificate for `host`. The files of the
    /// certificate have the name `name`.
    async fn server(authority: &Authority, name: &str, host: &str) -> SocketAddr {
        let server_certificate = Some(authority.pair(name, &[host]));
        let info = TlsInfo { server_certificate, ..TlsInfo::default() };
        let tls = TlsAcceptor::new("client", &info, &ProtocolConfig::default()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, remote)) = listener.accept().await {
                let _ = tls.accept(stream, Some(remote), || ()).await;
            }
        });
        address
    }

    #[tokio::test]
    async fn targets_that_are_not_secure_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (Authority::new(dir.path(), "own"), Authority::new(dir.path(), "other"));
        let good = server(&own, "good", "127.0.0.1").await;
        let wrong_host = server(&own, "elsewhere", "127.0.0.2").await;
        let wrong_authority = server(&other, "foreign", "127.0.0.1").await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dead = listener.local_addr().unwrap();
        drop(listener);
        let secure = [good, wrong_host, wrong_authority, dead].map(|at| found("https", at));
        let all: Vec<_> = secure.into_iter().chain([found("http", good)]).collect();

        let dialer = Dialer::new(&own.believer(), &ProtocolConfig::default()).unwrap();
        let (kept, dropped) = check(all.clone(), Some(&dialer)).await;
        assert_eq!(kept, [found("https", good)], "{dropped}");
        for at in [wrong_host, wrong_authority, dead] {
            assert!(dropped.contains(&format!("https://{at} failed the check: ")), "{dropped}");
        }
        assert!(dropped.ends_with(&format!("; http://{good} is insecure")), "{dropped}");

        // Without an authority, only the scheme is checked.
        let (kept, dropped) = check(all.clone(), None).await;
        assert_eq!(kept, all[..4]);
        assert_eq!(dropped, format!("http://{good} is insecure"));
    }
}
