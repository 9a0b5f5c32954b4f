//! `gateway start`: a TCP proxy in front of a cluster, with etcd's flags. The module
//! `clearlane_proxy::gateway` describes how it works.
//!
//! A wrong flag is reported before the gateway listens. The gateway starts even if no endpoint can
//! be reached. Scripts wait for the log line `ready to proxy client requests`. SIGTERM and SIGINT
//! stop it, with status 0.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clearlane_net::tls::protocol::ProtocolConfig;
use clearlane_net::tls::{Dialer, FlagPath, TlsInfo};
use clearlane_proxy::gateway::endpoints::EndpointConfig;
use clearlane_proxy::gateway::{Gateway, GatewayConfig};
use clearlane_proxy::serve;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::endpoints::{host_and_port, own_address};
use super::grpc_proxy::{page_address, socket_address, time, words};
use super::{Action, BoxError, Tool, srv_endpoints};
use crate::config::arguments::FlagReader;
use crate::config::table::{Flag, flag};
use crate::config::value::ValueKind::{Duration as Time, Text};
use crate::config::{LogConfig, LogFormat, LogOutput};
use crate::{logging, process_limits, run};

pub(super) const TOOL: Tool = Tool {
    name: &["gateway", "start"],
    about: "Start a proxy that forwards each TCP connection to one member",
    positional: &[],
    words: None,
    flags: FLAGS,
    action: Action::Print(start),
};

/// The retry delay if `--retry-delay` is 0, as in etcd.
const RETRY_DELAY_IF_ZERO: Duration = Duration::from_secs(5 * 60);

const FLAGS: &[Flag] = &[
    flag("listen-addr", Text, "127.0.0.1:23790")
        .help("Address to listen on: HOST:PORT, or :PORT for all interfaces."),
    flag("endpoints", Text, "127.0.0.1:2379").help(
        "Client addresses of the cluster's members, HOST:PORT, separated by commas. A scheme is \
         ignored.",
    ),
    flag("retry-delay", Time, "1m").help(
        "Maximum time until an endpoint is tried again after a failure. Every endpoint is also \
         probed every 5 seconds. 0 means 5m.",
    ),
    srv_endpoints::DOMAIN,
    srv_endpoints::NAME,
    srv_endpoints::INSECURE,
    flag("trusted-ca-file", Text, "").help(
        "Authority that verifies the endpoints of --discovery-srv once, at start (PEM file). It \
         does not apply to --endpoints, and forwarded connections are not checked.",
    ),
    flag("metrics-addr", Text, "").help(
        "URL on which /metrics shows the gateway's metrics: http://HOST:PORT. If it is empty, \
         there is no such page.",
    ),
];

fn start(flags: &FlagReader, _: &[String], _: &mut dyn Write) -> Result<(), BoxError> {
    let outputs = vec![LogOutput::Stderr];
    let (level, format) = ("info".to_owned(), LogFormat::Json);
    logging::start(&LogConfig { level, format, outputs, rotation: None })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(run(flags));
    // Do not wait for the resolution of a host name that is still in progress.
    runtime.shutdown_background();
    done
}

async fn run(flags: &FlagReader) -> Result<(), BoxError> {
    let address = socket_address(flags, "listen-addr")?;
    let metrics_address = metrics_address(flags)?;
    let config = GatewayConfig {
        retry_delay: match time(flags, "retry-delay")? {
            Duration::ZERO => RETRY_DELAY_IF_ZERO,
            delay => delay,
        },
        endpoints: endpoints(flags).await?,
        connections_max: process_limits::proxied_connections_max(),
        seed: std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), address),
        ..GatewayConfig::default()
    };
    let listen = |flag, address: SocketAddr| {
        serve::listen(address).map_err(|error| format!("--{flag} {address}: {error}"))
    };
    let listener = listen("listen-addr", address)?;
    let metrics = match metrics_address {
        Some(address) => Some(listen("metrics-addr", address)?),
        None => None,
    };
    let address = listener.local_addr()?;
    reject_itself(address, &config.endpoints).await?;
    let all: Vec<&str> = config.endpoints.iter().map(|all| all.address.as_str()).collect();
    let all = all.join(",");
    let gateway = Arc::new(Gateway::start(config));
    tracing::info!(%address, endpoints = all, "ready to proxy client requests");
    run::notify_systemd();
    stop_on_signal(&gateway)?;
    let serves_metrics = serve_metrics(&gateway, metrics);
    gateway.serve(listener).await;
    serves_metrics.await?;
    Ok(())
}

fn stop_on_signal(gateway: &Arc<Gateway>) -> std::io::Result<()> {
    let mut ends = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stopping = Arc::clone(gateway);
    tokio::spawn(async move {
        tokio::select! {
            _ = ends.0.recv() => {}
            _ = ends.1.recv() => {}
        }
        tracing::info!("stopping the gateway");
        stopping.stop();
    });
    Ok(())
}

fn serve_metrics(
    gateway: &Arc<Gateway>,
    listener: Option<TcpListener>,
) -> tokio::task::JoinHandle<()> {
    let gateway = Arc::clone(gateway);
    tokio::spawn(async move {
        let Some(listener) = listener else { return };
        if let Ok(address) = listener.local_addr() {
            tracing::info!(%address, "serving metrics");
        }
        gateway.serve_metrics(listener).await;
    })
}

/// Returns the address in `--metrics-addr`, or `None` if the flag is empty.
fn metrics_address(flags: &FlagReader) -> Result<Option<SocketAddr>, BoxError> {
    let text = flags.text("metrics-addr");
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |why: String| format!("--metrics-addr {text}: {why}; expected http://HOST:PORT");
    let host = text.strip_prefix("http://").ok_or_else(|| wrong("it is no http URL".to_owned()))?;
    page_address(host).map(Some).map_err(|why| wrong(why).into())
}

/// Returns the endpoints without duplicates.
async fn endpoints(flags: &FlagReader) -> Result<Vec<EndpointConfig>, BoxError> {
    let authority = authority(flags)?;
    let found = srv_endpoints::discover(flags, authority.as_ref()).await?;
    let discovered = found.into_iter().map(|found| EndpointConfig {
        address: found.target.address(),
        priority: found.target.priority,
        weight: found.target.weight,
    });
    let mut all: Vec<EndpointConfig> = discovered.collect();
    if all.is_empty() {
        for endpoint in words(flags.text("endpoints")) {
            all.push(EndpointConfig::new(host_and_port(&endpoint)?));
        }
    }
    if all.is_empty() {
        return Err("--endpoints: no endpoint is given".into());
    }
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|endpoint| seen.insert(endpoint.address.clone()));
    Ok(all)
}

/// Returns the dialer that verifies endpoints of `--discovery-srv`. `None` if no authority is
/// given, or if there is no `--discovery-srv`.
fn authority(flags: &FlagReader) -> Result<Option<Dialer>, BoxError> {
    let flag = "trusted-ca-file";
    let Some(path) = flags.path(flag) else { return Ok(None) };
    if flags.text(srv_endpoints::DOMAIN.name).is_empty() {
        tracing::warn!("--trusted-ca-file has no effect: it applies to --discovery-srv only");
        return Ok(None);
    }
    let info = TlsInfo { trusted_ca: Some(FlagPath { flag, path }), ..TlsInfo::default() };
    Ok(Some(Dialer::new(&info, &ProtocolConfig::default())?))
}

/// Fails if an endpoint is the gateway's own address. Each connection would then open another
/// connection, without end. A host that cannot be resolved is accepted, because it may have an
/// address later.
async fn reject_itself(own: SocketAddr, endpoints: &[EndpointConfig]) -> Result<(), BoxError> {
    for EndpointConfig { address, .. } in endpoints {
        match own_address(own, address).await {
            Ok(None) => {}
            Ok(Some(at)) => {
                let why = "is the gateway's own address";
                return Err(format!("the endpoint {address} ({at}) {why}").into());
            }
            Err(error) => {
                tracing::warn!(endpoint = address, %error, "the host of this endpoint is not known");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_gateway_does_not_connect_to_itself() {
        let endpoints = ["127.0.0.1:1", "127.0.0.1:2"].map(EndpointConfig::new);
        for (own, is_rejected) in [
            ("127.0.0.1:2", true),
            ("0.0.0.0:1", true),
            ("127.0.0.2:2", false),
            ("127.0.0.1:3", false),
        ] {
            let result = reject_itself(own.parse().unwrap(), &endpoints).await;
            assert_eq!(result.is_err(), is_rejected, "{own}");
        }
    }
}
