//! Which certificates are there, and do they fit the addresses?
//!
//! What cannot be meant is refused, and what etcd only warns about is warned about:
//!
//! | said | so |
//! |---|---|
//! | an https address, and no certificate | refused |
//! | half of a pair | refused |
//! | who may come, and no authority to check it | refused |
//! | members are told https and listen to http, or the other way round | refused |
//! | a certificate, and an http address | a warning: it is not used there |
//! | a certificate, and one to be made | a warning: none is made |
//!
//! Where etcd would look at clients' certificates with the authorities that the system trusts, since
//! none are named, anybody who has bought a certificate could come in. Here that is refused.

use std::path::Path;

use super::address::Address;
use super::refusal::Refusal;
use super::typed::Typed;
use crate::tls::protocol::{self, Protocol, Version};
use crate::tls::settings::{Allowed, Made, YEARS_MAX};
use crate::tls::{Named, Pair, Settings, Side};

/// The flags of one kind of connections.
struct Flags {
    certificate: &'static str,
    key: &'static str,
    calling: (&'static str, &'static str),
    trusted: &'static str,
    wants_certificate: &'static str,
    revoked: &'static str,
    allowed_names: &'static str,
    allowed_hosts: &'static str,
    made: &'static str,
    listen: &'static str,
    advertise: &'static str,
    /// Below the data directory.
    kept: &'static str,
}

const CLIENTS: Flags = Flags {
    certificate: "cert-file",
    key: "key-file",
    calling: ("client-cert-file", "client-key-file"),
    trusted: "trusted-ca-file",
    wants_certificate: "client-cert-auth",
    revoked: "client-crl-file",
    allowed_names: "client-cert-allowed-cn",
    allowed_hosts: "client-cert-allowed-hostname",
    made: "auto-tls",
    listen: "listen-client-urls",
    advertise: "advertise-client-urls",
    kept: "fixtures/client",
};

const PEERS: Flags = Flags {
    certificate: "peer-cert-file",
    key: "peer-key-file",
    calling: ("peer-client-cert-file", "peer-client-key-file"),
    trusted: "peer-trusted-ca-file",
    wants_certificate: "peer-client-cert-auth",
    revoked: "peer-crl-file",
    allowed_names: "peer-cert-allowed-cn",
    allowed_hosts: "peer-cert-allowed-hostname",
    made: "peer-auto-tls",
    listen: "listen-peer-urls",
    advertise: "initial-advertise-peer-urls",
    kept: "fixtures/peer",
};

/// All of it.
pub(super) fn settings(
    typed: &Typed<'_>,
    data_dir: &Path,
    warnings: &mut Vec<String>,
) -> Result<Settings, Refusal> {
    let mut client_urls = typed.urls(CLIENTS.listen);
    client_urls.extend(typed.urls("listen-metrics-urls"));
    let peer_urls = typed.urls(PEERS.listen);
    let clients = side(typed, &CLIENTS, &client_urls, data_dir, warnings)?;
    let mut peers = side(typed, &PEERS, &peer_urls, data_dir, warnings)?;
    peers.checks_address = !typed.switch("peer-skip-client-san-verification");
    if peers.made.is_some() && peers.trusted.is_some() {
        return Err(refused(format!(
            "--{} makes a certificate that no authority has signed, so others cannot check it by \
             --{}: take one of the two",
            PEERS.made, PEERS.trusted
        )));
    }
    agree(typed, &PEERS).map_err(refused)?;
    warnings.extend(agree(typed, &CLIENTS).err());
    Ok(Settings { clients, peers, protocol: protocol(typed)? })
}

fn refused(words: impl Into<String>) -> Refusal {
    Refusal::fatal(words)
}

fn side(
    typed: &Typed<'_>,
    flags: &Flags,
    urls: &[Address],
    data_dir: &Path,
    warnings: &mut Vec<String>,
) -> Result<Side, Refusal> {
    let own = pair(typed, flags.certificate, flags.key)?;
    let calling = pair(typed, flags.calling.0, flags.calling.1)?;
    let trusted = named(typed, flags.trusted);
    let is_auto = typed.switch(flags.made);
    if is_auto && own.is_some() {
        let (made, certificate) = (flags.made, flags.certificate);
        warnings.push(format!("ignoring --{made}: there is --{certificate}"));
    }
    let secure = urls.iter().find(|url| url.is_secure());
    if let (Some(url), None, false) = (secure, &own, is_auto) {
        let Flags { certificate, key, made, .. } = flags;
        return Err(refused(format!(
            "TLS key/cert (--{certificate}, --{key}) must be provided for url {url} with HTTPS \
             scheme; or --{made}"
        )));
    }
    needs_authority(typed, flags, trusted.is_some())?;
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
    let made = match is_auto && own.is_none() && secure.is_some() {
        true => Some(made(typed, flags, urls, data_dir)?),
        false => None,
    };
    let (revoked, allowed) = (named(typed, flags.revoked), allowed(typed, flags)?);
    Ok(Side { own, calling, trusted, revoked, allowed, made, checks_address: false })
}

/// What is asked of certificates needs an authority that has signed them.
fn needs_authority(typed: &Typed<'_>, flags: &Flags, has_one: bool) -> Result<(), Refusal> {
    let asked = [flags.revoked, flags.allowed_names, flags.allowed_hosts];
    let asked = asked.into_iter().filter(|name| !typed.text(name).is_empty());
    let wants = Some(flags.wants_certificate).filter(|name| typed.switch(name));
    match wants.into_iter().chain(asked).next() {
        Some(name) if !has_one => {
            let trusted = flags.trusted;
            Err(refused(format!("--{name} needs --{trusted}: who signs these certificates?")))
        }
        _ => Ok(()),
    }
}

fn named(typed: &Typed<'_>, flag: &'static str) -> Option<Named> {
    typed.path(flag).map(|path| Named { flag, path })
}

fn pair(
    typed: &Typed<'_>,
    certificate: &'static str,
    key: &'static str,
) -> Result<Option<Pair>, Refusal> {
    match (named(typed, certificate), named(typed, key)) {
        (Some(certificate), Some(key)) => Ok(Some(Pair { certificate, key })),
        (None, None) => Ok(None),
        _ => Err(refused(format!(
            "--{certificate} and --{key} must both be present [key: {}, cert: {}]",
            typed.text(key),
            typed.text(certificate)
        ))),
    }
}

fn allowed(typed: &Typed<'_>, flags: &Flags) -> Result<Allowed, Refusal> {
    let list = |name| typed.list(name).into_iter().filter(|word| !word.is_empty()).collect();
    let (names, hosts): (Vec<String>, Vec<String>) =
        (list(flags.allowed_names), list(flags.allowed_hosts));
    match (names.is_empty(), hosts.is_empty()) {
        (true, true) => Ok(Allowed::All),
        (false, true) => Ok(Allowed::CommonNames(names)),
        (true, false) => Ok(Allowed::Hosts(hosts)),
        (false, false) => Err(refused(format!(
            "--{} and --{} are mutually exclusive",
            flags.allowed_names, flags.allowed_hosts
        ))),
    }
}

fn made(
    typed: &Typed<'_>,
    flags: &Flags,
    urls: &[Address],
    data_dir: &Path,
) -> Result<Made, Refusal> {
    let name = "self-signed-cert-validity";
    let years = typed.count(name);
    if !(1..=YEARS_MAX).contains(&years) {
        return Err(refused(format!("--{name} must be 1 to {YEARS_MAX} (set to {years})")));
    }
    let secure = urls.iter().filter(|url| url.is_secure());
    let mut hosts: Vec<String> = secure.filter_map(Address::host).map(str::to_owned).collect();
    hosts.sort();
    hosts.dedup();
    Ok(Made { flag: flags.made, dir: data_dir.join(flags.kept), hosts, years })
}

/// Whoever is told an address must find there what it says. Somebody may stand in between.
fn agree(typed: &Typed<'_>, flags: &Flags) -> Result<(), String> {
    let (listen, advertise) = (typed.urls(flags.listen), typed.urls(flags.advertise));
    let missing = advertise.iter().find(|told| {
        let is_heard = |url: &&Address| url.is_secure() == told.is_secure();
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

fn protocol(typed: &Typed<'_>) -> Result<Protocol, Refusal> {
    let [min, max] = ["tls-min-version", "tls-max-version"].map(|name| typed.text(name));
    let versions = (Version::named(min), Version::named(max));
    if let (Some(lower), Some(upper)) = versions
        && lower > upper
    {
        return Err(refused(format!("min version ({min}) is greater than max version ({max})")));
    }
    let name = "cipher-suites";
    let suites = typed.list(name).into_iter().filter(|word| !word.is_empty());
    let suites: Vec<String> = suites.collect();
    if versions.0 == Some(Version::Tls13) && !suites.is_empty() {
        let words = "cipher suites cannot be configured when only TLS1.3 is enabled";
        return Err(refused(format!("--{name}: {words}")));
    }
    if let Some(suite) = suites.iter().find(|suite| !protocol::is_suite(suite)) {
        let known = protocol::suites().join(", ");
        return Err(refused(format!(
            "--{name}: unexpected TLS cipher suite \"{suite}\"; there are {known}"
        )));
    }
    Ok(Protocol { suites, min: versions.0, max: versions.1 })
}
