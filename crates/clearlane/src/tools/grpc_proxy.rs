//! `grpc-proxy start`: a proxy in front of a cluster, with etcd's flags. The crate
//! `clearlane_proxy` describes how it works.
//!
//! A wrong flag is reported before the proxy listens. The proxy starts even if no member can be
//! reached. Scripts wait for the log line `started gRPC proxy`.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clearlane_net::tls::config::{SelfSignedConfig, VALIDITY_YEARS_MAX};
use clearlane_net::tls::protocol::{self, ProtocolConfig, TlsVersion};
use clearlane_net::tls::{CertificateFiles, Dialer, FlagPath, TlsAcceptor, TlsInfo};
use clearlane_proxy::cache::CacheConfig;
use clearlane_proxy::cache::contents::HistoryLimits;
use clearlane_proxy::login::CertificateUsers;
use clearlane_proxy::namespace::Namespace;
use clearlane_proxy::pages::ProfilePages;
use clearlane_proxy::registration::RegistrationConfig;
use clearlane_proxy::serve::{self, Proxy, ProxyConfig};
use clearlane_proxy::upstream::{PingConfig, UpstreamConfig};
use tokio::signal::unix::{SignalKind, signal};

use super::endpoints::{member_url, reject_own_address};
use super::{Action, BoxError, Tool, srv_endpoints};
use crate::config::arguments::FlagReader;
use crate::config::table::{Flag, flag};
use crate::config::value::ValueKind::{Count, Duration as Time, Number, OneOf, Switch, Text};
use crate::config::{LogConfig, LogFormat, LogOutput, value};
use crate::{logging, process_limits, profiling, run, timeline};

pub(super) const TOOL: Tool = Tool {
    name: &["grpc-proxy", "start"],
    about: "Start a proxy that answers reads and watches from a coherent cache",
    positional: &[],
    words: None,
    flags: FLAGS,
    action: Action::Print(start),
};

const VERSIONS: &[&str] = &["", "TLS1.2", "TLS1.3"];

/// Members of etcd close connections that ping more often than every five seconds.
const PING_INTERVAL_MIN: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The limit of `--max-send-bytes 0`. It is the default of etcd's client, as in etcd's proxy.
const REQUEST_BYTES_MAX_IF_ZERO: usize = 2 << 20;

const FLAGS: &[Flag] = &[
    flag("listen-addr", Text, "127.0.0.1:23790")
        .help("Address to listen on: HOST:PORT, or :PORT for all interfaces."),
    flag("endpoints", Text, "127.0.0.1:2379").help(
        "Client addresses of the cluster's members, separated by commas: HOST:PORT, or a URL with \
         the scheme http, https, unix or unixs.",
    ),
    srv_endpoints::DOMAIN,
    srv_endpoints::NAME,
    srv_endpoints::INSECURE,
    flag("endpoints-auto-sync-interval", Time, "0s").help(
        "Interval at which the endpoints are replaced by the client URLs of the members. 0 turns \
         this off.",
    ),
    flag("advertise-client-url", Text, "127.0.0.1:23790").help(
        "Address that MemberList returns. If it is empty, MemberList returns the cluster's members.",
    ),
    flag("resolver-prefix", Text, "")
        .help("Key prefix under which the proxy registers itself. Needs --resolver-ttl."),
    flag("resolver-ttl", Number, "0").help("TTL of the registration, in seconds."),
    flag("namespace", Text, "")
        .help("Prefix that the proxy adds to the keys of all clients, and removes from answers."),
    flag("data-dir", Text, "default.proxy").help("Directory of the certificate of --auto-tls."),
    flag("max-send-bytes", Count, "1572864")
        .help("Maximum size of a request message in bytes. 0 means 2 MiB."),
    flag("max-recv-bytes", Count, "2147483647")
        .ignored("Maximum size of a response message in bytes.", "responses have no limit"),
    flag("dial-keepalive-time", Time, "0s").help(
        "Interval of pings to members, at least 10s. 0 turns them off: each member is probed twice \
         a second anyway.",
    ),
    flag("dial-keepalive-timeout", Time, "20s")
        .help("Time for the answer to a ping of --dial-keepalive-time. 0 means 20s."),
    flag("permit-without-stream", Switch, "false").help("Ping members also without open calls."),
    flag("grpc-keepalive-min-time", Time, "5s").help(
        "Minimum interval of a client's pings. A client that pings more often loses its \
         connection. 0 turns this off.",
    ),
    flag("grpc-keepalive-interval", Time, "2h")
        .help("Idle time after which a client is pinged. 0 means 2h."),
    flag("grpc-keepalive-timeout", Time, "20s")
        .help("Time for a client's answer to a ping. 0 means 20s."),
    flag("max-concurrent-streams", Count, "4294967295")
        .help("Maximum number of open streams of one client connection. 0 means no limit."),
    flag("cert", Text, "").help("Certificate that is shown to members (PEM file)."),
    flag("key", Text, "").help("Private key of --cert (PEM file)."),
    flag("cacert", Text, "").help("Authority that verifies the members (PEM file)."),
    flag("insecure-skip-tls-verify", Switch, "false")
        .help("Use TLS towards the members without verifying their certificates."),
    flag("cert-file", Text, "").help("Certificate that is shown to clients (PEM file)."),
    flag("key-file", Text, "").help("Private key of --cert-file (PEM file)."),
    flag("trusted-ca-file", Text, "")
        .help("Authority of clients. If it is set, each client must show a certificate (PEM file)."),
    flag("client-cert-users", Text, "").help(
        "File with the users of client certificates: lines COMMON-NAME USER PASSWORD-FILE. The \
         proxy logs in for clients with such a certificate and without a token.",
    ),
    flag("client-crl-file", Text, "").help("Revoked client certificates (PEM file)."),
    flag("auto-tls", Switch, "false").help("Use TLS towards clients with a generated certificate."),
    flag("self-signed-cert-validity", Count, "1")
        .help("Validity of the generated certificate, in years."),
    flag("listen-cipher-suites", Text, "")
        .help("Cipher suites of TLS 1.2 towards clients, separated by commas."),
    flag("tls-min-version", OneOf(VERSIONS), "TLS1.2").help("Minimum TLS version of clients."),
    flag("tls-max-version", OneOf(VERSIONS), "").help("Maximum TLS version of clients."),
    flag("metrics-addr", Text, "").help(
        "Second address for health and metrics: http://HOST:PORT, or https://HOST:PORT with the \
         certificate of --cert-file.",
    ),
    flag("enable-pprof", Switch, "false").help(
        "Serve profiles of processor time and memory below /debug/pprof/, in pprof's format.",
    ),
    flag("experimental-serializable-ordering", Switch, "false").ignored(
        "Never answer with an older revision than before.",
        "answers from the cache always have this order for each connection",
    ),
    flag("experimental-leasing-prefix", Text, "").help(
        "Not available: the cache answers linearizable reads without leases. Any value is an error.",
    ),
    flag("experimental-enable-grpc-logging", Switch, "false")
        .ignored("Log every message.", "messages contain values and passwords"),
    flag("debug", Switch, "false").help("Write a debug log."),
    flag("cache-prefix", Text, "").help(
        "Key prefixes that are always cached, separated by commas. Other ranges are cached when \
         clients watch or often read them.",
    ),
    flag("cache-on-demand", Switch, "true")
        .help("Cache the ranges that clients watch or often read."),
    flag("cache-bytes", Count, "268435456")
        .help("Maximum memory of all cached ranges together, with their events."),
    flag("cache-history-bytes", Count, "67108864")
        .help("Maximum memory of the events that are kept for watches of one cached range."),
    flag("cache-max-lag", Time, "1s").help(
        "Maximum age of the answer to a serializable read. An older read is forwarded.",
    ),
    flag("timeline", Text, "").help(
        "File for a timeline of what each request and each watch event waited for (empty: none). \
         SIGUSR1 stops the recording and writes the file, or starts a new recording.",
    ),
];

fn start(flags: &FlagReader, _: &[String], _: &mut dyn Write) -> Result<(), BoxError> {
    let level = if flags.switch("debug") { "debug" } else { "info" };
    let outputs = vec![LogOutput::Stderr];
    let (level, format) = (level.to_owned(), LogFormat::Json);
    logging::start(&LogConfig { level, format, outputs, rotation: None })?;
    let leasing = "experimental-leasing-prefix";
    if flags.is_set(leasing) && !flags.text(leasing).is_empty() {
        return Err(format!(
            "--{leasing} is not available: the cache answers linearizable reads without leases. \
             Remove the flag; --cache-prefix names what is always cached"
        )
        .into());
    }
    let metrics = metrics_address(flags, tls_is_on(flags))?;
    let recording = flags.path("timeline");
    if let Some(file) = &recording {
        timeline::check_writable(file)?;
    }
    let tls = acceptor(flags)?;
    let users = certificate_users(flags)?;
    let address = socket_address(flags, "listen-addr")?;
    // Clients have their own threads. Fewer threads for the rest mean fewer switches between them.
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads((cores / 2).max(1)).enable_all().build()?;
    let done = runtime.block_on(async {
        let config = proxy_config(flags, users).await?;
        let listener =
            serve::listen(address).map_err(|error| format!("--listen-addr {address}: {error}"))?;
        let address = listener.local_addr()?;
        reject_own_address(address, &config.upstream.endpoints).await?;
        let metrics = metrics.map(|(address, is_secure)| {
            let bound = serve::listen(address);
            let bound = bound.map_err(|error| format!("--metrics-addr {address}: {error}"));
            bound.map(|listener| (listener, tls.clone().filter(|_| is_secure)))
        });
        let metrics = metrics.transpose()?;
        let proxy = Arc::new(Proxy::start(config));
        let (trace, header) = (Arc::clone(&proxy.services().trace), timeline::header_of_proxy());
        if recording.is_some() {
            timeline::Recorder::start(&*trace);
        }
        let on_signal = timeline::record_on_signal(&trace, &header, recording.as_deref());
        tracing::info!(%address, "started gRPC proxy");
        run::notify_systemd();
        let mut ends = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let stopping = Arc::clone(&proxy);
        tokio::spawn(async move {
            tokio::select! {
                _ = ends.0.recv() => {}
                _ = ends.1.recv() => {}
            }
            tracing::info!("stopping the gRPC proxy");
            stopping.stop();
        });
        if let Some((listener, tls)) = metrics {
            let proxy = Arc::clone(&proxy);
            tokio::spawn(async move { proxy.serve_pages(listener, tls).await });
        }
        tokio::select! {
            served = proxy.serve(listener, tls) => served?,
            failed = on_signal => return Err(failed.into()),
        }
        timeline::write(&*trace, &header, recording.as_deref());
        Ok(())
    });
    // A DNS query in progress may take long, and its result is no longer needed.
    runtime.shutdown_background();
    done
}

fn tls_is_on(flags: &FlagReader) -> bool {
    !flags.text("cert-file").is_empty() || flags.switch("auto-tls")
}

/// Returns the address of the second listener, and whether it uses TLS.
fn metrics_address(
    flags: &FlagReader,
    has_certificate: bool,
) -> Result<Option<(SocketAddr, bool)>, BoxError> {
    let url = flags.text("metrics-addr");
    if url.is_empty() {
        return Ok(None);
    }
    let wrong = |why: &str| format!("--metrics-addr {url}: {why}");
    let (scheme, host) =
        url.split_once("://").ok_or_else(|| wrong("expected http://HOST:PORT or https://..."))?;
    let is_secure = match scheme {
        "http" => false,
        "https" if has_certificate => true,
        "https" => return Err(wrong("https needs --cert-file and --key-file").into()),
        _ => return Err(wrong("the scheme must be http or https").into()),
    };
    let address = page_address(host).map_err(|why| wrong(&why))?;
    Ok(Some((address, is_secure)))
}

/// Returns the address of HOST:PORT in the URL of a metrics page.
pub(super) fn page_address(host: &str) -> Result<SocketAddr, String> {
    let host = host.strip_suffix('/').unwrap_or(host);
    if host.contains(['/', '?', '#']) {
        return Err("a path or a query is not allowed".to_owned());
    }
    resolve(host)
}

/// Reads the file of `--client-cert-users`. It is of no use if clients show no certificates.
fn certificate_users(flags: &FlagReader) -> Result<CertificateUsers, BoxError> {
    let Some(path) = flags.path("client-cert-users") else {
        return Ok(CertificateUsers::default());
    };
    if !tls_is_on(flags) || flags.text("trusted-ca-file").is_empty() {
        return Err("--client-cert-users needs --trusted-ca-file, and --cert-file or --auto-tls: \
                    without them, clients show no certificates"
            .into());
    }
    let users = CertificateUsers::read(&path);
    users.map_err(|why| format!("--client-cert-users {}: {why}", path.display()).into())
}

async fn proxy_config(
    flags: &FlagReader,
    certificate_users: CertificateUsers,
) -> Result<ProxyConfig, BoxError> {
    let (dialer, uses_tls) = dialer(flags)?;
    let endpoints = endpoints(flags, &dialer).await?;
    let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host_name = host_name.trim().to_owned();
    let advertised_url = flags.text("advertise-client-url").to_owned();
    let size = |name| usize::try_from(flags.count(name)).unwrap_or(usize::MAX);
    Ok(ProxyConfig {
        upstream: UpstreamConfig {
            endpoints,
            dialer,
            uses_tls,
            sync_interval: time(flags, "endpoints-auto-sync-interval")?,
            pings: pings(flags)?,
        },
        cache: CacheConfig {
            prefixes: words(flags.text("cache-prefix")).into_iter().map(String::into).collect(),
            on_demand: flags.switch("cache-on-demand"),
            bytes_max: size("cache-bytes"),
            history: HistoryLimits {
                bytes_max: size("cache-history-bytes"),
                ..HistoryLimits::default()
            },
            lag_max: time(flags, "cache-max-lag")?,
            ..CacheConfig::default()
        },
        namespace: Namespace::new(flags.text("namespace")),
        certificate_users,
        profiles: flags.switch("enable-pprof").then(|| {
            let pages = profiling::start();
            ProfilePages::new(move |name, query| {
                let pages = pages.clone();
                Box::pin(async move { pages.response(name, query).await })
            })
        }),
        registration: registration(flags, &advertised_url, &host_name)?,
        advertised_url,
        host_name,
        request_bytes_max: request_bytes_max(flags),
        keep_alive_interval: time(flags, "grpc-keepalive-interval")?,
        keep_alive_timeout: time(flags, "grpc-keepalive-timeout")?,
        ping_interval_min: time(flags, "grpc-keepalive-min-time")?,
        connections_max: process_limits::proxied_connections_max(),
        concurrent_streams_max: u32::try_from(flags.count("max-concurrent-streams"))
            .unwrap_or(u32::MAX),
        ..ProxyConfig::default()
    })
}

fn request_bytes_max(flags: &FlagReader) -> usize {
    match flags.count("max-send-bytes") {
        0 => REQUEST_BYTES_MAX_IF_ZERO,
        bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
    }
}

/// Returns the pings to members, if the operator wants them. gRPC for Go has the same minimum.
fn pings(flags: &FlagReader) -> Result<Option<PingConfig>, BoxError> {
    let interval = time(flags, "dial-keepalive-time")?;
    let timeout = time(flags, "dial-keepalive-timeout")?;
    let pings = PingConfig {
        interval: interval.max(PING_INTERVAL_MIN),
        timeout: if timeout.is_zero() { PING_TIMEOUT } else { timeout },
        without_calls: flags.switch("permit-without-stream"),
    };
    Ok((!interval.is_zero()).then_some(pings))
}

/// Returns the endpoints in SRV records as URLs, or else the value of `--endpoints`.
async fn endpoints(flags: &FlagReader, dialer: &Dialer) -> Result<Vec<String>, BoxError> {
    let has_authority = !flags.text("cacert").is_empty();
    let authority = Some(dialer).filter(|_| has_authority);
    let found = srv_endpoints::discover(flags, authority).await?;
    let urls = found.iter().map(|found| format!("{}://{}", found.scheme, found.target.address()));
    let mut endpoints: Vec<String> = urls.collect();
    if endpoints.is_empty() {
        let all = words(flags.text("endpoints"));
        endpoints = all.iter().map(|one| member_url(one)).collect::<Result<_, _>>()?;
    }
    if endpoints.is_empty() {
        return Err("--endpoints: no endpoint is given".into());
    }
    Ok(endpoints)
}

fn registration(
    flags: &FlagReader,
    advertised_url: &str,
    host_name: &str,
) -> Result<Option<RegistrationConfig>, BoxError> {
    let (prefix, ttl_seconds) = (flags.text("resolver-prefix"), flags.number("resolver-ttl"));
    match (prefix.is_empty(), ttl_seconds) {
        (true, 0) => Ok(None),
        (false, 1..) => Ok(Some(RegistrationConfig {
            prefix: prefix.to_owned(),
            ttl_seconds,
            address: advertised_url.to_owned(),
            host_name: host_name.to_owned(),
        })),
        (true, _) => {
            Err(format!("invalid resolver-prefix {prefix:?}: --resolver-ttl needs it").into())
        }
        (false, _) => Err(format!(
            "invalid resolver-ttl {ttl_seconds}: it must be at least 1 with --resolver-prefix"
        )
        .into()),
    }
}

/// Returns the dialer for members, and whether endpoints without a scheme use TLS.
fn dialer(flags: &FlagReader) -> Result<(Dialer, bool), BoxError> {
    let certificate = certificate(flags, "cert", "key")?;
    if let Some(pair) = &certificate {
        // A member with --client-cert-auth would take this name for the user of every call.
        let name = pair.common_name()?;
        if !name.is_empty() {
            return Err(format!(
                "cert has non empty Common Name ({name}): use a client certificate without one"
            )
            .into());
        }
    }
    let trusted_ca = file(flags, "cacert");
    if flags.switch("insecure-skip-tls-verify") {
        return Ok((Dialer::without_verification(certificate)?, true));
    }
    if certificate.is_none() && trusted_ca.is_none() {
        return Ok((Dialer::new(&TlsInfo::default(), &ProtocolConfig::default())?, false));
    }
    let info = TlsInfo { client_certificate: certificate, trusted_ca, ..TlsInfo::default() };
    Ok((Dialer::new(&info, &ProtocolConfig::default())?, true))
}

fn acceptor(flags: &FlagReader) -> Result<Option<Arc<TlsAcceptor>>, BoxError> {
    let server_certificate = certificate(flags, "cert-file", "key-file")?;
    let mut info = TlsInfo {
        trusted_ca: file(flags, "trusted-ca-file"),
        crl: file(flags, "client-crl-file"),
        ..TlsInfo::default()
    };
    let protocol = protocol(flags)?;
    let has_tls = server_certificate.is_some() || flags.switch("auto-tls");
    if info.trusted_ca.is_some() && !has_tls {
        return Err("--trusted-ca-file needs --cert-file and --key-file, or --auto-tls: without \
                    them, clients are served without TLS"
            .into());
    }
    if info.crl.is_some() && info.trusted_ca.is_none() {
        // etcd starts, and its own tests rely on that.
        tracing::warn!(
            "--client-crl-file has no effect without --trusted-ca-file: clients show no certificates"
        );
        info.crl = None;
    }
    if !has_tls {
        return Ok(None);
    }
    if server_certificate.is_none() {
        let years = flags.count("self-signed-cert-validity");
        if !(1..=VALIDITY_YEARS_MAX).contains(&years) {
            return Err(
                format!("--self-signed-cert-validity must be 1 to {VALIDITY_YEARS_MAX}").into()
            );
        }
        let host = socket_address(flags, "listen-addr")?.ip().to_string();
        let dir = PathBuf::from(flags.text("data-dir")).join("fixtures/proxy");
        info.self_signed =
            Some(SelfSignedConfig { flag: "auto-tls", dir, hosts: vec![host], years });
    }
    info.server_certificate = server_certificate;
    Ok(Some(Arc::new(TlsAcceptor::new("client", &info, &protocol)?)))
}

fn protocol(flags: &FlagReader) -> Result<ProtocolConfig, BoxError> {
    let [min, max] = ["tls-min-version", "tls-max-version"].map(|name| flags.text(name));
    let (lower, upper) = (TlsVersion::parse(min), TlsVersion::parse(max));
    if upper.is_some() && lower > upper {
        return Err(format!("min version ({min}) is greater than max version ({max})").into());
    }
    let suites = words(flags.text("listen-cipher-suites"));
    if lower == Some(TlsVersion::Tls13) && !suites.is_empty() {
        let why = "cipher suites cannot be configured when only TLS1.3 is enabled";
        return Err(format!("--listen-cipher-suites: {why}").into());
    }
    if let Some(suite) = suites.iter().find(|suite| !protocol::is_suite(suite)) {
        let known = protocol::suites().join(", ");
        return Err(format!(
            "--listen-cipher-suites: unexpected TLS cipher suite \"{suite}\"; expected {known}"
        )
        .into());
    }
    Ok(ProtocolConfig { suites, min: lower, max: upper })
}

fn certificate(
    flags: &FlagReader,
    certificate: &'static str,
    key: &'static str,
) -> Result<Option<CertificateFiles>, BoxError> {
    match (file(flags, certificate), file(flags, key)) {
        (Some(certificate), Some(key)) => Ok(Some(CertificateFiles { certificate, key })),
        (None, None) => Ok(None),
        _ => Err(format!("--{certificate} and --{key} must both be present").into()),
    }
}

fn file(flags: &FlagReader, flag: &'static str) -> Option<FlagPath> {
    flags.path(flag).map(|path| FlagPath { flag, path })
}

pub(super) fn time(flags: &FlagReader, name: &str) -> Result<Duration, BoxError> {
    let text = flags.text(name);
    value::time(text).ok_or_else(|| format!("--{name} must not be below 0 (set to {text})").into())
}

pub(super) fn socket_address(flags: &FlagReader, name: &str) -> Result<SocketAddr, BoxError> {
    let text = flags.text(name);
    let wrong = |why: String| format!("--{name} {text}: {why}; expected HOST:PORT or :PORT").into();
    resolve(text).map_err(wrong)
}

/// Returns the address of HOST:PORT. Without a host, the address stands for all interfaces, as in
/// etcd. With IPv6, it also accepts connections over IPv4.
pub(super) fn resolve(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix(':') {
        let port = port.parse().map_err(|_| "the port must be 0 to 65535")?;
        let any: IpAddr = Ipv6Addr::UNSPECIFIED.into();
        let has_ipv6 = UdpSocket::bind((any, 0)).is_ok();
        return Ok((if has_ipv6 { any } else { Ipv4Addr::UNSPECIFIED.into() }, port).into());
    }
    let mut found = text.to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| "the host has no address".to_owned())
}

pub(super) fn words(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the values of flags that are given as pairs of name and value.
    fn flags(given: &[(&'static str, &str)]) -> FlagReader {
        let values = given.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        FlagReader { values, flags: FLAGS.iter().collect() }
    }

    #[test]
    fn an_address_without_a_host_stands_for_all_interfaces() {
        let address = socket_address(&flags(&[("listen-addr", ":23790")]), "listen-addr").unwrap();
        assert!(address.ip().is_unspecified() && address.port() == 23790, "{address}");
        let address = socket_address(&flags(&[("listen-addr", "[::1]:1")]), "listen-addr").unwrap();
        assert_eq!(address.to_string(), "[::1]:1");
        for (text, why) in [
            (":99999", "the port must be 0 to 65535"),
            (":", "the port must be 0 to 65535"),
            ("127.0.0.1", "invalid socket address"),
        ] {
            let error = socket_address(&flags(&[("listen-addr", text)]), "listen-addr");
            let expected = format!("--listen-addr {text}: {why}; expected HOST:PORT or :PORT");
            assert_eq!(error.unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn no_size_of_requests_is_the_default_of_etcds_client() {
        for (given, bytes) in [("0", 2 << 20), ("1", 1), ("1572864", 1_572_864)] {
            assert_eq!(request_bytes_max(&flags(&[("max-send-bytes", given)])), bytes);
        }
        let flag = FLAGS.iter().find(|flag| flag.name == "max-send-bytes").unwrap();
        assert!(flag.kind.check("-1").is_err());
    }

    #[test]
    fn the_url_of_the_metrics_page_has_no_path() {
        let at = |url: &str| metrics_address(&flags(&[("metrics-addr", url)]), false);
        let address = "127.0.0.1:9999".parse().unwrap();
        for url in ["http://127.0.0.1:9999", "http://127.0.0.1:9999/"] {
            assert_eq!(at(url).unwrap(), Some((address, false)));
        }
        for (url, why) in [
            ("http://127.0.0.1:9999/path", "a path or a query is not allowed"),
            ("http://127.0.0.1:9999?a", "a path or a query is not allowed"),
            ("https://127.0.0.1:9999", "https needs --cert-file and --key-file"),
            ("ftp://127.0.0.1:9999", "the scheme must be http or https"),
        ] {
            let error = at(url).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--metrics-addr {url}: {why}")), "{error}");
        }
    }

    #[test]
    fn a_tls_file_without_a_certificate_is_an_error() {
        let needs_certificate = "needs --cert-file and --key-file, or --auto-tls";
        for (given, expected) in [
            (&[("trusted-ca-file", "/a")][..], needs_certificate),
            (&[("trusted-ca-file", "/a"), ("client-crl-file", "/a")], needs_certificate),
            (&[("cert-file", "/a")], "--cert-file and --key-file must both be present"),
        ] {
            let error = acceptor(&flags(given)).unwrap_err().to_string();
            assert!(error.contains(expected), "{given:?}: {error}");
        }
        assert!(acceptor(&flags(&[])).unwrap().is_none());
        assert!(acceptor(&flags(&[("client-crl-file", "/a")])).unwrap().is_none());
    }
}
