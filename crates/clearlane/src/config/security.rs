//! Checks which certificates are configured, and whether they fit the addresses.
//!
//! A setting that cannot be intended is an error. A setting about which etcd only warns causes a
//! warning:
//!
//! | setting | result |
//! |---|---|
//! | an https address without a certificate, `--auto-tls` or `--peer-auto-tls` | error |
//! | a certificate without its key, or a key without its certificate | error |
//! | rules about client certificates, and no authority to check them | error |
//! | advertised https for members that listen on http, or the other way round | error |
//! | the same mismatch in the addresses for clients | warning: there may be a proxy |
//! | the certificate of `--peer-auto-tls`, and `--peer-trusted-ca-file` | error |
//! | both common names and host names are allowed | error |
//! | a certificate or `--auto-tls`, and an http address | warning: TLS is not used there |
//! | an authority or `--client-cert-auth`, and an http address | warning: not checked there |
//! | a certificate, and `--auto-tls` | warning: no certificate is created |
//!
//! If no authorities are named, etcd checks client certificates with the authorities that the
//! system trusts. Then anyone with a purchased certificate could connect. Clearlane reports this
//! setting as an error.

use std::path::Path;

use clearlane_net::tls::config::{AllowedNames, SelfSignedConfig, VALIDITY_YEARS_MAX};
use clearlane_net::tls::protocol::{self, ProtocolConfig, TlsVersion};
use clearlane_net::tls::{CertificateFiles, FlagPath, TlsConfig, TlsInfo};

use super::address::Url;
use super::arguments::FlagReader;
use super::error::ConfigError;

struct TlsFlags {
    /// The flags of the server's certificate and its key.
    server_certificate: (&'static str, &'static str),
    client_certificate: (&'static str, &'static str),
    trusted_ca: &'static str,
    wants_certificate: &'static str,
    crl: &'static str,
    allowed_names: &'static str,
    allowed_hosts: &'static str,
    self_signed: &'static str,
    listen: &'static str,
    advertise: &'static str,
    /// The directory of self-signed certificates, relative to the data directory.
    fixtures_dir: &'static str,
}

const CLIENTS: TlsFlags = TlsFlags {
    server_certificate: ("cert-file", "key-file"),
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
    server_certificate: ("peer-cert-file", "peer-key-file"),
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
    reader: &FlagReader,
    data_dir: &Path,
    warnings: &mut Vec<String>,
) -> Result<TlsConfig, ConfigError> {
    let mut client_urls = reader.urls(CLIENTS.listen);
    client_urls.extend(reader.urls("listen-client-http-urls"));
    client_urls.extend(reader.urls("listen-metrics-urls"));
    let peer_urls = reader.urls(PEERS.listen);
    let clients = tls_info(reader, &CLIENTS, &client_urls, data_dir, warnings)?;
    let mut peers = tls_info(reader, &PEERS, &peer_urls, data_dir, warnings)?;
    peers.checks_address = !reader.switch("peer-skip-client-san-verification");
    if peers.self_signed.is_some() && peers.trusted_ca.is_some() {
        return Err(ConfigError::fatal(format!(
            "--{} creates a certificate that no authority has signed, so others cannot verify it \
             with --{}: use only one of the two",
            PEERS.self_signed, PEERS.trusted_ca
        )));
    }
    check_advertised_schemes(reader, &PEERS).map_err(ConfigError::fatal)?;
    warnings.extend(check_advertised_schemes(reader, &CLIENTS).err());
    Ok(TlsConfig { clients, peers, protocol: protocol(reader)? })
}

fn tls_info(
    reader: &FlagReader,
    flags: &TlsFlags,
    urls: &[Url],
    data_dir: &Path,
    warnings: &mut Vec<String>,
) -> Result<TlsInfo, ConfigError> {
    let is_auto = reader.switch(flags.self_signed);
    let mut info = TlsInfo {
        server_certificate: certificate_files(reader, flags.server_certificate)?,
        client_certificate: certificate_files(reader, flags.client_certificate)?,
        trusted_ca: flag_path(reader, flags.trusted_ca),
        crl: flag_path(reader, flags.crl),
        ..TlsInfo::default()
    };
    let has_certificate = info.server_certificate.is_some();
    let TlsFlags { self_signed, server_certificate: (certificate, key), .. } = flags;
    if is_auto && has_certificate {
        warnings.push(format!("ignoring --{self_signed}: there is --{certificate}"));
    }
    let secure = urls.iter().find(|url| url.is_secure());
    if let Some(url) = secure.filter(|_| !has_certificate && !is_auto) {
        // Both error messages start with etcd's words.
        let metrics = reader.urls("listen-metrics-urls").iter().any(|other| other == url);
        return Err(ConfigError::fatal(if metrics {
            format!(
                "client TLS key/cert (--{certificate}, --{key}) must be provided for metrics \
                 secure url {url}; or --{self_signed}"
            )
        } else {
            format!(
                "TLS key/cert (--{certificate}, --{key}) must be provided for url {url} with HTTPS \
                 scheme; or --{self_signed}"
            )
        }));
    }
    require_trusted_ca(reader, flags, info.trusted_ca.is_some())?;
    for url in urls.iter().filter(|url| !url.is_secure()) {
        if has_certificate || is_auto {
            warnings.push(format!(
                "{url}: scheme is http or unix while key and cert files are present; ignoring key \
                 and cert files"
            ));
        }
        if info.trusted_ca.is_some() || reader.switch(flags.wants_certificate) {
            warnings.push(format!(
                "{url}: scheme is http or unix while --{} is enabled; ignoring client cert auth \
                 for this URL",
                flags.wants_certificate
            ));
        }
    }
    if is_auto && !has_certificate && secure.is_some() {
        info.self_signed = Some(self_signed_config(reader, flags, urls, data_dir)?);
    }
    info.allowed = allowed(reader, flags)?;
    Ok(info)
}

/// Fails if there are rules about client certificates, but no authority to verify them.
fn require_trusted_ca(
    reader: &FlagReader,
    flags: &TlsFlags,
    has_one: bool,
) -> Result<(), ConfigError> {
    let asked = [flags.crl, flags.allowed_names, flags.allowed_hosts];
    let asked = asked.into_iter().filter(|name| !reader.text(name).is_empty());
    let wants = Some(flags.wants_certificate).filter(|name| reader.switch(name));
    match wants.into_iter().chain(asked).next() {
        Some(name) if !has_one => {
            let trusted = flags.trusted_ca;
            Err(ConfigError::fatal(format!(
                "--{name} needs --{trusted}: the authority of these certificates"
            )))
        }
        _ => Ok(()),
    }
}

fn flag_path(reader: &FlagReader, flag: &'static str) -> Option<FlagPath> {
    reader.path(flag).map(|path| FlagPath { flag, path })
}

fn certificate_files(
    reader: &FlagReader,
    (certificate, key): (&'static str, &'static str),
) -> Result<Option<CertificateFiles>, ConfigError> {
    match (flag_path(reader, certificate), flag_path(reader, key)) {
        (Some(certificate), Some(key)) => Ok(Some(CertificateFiles { certificate, key })),
        (None, None) => Ok(None),
        _ => Err(ConfigError::fatal(format!(
            "--{certificate} and --{key} must both be present [key: {}, cert: {}]",
            reader.text(key),
            reader.text(certificate)
        ))),
    }
}

fn allowed(reader: &FlagReader, flags: &TlsFlags) -> Result<AllowedNames, ConfigError> {
    let (names, hosts) = (reader.words(flags.allowed_names), reader.words(flags.allowed_hosts));
    match (names.is_empty(), hosts.is_empty()) {
        (true, true) => Ok(AllowedNames::Any),
        (false, true) => Ok(AllowedNames::CommonNames(names)),
        (true, false) => Ok(AllowedNames::Hosts(hosts)),
        (false, false) => Err(ConfigError::fatal(format!(
            "--{} and --{} are mutually exclusive",
            flags.allowed_names, flags.allowed_hosts
        ))),
    }
}

fn self_signed_config(
    reader: &FlagReader,
    flags: &TlsFlags,
    urls: &[Url],
    data_dir: &Path,
) -> Result<SelfSignedConfig, ConfigError> {
    let name = "self-signed-cert-validity";
    let years = reader.count(name);
    if !(1..=VALIDITY_YEARS_MAX).contains(&years) {
        return Err(ConfigError::fatal(format!(
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

/// Fails if an advertised address uses TLS and no listener does, or the other way round. For
/// clients the caller only warns, because there may be a proxy in front of this member.
fn check_advertised_schemes(reader: &FlagReader, flags: &TlsFlags) -> Result<(), String> {
    let (listen, advertise) = (reader.urls(flags.listen), reader.urls(flags.advertise));
    let is_served = |url: &Url| listen.iter().any(|known| known.is_secure() == url.is_secure());
    match advertise.iter().find(|url| !is_served(url)) {
        Some(url) => {
            let with = if url.is_secure() { "with" } else { "without" };
            let TlsFlags { listen, advertise, .. } = flags;
            Err(format!("--{advertise} has {url}, and no address of --{listen} is {with} TLS"))
        }
        None => Ok(()),
    }
}

fn protocol(reader: &FlagReader) -> Result<ProtocolConfig, ConfigError> {
    let [min, max] = ["tls-min-version", "tls-max-version"].map(|name| reader.text(name));
    let (lower, upper) = (TlsVersion::parse(min), TlsVersion::parse(max));
    if lower > upper && upper.is_some() {
        return Err(ConfigError::fatal(format!(
            "min version ({min}) is greater than max version ({max})"
        )));
    }
    let name = "cipher-suites";
    let suites = reader.words(name);
    if lower == Some(TlsVersion::Tls13) && !suites.is_empty() {
        let words = "cipher suites cannot be configured when only TLS1.3 is enabled";
        return Err(ConfigError::fatal(format!("--{name}: {words}")));
    }
    if let Some(suite) = suites.iter().find(|suite| !protocol::is_suite(suite)) {
        let known = protocol::suites().join(", ");
        return Err(ConfigError::fatal(format!(
            "--{name}: unexpected TLS cipher suite \"{suite}\"; expected {known}"
        )));
    }
    Ok(ProtocolConfig { suites, min: lower, max: upper })
}
