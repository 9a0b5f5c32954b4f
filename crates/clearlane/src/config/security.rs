//! Which certificates are there, and do they fit the addresses?
//!
//! What cannot be meant is refused, and what etcd only warns about is warned about:
//!
//! | set | result |
//! |---|---|
//! | an https address, and no certificate | refused |
//! | half of a pair | refused |
//! | which clients may connect, and no authority to check it | refused |
//! | https for members that listen to http, or the other way round | refused |
//! | a certificate, and an http address | a warning: it is not used there |
//! | a certificate, and one to be made | a warning: none is made |
//!
//! Where etcd would check clients' certificates with the authorities that the system trusts, since
//! none are named, any owner of a bought certificate could connect. Here that is refused.

use std::path::Path;

use clearlane_net::tls::config::{AllowedNames, SelfSignedConfig, VALIDITY_YEARS_MAX};
use clearlane_net::tls::protocol::{self, ProtocolConfig, TlsVersion};
use clearlane_net::tls::{CertificateFiles, FlagPath, TlsConfig, TlsInfo};

use super::address::Url;
use super::error::ConfigError;
use super::from_flags::FlagReader;

struct TlsFlags {
    certificate: &'static str,
    key: &'static str,
    client_certificate: (&'static str, &'static str),
    trusted_ca: &'static str,
    wants_certificate: &'static str,
    crl: &'static str,
    allowed_names: &'static str,
    allowed_hosts: &'static str,
    self_signed: &'static str,
    listen: &'static str,
    advertise: &'static str,
    /// Below the data directory.
    fixtures_dir: &'static str,
}

const CLIENTS: TlsFlags = TlsFlags {
    certificate: "cert-file",
    key: "key-file",
    client_certificate: ("client-cert-file", "client-key-file"),
    trusted_ca: "trusted-ca-file",
    wants_certificate: "client-cert-auth",
    crl: "client-crl-file",
    allowed_names: "client-cert-allowed-cn",
    allowed_hosts: "client-cert-allowed-hostname",
    self_signed: "auto-tls",
    listen: "listen-client-urls",
    advertise: "advertise-client-urls",
    fixtures_dir: "fixtures/client",
};

const PEERS: TlsFlags = TlsFlags {
    certificate: "peer-cert-file",
    key: "peer-key-file",
    client_certificate: ("peer-client-cert-file", "peer-client-key-file"),
    trusted_ca: "peer-trusted-ca-file",
    wants_certificate: "peer-client-cert-auth",
    crl: "peer-crl-file",
    allowed_names: "peer-cert-allowed-cn",
    allowed_hosts: "peer-cert-allowed-hostname",
    self_signed: "peer-auto-tls",
    listen: "listen-peer-urls",
    advertise: "initial-advertise-peer-urls",
    fixtures_dir: "fixtures/peer",
};

pub(super) fn tls_config(
    typed: &FlagReader<'_>,
    data_dir: &Path,
    warnings: &mut Vec<String>,
) -> Result<TlsConfig, ConfigError> {
    let mut client_urls = typed.urls(CLIENTS.listen);
    client_urls.extend(typed.urls("listen-metrics-urls"));
    let peer_urls = typed.urls(PEERS.listen);
    let clients = tls_info(typed, &CLIENTS, &client_urls, data_dir, warnings)?;
    let mut peers = tls_info(typed, &PEERS, &peer_urls, data_dir, warnings)?;
    peers.checks_address = !typed.switch("peer-skip-client-san-verification");
    if peers.self_signed.is_some() && peers.trusted_ca.is_some() {
        return Err(config_error(format!(
            "--{} makes a certificate that no authority has signed, so others cannot check it by \
             --{}: take one of the two",
            PEERS.self_signed, PEERS.trusted_ca
        )));
    }
    check_advertised_schemes(typed, &PEERS).map_err(config_error)?;
    warnings.extend(check_advertised_schemes(typed, &CLIENTS).err());
    Ok(TlsConfig { clients, peers, protocol: protocol(typed)? })
}

fn config_error(words: impl Into<String>) -> ConfigError {
    ConfigError::fatal(words)
}

fn tls_info(
    typed: &FlagReader<'_>,
    flags: &TlsFlags,
    urls: &[Url],
    data_dir: &Path,
    warnings: &mut Vec<String>,
) -> Result<TlsInfo, ConfigError> {
    let own = certificate_files(typed, flags.certificate, flags.key)?;
    let calling = certificate_files(typed, flags.client_certificate.0, flags.client_certificate.1)?;
    let trusted = flag_path(typed, flags.trusted_ca);
    let is_auto = typed.switch(flags.self_signed);
    if is_auto && own.is_some() {
        let (made, certificate) = (flags.self_signed, flags.certificate);
        warnings.push(format!("ignoring --{made}: there is --{certificate}"));
    }
    let secure = urls.iter().find(|url| url.is_secure());
    if let (Some(url), None, false) = (secure, &own, is_auto) {
        let TlsFlags { certificate, key, self_signed: made, .. } = flags;
        return Err(config_error(format!(
            "TLS key/cert (--{certificate}, --{key}) must be provided for url {url} with HTTPS \
             scheme; or --{made}"
        )));
    }
    require_trusted_ca(typed, flags, trusted.is_some())?;
    for url in urls.iter().filter(|url| !url.is_secure()) {
        if own.is_some() || is_auto {
            warnings.push(format!(
                "{url}: scheme is http or unix while key and cert files are present; ignoring key \
                 and cert files"
            ));
        }
        if trusted.is_some() || typed.switch(flags.wants_certificate) {
            warnings.push(format!(
                "{url}: scheme is http or unix while --{} is enabled; ignoring client cert auth \
                 for this URL",
                flags.wants_certificate
            ));
        }
    }
    let made = if is_auto && own.is_none() && secure.is_some() {
        Some(self_signed(typed, flags, urls, data_dir)?)
    } else {
        None
    };
    let (revoked, allowed) = (flag_path(typed, flags.crl), allowed(typed, flags)?);
    Ok(TlsInfo {
        server_certificate: own,
        client_certificate: calling,
        trusted_ca: trusted,
        crl: revoked,
        allowed,
        self_signed: made,
        checks_address: false,
    })
}

/// Rules about certificates need an authority that has signed them.
fn require_trusted_ca(
    typed: &FlagReader<'_>,
    flags: &TlsFlags,
    has_one: bool,
) -> Result<(), ConfigError> {
    let asked = [flags.crl, flags.allowed_names, flags.allowed_hosts];
    let asked = asked.into_iter().filter(|name| !typed.text(name).is_empty());
    let wants = Some(flags.wants_certificate).filter(|name| typed.switch(name));
    match wants.into_iter().chain(asked).next() {
        Some(name) if !has_one => {
            let trusted = flags.trusted_ca;
            Err(config_error(format!(
                "--{name} needs --{trusted}: the authority of these certificates"
            )))
        }
        _ => Ok(()),
    }
}

fn flag_path(typed: &FlagReader<'_>, flag: &'static str) -> Option<FlagPath> {
    typed.path(flag).map(|path| FlagPath { flag, path })
}

fn certificate_files(
    typed: &FlagReader<'_>,
    certificate: &'static str,
    key: &'static str,
) -> Result<Option<CertificateFiles>, ConfigError> {
    match (flag_path(typed, certificate), flag_path(typed, key)) {
        (Some(certificate), Some(key)) => Ok(Some(CertificateFiles { certificate, key })),
        (None, None) => Ok(None),
        _ => Err(config_error(format!(
            "--{certificate} and --{key} must both be present [key: {}, cert: {}]",
            typed.text(key),
            typed.text(certificate)
        ))),
    }
}

fn allowed(typed: &FlagReader<'_>, flags: &TlsFlags) -> Result<AllowedNames, ConfigError> {
    let list = |name| typed.list(name).into_iter().filter(|word| !word.is_empty()).collect();
    let (names, hosts): (Vec<String>, Vec<String>) =
        (list(flags.allowed_names), list(flags.allowed_hosts));
    match (names.is_empty(), hosts.is_empty()) {
        (true, true) => Ok(AllowedNames::Any),
        (false, true) => Ok(AllowedNames::CommonNames(names)),
        (true, false) => Ok(AllowedNames::Hosts(hosts)),
        (false, false) => Err(config_error(format!(
            "--{} and --{} are mutually exclusive",
            flags.allowed_names, flags.allowed_hosts
        ))),
    }
}

fn self_signed(
    typed: &FlagReader<'_>,
    flags: &TlsFlags,
    urls: &[Url],
    data_dir: &Path,
) -> Result<SelfSignedConfig, ConfigError> {
    let name = "self-signed-cert-validity";
    let years = typed.count(name);
    if !(1..=VALIDITY_YEARS_MAX).contains(&years) {
        return Err(config_error(format!(
            "--{name} must be 1 to {VALIDITY_YEARS_MAX} (set to {years})"
        )));
    }
    let secure = urls.iter().filter(|url| url.is_secure());
    let mut hosts: Vec<String> = secure.filter_map(Url::host).map(str::to_owned).collect();
    hosts.sort();
    hosts.dedup();
    Ok(SelfSignedConfig {
        flag: flags.self_signed,
        dir: data_dir.join(flags.fixtures_dir),
        hosts,
        years,
    })
}

/// An advertised address with TLS needs a listener with TLS, and one without needs one without. For
/// clients a mismatch is only a warning: a proxy may stand in between.
fn check_advertised_schemes(typed: &FlagReader<'_>, flags: &TlsFlags) -> Result<(), String> {
    let (listen, advertise) = (typed.urls(flags.listen), typed.urls(flags.advertise));
    let missing = advertise.iter().find(|told| {
        let is_heard = |url: &&Url| url.is_secure() == told.is_secure();
        listen.iter().find(is_heard).is_none()
    });
    match missing {
        Some(told) => {
            let with = if told.is_secure() { "with" } else { "without" };
            let (listen, advertise) = (flags.listen, flags.advertise);
            Err(format!("--{advertise} has {told}, and no address of --{listen} is {with} TLS"))
        }
        None => Ok(()),
    }
}

fn protocol(typed: &FlagReader<'_>) -> Result<ProtocolConfig, ConfigError> {
    let [min, max] = ["tls-min-version", "tls-max-version"].map(|name| typed.text(name));
    let versions = (TlsVersion::parse(min), TlsVersion::parse(max));
    if let (Some(lower), Some(upper)) = versions
        && lower > upper
    {
        return Err(config_error(format!(
            "min version ({min}) is greater than max version ({max})"
        )));
    }
    let name = "cipher-suites";
    let suites = typed.list(name).into_iter().filter(|word| !word.is_empty());
    let suites: Vec<String> = suites.collect();
    if versions.0 == Some(TlsVersion::Tls13) && !suites.is_empty() {
        let words = "cipher suites cannot be configured when only TLS1.3 is enabled";
        return Err(config_error(format!("--{name}: {words}")));
    }
    if let Some(suite) = suites.iter().find(|suite| !protocol::is_suite(suite)) {
        let known = protocol::suites().join(", ");
        return Err(config_error(format!(
            "--{name}: unexpected TLS cipher suite \"{suite}\"; there are {known}"
        )));
    }
    Ok(ProtocolConfig { suites, min: versions.0, max: versions.1 })
}
