//! A member with a plain HTTP listener, and a small HTTP client.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test file uses another part of it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clearlane_backend::Era;
use clearlane_net::bulk_turn::BulkTurns;
use clearlane_proto::etcdserverpb::lease_server::{Lease, LeaseServer};
use clearlane_proto::etcdserverpb::*;
use clearlane_replica::apply::Limits;
use clearlane_rpc::http::{AccessControl, HttpService, HttpServiceConfig, serve};
use clearlane_rpc::metrics::RpcMetrics;
use clearlane_server::Server;
use tokio_stream::{Stream, StreamExt};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use crate::support::{TestServer, member_config};

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl Running {
    pub(crate) fn start() -> Running {
        Running::with(HttpServiceConfig::default(), true)
    }

    /// Starts a listener without the gateway, like a port for metrics.
    pub(crate) fn without_gateway() -> Running {
        Running::with(HttpServiceConfig::default(), false)
    }

    pub(crate) fn open_to(hosts: &[&str], origins: &[&str]) -> Running {
        let access = AccessControl::new(hosts.iter().copied(), origins.iter().copied());
        Running::with(
            HttpServiceConfig { access_control: access, ..HttpServiceConfig::default() },
            true,
        )
    }

    fn with(settings: HttpServiceConfig, has_gateway: bool) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let node = Arc::new(member_config(dir.path(), Era::Clearlane).open_alone().unwrap());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                while node.status().leader() == 0 {
                    tokio::task::yield_now().await;
                }
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                sender.send(listener.local_addr().unwrap()).unwrap();
                let member = Server::new(&node, Limits::default());
                let desk = tokio::spawn(member.requests().clone().run());
                let metrics = Arc::new(RpcMetrics::new(true));
                let thread = metrics.register_thread();
                let services = Routes::new(LeaseServer::new(Echo));
                let plain = HttpService::new(member, metrics, thread, Arc::new(settings));
                let slow = (Duration::from_secs(60), Duration::from_secs(60));
                let endpoints = match has_gateway {
                    true => plain.with_gateway(services, BulkTurns::start(), slow),
                    false => plain,
                };
                tokio::select! {
                    () = serve(listener, None, endpoints) => {}
                    _ = stopped => {}
                }
                desk.abort();
            });
        });
        let address = receiver.recv().unwrap();
        Running { address, stop: Some(stop), thread: Some(thread), _dir: dir }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    /// Sends bytes, and reads until the server closes the connection.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        raw(self.address, bytes)
    }

    /// Sends a request such as `GET /health`.
    pub(crate) fn ask(&self, request: &str, headers: &str, body: &str) -> Reply {
        ask(self.address, request, headers, body)
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    connection
}

/// Sends bytes and returns the response. It is no error if the server does not read all of the
/// bytes.
fn raw(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut connection = connect(address);
    let mut writing = connection.try_clone().unwrap();
    let bytes = bytes.to_vec();
    let writer = thread::spawn(move || {
        // After a rejected request, the server stops reading.
        let _ = writing.write_all(&bytes);
    });
    let mut reply = Vec::new();
    let _ = connection.read_to_end(&mut reply);
    let _ = connection.shutdown(std::net::Shutdown::Both);
    writer.join().unwrap();
    reply
}

pub(crate) fn ask(address: SocketAddr, request: &str, headers: &str, body: &str) -> Reply {
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nHost: localhost:1\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n"
    );
    Reply::parse(&raw(address, format!("{head}{body}").as_bytes()))
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn parse(bytes: &[u8]) -> Reply {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_lowercase(), value.to_owned())
        });
        let mut reply = Reply { status, headers: headers.collect(), body: body.to_owned() };
        if reply.header("transfer-encoding") == Some("chunked") {
            reply.body = dechunked(body);
        }
        reply
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(of, _)| of == name).map(|(_, value)| &value[..])
    }
}

fn dechunked(mut body: &str) -> String {
    let mut whole = String::new();
    loop {
        let (length, rest) = body.split_once("\r\n").unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return whole;
        }
        whole.push_str(&rest[..length]);
        body = rest[length..].strip_prefix("\r\n").unwrap();
    }
}

/// A stub of a service with streams. It returns a TTL of 60 seconds for every lease except lease
/// number 13. With the metadata `never-ends`, its stream continues after the client has sent
/// everything, like a watch stream.
#[derive(Clone, Copy, Debug)]
struct Echo;

#[tonic::async_trait]
impl Lease for Echo {
    type LeaseKeepAliveStream =
        std::pin::Pin<Box<dyn Stream<Item = Result<LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let never_ends = request.metadata().contains_key("never-ends");
        let answers = request.into_inner().map(|asked| match asked?.id {
            13 => Err(Status::not_found("not that one")),
            id => Ok(LeaseKeepAliveResponse { id, ttl: 60, header: None }),
        });
        Ok(Response::new(match never_ends {
            true => Box::pin(answers.chain(tokio_stream::pending())),
            false => Box::pin(answers),
        }))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let of = |name| {
            let value = request.metadata().get(name).map(|value| value.to_str().unwrap());
            format!("{name}={}", value.unwrap_or_default())
        };
        Err(Status::unauthenticated(["authorization", "token", "x-else"].map(of).join(" ")))
    }

    async fn lease_grant(
        &self,
        _: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn lease_revoke(
        &self,
        _: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn lease_leases(
        &self,
        _: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// A complete member with the port for clients.
pub(crate) struct Whole {
    pub(crate) address: SocketAddr,
    server: Option<TestServer>,
    _dir: tempfile::TempDir,
}

impl Whole {
    pub(crate) fn start() -> Whole {
        let dir = tempfile::tempdir().unwrap();
        let server = TestServer::start(dir.path(), Era::Clearlane);
        let address = server.server.address();
        while ask(address, "GET /readyz", "", "").status != 200 {
            thread::yield_now();
        }
        Whole { address, server: Some(server), _dir: dir }
    }

    pub(crate) fn ask(&self, request: &str, body: &str) -> Reply {
        ask(self.address, request, "", body)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.server.take().unwrap().stop();
    }
}
