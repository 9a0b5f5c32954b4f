//! Tests of the command `clearlane gateway start`.

use std::process::Output;

use clearlane_net::free_ports;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use nix::sys::signal::Signal;

use crate::program::{RunningProgram, failure, member, program};
use crate::support::{block_on, connect, get, http_get, put};

const READY: &str = "ready to proxy client requests";

#[test]
fn a_client_reaches_the_cluster_through_the_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = RunningProgram::start(&mut member(dir.path(), &[]));
    let server_address = server.ready();
    // No process listens at the first endpoint. Flags may precede `start`.
    let dead = free_ports(1).unwrap()[0];
    let endpoints = format!("--endpoints=127.0.0.1:{dead},http://{server_address}");
    let mut gateway = RunningProgram::start(&mut program(&[
        "gateway",
        "--listen-addr=127.0.0.1:0",
        &endpoints,
        "start",
        "--metrics-addr=http://127.0.0.1:0",
    ]));
    let line = gateway.json(READY);
    assert_eq!(line["endpoints"], format!("127.0.0.1:{dead},{server_address}"));
    let address = line["address"].as_str().unwrap().to_owned();
    let metrics_address = gateway.address("serving metrics");
    block_on(async {
        let mut client = KvClient::new(connect(&address).await);
        client.put(put("key", "value")).await.unwrap();
        let found = client.range(get("key")).await.unwrap().into_inner();
        assert_eq!(found.kvs[0].value, "value");
    });
    let page = http_get(metrics_address.as_str(), "/metrics");
    assert!(page.contains("\nclearlane_gateway_connections_total 1\n"), "{page}");
    let up = format!("clearlane_gateway_endpoint_up{{endpoint=\"{server_address}\"}} 1\n");
    assert!(page.contains(&up), "{page}");
    gateway.signal(Signal::SIGTERM);
    let (status, said) = gateway.end();
    assert_eq!(status.code(), Some(0), "{said:#?}");
}

#[test]
fn without_a_command_there_is_the_help() {
    for arguments in [&["gateway"][..], &["grpc-proxy"], &["gateway", "--help"]] {
        let Output { status, stdout, stderr } = program(arguments).output().unwrap();
        let help = String::from_utf8(stdout).unwrap();
        assert!(status.success() && stderr.is_empty() && help.contains("start"), "{help}");
    }
}

#[test]
fn wrong_flags_and_ports_in_use_end_with_status_1() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let used = port.local_addr().unwrap();
    let at_used = format!("--listen-addr={used}");
    let metrics_at_used = format!("--metrics-addr=http://{used}");
    let to_itself = format!("--endpoints={used}");
    let busy = "Address already in use";
    for (flags, expected) in [
        (&["--endpoints="][..], "--endpoints: no endpoint is given"),
        (&["--endpoints=a"], "--endpoints a: it has no port; expected HOST:PORT"),
        (&["--retry-delay=-1s"], "--retry-delay must not be below 0"),
        (&["--listen-addr=a"], "--listen-addr a: "),
        (&["--metrics-addr=127.0.0.1:0"], "it is no http URL; expected http://HOST:PORT"),
        (&[at_used.as_str()], busy),
        (&["--listen-addr=127.0.0.1:0", metrics_at_used.as_str()], busy),
        (&["--discovery-srv=invalid.", "--trusted-ca-file=/nowhere"], "/nowhere"),
    ] {
        let error = failure(&mut program(&[&["gateway", "start"][..], flags].concat()));
        assert!(error.contains(expected), "{flags:?}: {error}");
    }
    drop(port);
    let error = failure(&mut program(&["gateway", "start", &at_used, &to_itself]));
    assert!(error.contains("is the gateway's own address"), "{error}");
}
