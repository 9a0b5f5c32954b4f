//! Settings that determine how the members of a new cluster are found if `--initial-cluster` is not
//! set.
//!
//! The rules are etcd's, and so are most of the error messages.

use clearlane_net::tls::{CertificateFiles, FlagPath};

use super::arguments::FlagReader;
use super::error::ConfigError;
use crate::discovery::dns::DnsDiscovery;
use crate::discovery::service::{Credentials, DiscoveryService};
use crate::discovery::{Discovery, ServiceTls};

pub(super) fn discovery(flags: &FlagReader) -> Result<Option<Discovery>, ConfigError> {
    let (endpoints, domain) = (flags.list("discovery-endpoints"), flags.text("discovery-srv"));
    let has_service = flags.is_set("discovery-endpoints") && endpoints != [""];
    let has_token = !flags.text("discovery-token").is_empty();
    let ways = [flags.is_set("initial-cluster"), has_service, !domain.is_empty()];
    if flags.text("discovery-fallback") == "proxy" {
        return Err(ConfigError::fatal(
            "v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"",
        ));
    }
    if ways.into_iter().filter(|is_chosen| *is_chosen).count() > 1 {
        return Err(ConfigError::fatal(
            "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\", \
             \"discovery-endpoints\" or \"discovery-srv\"",
        ));
    }
    if has_token != has_service {
        return Err(ConfigError::fatal(
            "both --discovery-token and --discovery-endpoints must be set",
        ));
    }
    if has_service {
        return service(flags, &endpoints).map(Some);
    }
    if domain.is_empty() {
        return Ok(None);
    }
    Ok(Some(Discovery::Dns(DnsDiscovery {
        domain: domain.to_owned(),
        service_suffix: flags.text("discovery-srv-name").to_owned(),
        servers: Vec::new(),
    })))
}

fn service(flags: &FlagReader, endpoints: &[String]) -> Result<Discovery, ConfigError> {
    if endpoints.iter().any(String::is_empty) {
        return Err(ConfigError::fatal("--discovery-endpoints must not contain empty endpoints"));
    }
    let is_plain = flags.switch("discovery-insecure-transport");
    let with_scheme = |endpoint: &String| match endpoint.contains("://") {
        true => endpoint.clone(),
        false if is_plain => format!("http://{endpoint}"),
        false => format!("https://{endpoint}"),
    };
    let endpoints: Vec<String> = endpoints.iter().map(with_scheme).collect();
    let has_tls =
        endpoints.iter().any(|url| url.starts_with("https:") || url.starts_with("unixs:"));
    let service = DiscoveryService {
        token: flags.text("discovery-token").to_owned(),
        endpoints,
        tls: has_tls.then(|| tls(flags)).transpose()?,
        dial_timeout: flags.nonzero_time("discovery-dial-timeout")?,
        request_timeout: flags.nonzero_time("discovery-request-timeout")?,
        keep_alive_interval: flags.nonzero_time("discovery-keepalive-time")?,
        keep_alive_timeout: flags.nonzero_time("discovery-keepalive-timeout")?,
        credentials: credentials(flags)?,
    };
    Ok(Discovery::Service(Box::new(service)))
}

fn credentials(flags: &FlagReader) -> Result<Option<Credentials>, ConfigError> {
    let (user, password) = (flags.text("discovery-user"), flags.text("discovery-password"));
    let (user, password) = match (user.split_once(':'), password) {
        _ if user.is_empty() => return Ok(None),
        (Some((user, password)), "") => (user, password),
        (None, "") => {
            return Err(ConfigError::fatal(
                "--discovery-user needs a password: NAME:PASSWORD, or --discovery-password",
            ));
        }
        (_, password) => (user, password),
    };
    Ok(Some(Credentials { user: user.to_owned(), password: password.to_owned() }))
}

fn tls(flags: &FlagReader) -> Result<ServiceTls, ConfigError> {
    let named = |flag| flags.path(flag).map(|path| FlagPath { flag, path });
    let certificate = match (named("discovery-cert"), named("discovery-key")) {
        (Some(certificate), Some(key)) => Some(CertificateFiles { certificate, key }),
        (None, None) => None,
        _ => {
            return Err(ConfigError::fatal(
                "--discovery-cert and --discovery-key must both be present",
            ));
        }
    };
    Ok(ServiceTls {
        certificate,
        trusted_ca: named("discovery-cacert"),
        skips_verification: flags.switch("discovery-insecure-skip-tls-verify"),
    })
}
