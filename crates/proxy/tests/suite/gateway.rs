//! The TCP gateway in front of small servers of this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clearlane_proxy::gateway::endpoints::EndpointConfig;
use clearlane_proxy::gateway::{Gateway, GatewayConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Time limit of a test that would otherwise wait forever.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Times of a gateway whose probes must not take part in the test.
const NEVER: Duration = Duration::from_secs(3600);

/// A server that sends its name to each client, and then returns all bytes.
struct Echo {
    address: SocketAddr,
    connections: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Echo {
    async fn start(name: &'static str) -> Echo {
        Echo::on(name, TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn on(name: &'static str, listener: TcpListener) -> Echo {
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    // A probe closes the connection at once, so errors are ignored.
                    let _ = stream.write_all(name.as_bytes()).await;
                    let (mut reads, mut writes) = stream.split();
                    let _ = tokio::io::copy(&mut reads, &mut writes).await;
                });
            }
        });
        Echo { address, connections, task }
    }

    /// Closes the listener. No other test gets its port.
    async fn stop(self) -> Stopped {
        self.task.abort();
        let _ = self.task.await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.address).unwrap();
        Stopped { socket, address: self.address }
    }
}

/// The port of a server that does not listen. The system rejects connections to it.
struct Stopped {
    socket: TcpSocket,
    address: SocketAddr,
}

impl Stopped {
    fn start(self, name: &'static str) -> Echo {
        Echo::on(name, self.socket.listen(64).unwrap())
    }
}

/// A running gateway and its address.
struct Running {
    gateway: Arc<Gateway>,
    address: SocketAddr,
    serves: JoinHandle<()>,
}

impl Running {
    async fn start(config: GatewayConfig) -> Running {
        Running::start_on(listener().await, config)
    }

    fn start_on(listener: TcpListener, config: GatewayConfig) -> Running {
        let address = listener.local_addr().unwrap();
        let gateway = Arc::new(Gateway::start(config));
        let served = Arc::clone(&gateway);
        let serves = tokio::spawn(async move { served.serve(listener).await });
        Running { gateway, address, serves }
    }

    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Connects, and returns the name of the server that responds. The name has one letter, or
    /// none if the connection is closed.
    async fn server_name(&self) -> String {
        let (mut client, mut name) = (self.client().await, [0]);
        let length = timeout(TIMEOUT, client.read(&mut name)).await.unwrap().unwrap();
        String::from_utf8(name[..length].to_vec()).unwrap()
    }

    /// Waits until the endpoint is up or down.
    async fn until(&self, endpoint: usize, is_up: bool) {
        let mut changes = self.gateway.endpoints().all()[endpoint].changes();
        timeout(TIMEOUT, changes.wait_for(|now| *now == is_up)).await.unwrap().unwrap();
    }
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Returns a configuration without probes.
fn config(endpoints: &[SocketAddr]) -> GatewayConfig {
    GatewayConfig {
        endpoints: endpoints.iter().map(|at| EndpointConfig::new(at.to_string())).collect(),
        first_byte_patience: Duration::from_millis(1),
        probe_interval: NEVER,
        retry_delay: NEVER,
        ..GatewayConfig::default()
    }
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    timeout(TIMEOUT, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    text
}

async fn until(holds: impl Fn() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < end, "it does not happen");
        sleep(POLL_INTERVAL).await;
    }
}

#[tokio::test]
async fn connections_take_turns() {
    let (a, b) = (Echo::start("a").await, Echo::start("b").await);
    let running = Running::start(config(&[a.address, b.address])).await;
    let mut names = String::new();
    for _ in 0..6 {
        names += &running.server_name().await;
    }
    assert_eq!(names, "ababab");
}

#[tokio::test]
async fn the_best_priority_serves_alone() {
    let (a, b) = (Echo::start("a").await, Echo::start("b").await);
    let mut config = config(&[a.address, b.address]);
    config.endpoints[0].priority = 2;
    config.endpoints[1].priority = 1;
    let running = Running::start(config).await;
    for _ in 0..3 {
        assert_eq!(running.server_name().await, "b");
    }
    let _b = b.stop().await;
    for _ in 0..3 {
        assert_eq!(running.server_name().await, "a");
    }
}

#[tokio::test]
async fn a_dead_endpoint_costs_no_client_its_connection() {
    let (a, b) = (Echo::start("a").await, Echo::start("b").await);
    let addresses = [a.address, b.address];
    let _a = a.stop().await;
    let running = Running::start(config(&addresses)).await;
    for _ in 0..4 {
        assert_eq!(running.server_name().await, "b");
    }
    let endpoints = running.gateway.endpoints().all();
    assert!(!endpoints[0].is_up() && endpoints[1].is_up());
}

#[tokio::test]
async fn without_any_endpoint_a_client_is_closed_and_later_served() {
    let a = Echo::start("a").await.stop().await;
    let running = Running::start(config(&[a.address])).await;
    assert_eq!(running.server_name().await, "");
    assert_eq!(running.gateway.metrics().unserved.load(Ordering::Relaxed), 1);
    // There are no probes, and the only endpoint is down. It is tried anyway.
    let _a = a.start("a");
    assert_eq!(running.server_name().await, "a");
    assert!(running.gateway.endpoints().all()[0].is_up());
}

/// Returns a listener that accepts no further connection, and the connections that fill it. The
/// system answers no further client.
async fn full_listener() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(connected) = timeout(Duration::from_millis(300), TcpStream::connect(address)).await
    {
        waiting.push(connected.unwrap());
        assert!(waiting.len() < 100, "the backlog has no end");
    }
    (listener, waiting)
}

#[tokio::test]
async fn an_endpoint_that_does_not_answer_is_left_after_the_dial_timeout() {
    let (hung, _waiting) = full_listener().await;
    let b = Echo::start("b").await;
    let mut config = config(&[hung.local_addr().unwrap(), b.address]);
    config.dial_timeout = Duration::from_millis(100);
    let running = Running::start(config).await;
    assert_eq!(running.server_name().await, "b");
    assert!(!running.gateway.endpoints().all()[0].is_up());
    // The endpoint is down, so the next client does not wait for it.
    assert_eq!(running.server_name().await, "b");
}

#[tokio::test]
async fn a_late_answer_arrives_after_the_client_has_ended_its_half() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let running = Running::start(config(&[listener.local_addr().unwrap()])).await;
    let mut client = running.client().await;
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    assert_eq!(read_all(&mut server).await, "question");
    // The client's half has ended at the server. Only now the answer is sent, in two parts.
    server.write_all(b"late ").await.unwrap();
    let mut start = [0; 5];
    timeout(TIMEOUT, client.read_exact(&mut start)).await.unwrap().unwrap();
    server.write_all(b"answer").await.unwrap();
    drop(server);
    assert_eq!(read_all(&mut client).await, "answer");
    until(|| running.gateway.metrics().open.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test]
async fn the_server_may_end_its_half_first() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let running = Running::start(config(&[listener.local_addr().unwrap()])).await;
    let mut client = running.client().await;
    let (mut server, _) = listener.accept().await.unwrap();
    server.write_all(b"hello").await.unwrap();
    server.shutdown().await.unwrap();
    assert_eq!(read_all(&mut client).await, "hello");
    client.write_all(b"still here").await.unwrap();
    drop(client);
    assert_eq!(read_all(&mut server).await, "still here");
}

/// Sends zeroes until the other end takes no more. Returns the number of bytes sent.
async fn fill(stream: &TcpStream) -> u64 {
    const SENT_MAX: u64 = 64 << 20;
    let mut sent = 0;
    while let Ok(writable) = timeout(Duration::from_millis(300), stream.writable()).await {
        writable.unwrap();
        sent += stream.try_write(&[0; 64 << 10]).unwrap_or(0) as u64;
        assert!(sent < SENT_MAX, "the gateway takes everything");
    }
    sent
}

#[tokio::test]
async fn a_slow_reader_holds_back_the_sender() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let running = Running::start(config(&[listener.local_addr().unwrap()])).await;
    let client = running.client().await;
    let (_server, _) = listener.accept().await.unwrap();
    // The server reads nothing. The buffers of the system and of the gateway get full.
    assert!(fill(&client).await > 0);
}

/// The server resets the connection, so the client's half fails. The gateway still forwards the
/// part of the answer that has reached it.
#[tokio::test]
async fn a_failed_half_does_not_cut_the_other() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let running = Running::start(config(&[listener.local_addr().unwrap()])).await;
    let mut client = running.client().await;
    let (server, _) = listener.accept().await.unwrap();
    // Neither side reads, so the gateway is blocked in both directions.
    fill(&client).await;
    let answer_bytes = fill(&server).await;
    let forwarded = || running.gateway.metrics().bytes_to_clients.load(Ordering::Relaxed);
    let before = forwarded();
    assert!(before < answer_bytes);
    // The server has not read everything, so closing the connection is a reset.
    drop(server);
    let mut received = Vec::new();
    timeout(TIMEOUT, client.read_to_end(&mut received)).await.unwrap().unwrap();
    assert!(forwarded() > before, "{before} of {answer_bytes} bytes are forwarded");
    assert_eq!(received.len() as u64, forwarded());
    drop(client);
    until(|| running.gateway.metrics().open.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test]
async fn a_half_closed_connection_without_data_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = config(&[listener.local_addr().unwrap()]);
    config.half_closed_idle_max = Duration::from_millis(50);
    let running = Running::start(config).await;
    let mut client = running.client().await;
    let (_server, _) = listener.accept().await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut client).await, "");
    until(|| running.gateway.metrics().open.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test]
async fn a_large_transfer_arrives_whole_in_both_directions() {
    const BYTES: usize = 16 << 20;
    let a = Echo::start("").await;
    let running = Running::start(config(&[a.address])).await;
    let (mut reads, mut writes) = running.client().await.into_split();
    let data: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    let sent = data.clone();
    let sends = tokio::spawn(async move {
        writes.write_all(&sent).await.unwrap();
        writes.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    timeout(TIMEOUT, reads.read_to_end(&mut received)).await.unwrap().unwrap();
    sends.await.unwrap();
    assert!(received == data);
}

#[tokio::test]
async fn probes_notice_that_an_endpoint_dies_and_comes_back() {
    let (a, b) = (Echo::start("a").await, Echo::start("b").await);
    let mut config = config(&[a.address, b.address]);
    config.probe_interval = Duration::from_millis(10);
    let running = Running::start(config).await;
    let a = a.stop().await;
    running.until(0, false).await;
    assert_eq!(running.server_name().await, "b");
    let metrics = page(&running).await;
    let failed =
        format!("clearlane_gateway_endpoint_failed_dials_total{{endpoint=\"{}\"}}", a.address);
    assert!(metrics.contains(&format!("{failed} 0\n")), "no client met it: {metrics}");
    let _a = a.start("a");
    running.until(0, true).await;
    let names = running.server_name().await + &running.server_name().await;
    assert!(["ab", "ba"].contains(&names.as_str()), "{names}");
}

#[tokio::test]
async fn a_client_that_leaves_without_a_byte_gets_no_connection() {
    let a = Echo::start("a").await;
    let config = GatewayConfig { first_byte_patience: NEVER, ..config(&[a.address]) };
    let running = Running::start(config).await;
    for _ in 0..10 {
        let mut client = running.client().await;
        client.shutdown().await.unwrap();
        assert_eq!(read_all(&mut client).await, "");
    }
    assert_eq!(a.connections.load(Ordering::Relaxed), 0);
    let mut client = running.client().await;
    client.write_all(b"b").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut client).await, "ab");
}

/// Each gateway accepts the probes of the other one, and no other connections.
#[tokio::test]
async fn two_gateways_that_are_each_others_endpoint_pass_no_probe_on() {
    const PROBES: u32 = 20;
    const INTERVAL: Duration = Duration::from_millis(10);
    let start = Instant::now();
    let (a, b) = (listener().await, listener().await);
    let addresses = [a.local_addr().unwrap(), b.local_addr().unwrap()];
    let running = [(a, addresses[1]), (b, addresses[0])].map(|(listener, other)| {
        let config = GatewayConfig {
            probe_interval: INTERVAL,
            first_byte_patience: NEVER,
            ..config(&[other])
        };
        Running::start_on(listener, config)
    });
    for running in &running {
        let accepted = || running.gateway.metrics().accepted.load(Ordering::Relaxed);
        until(|| accepted() >= u64::from(PROBES)).await;
        let probes_max = start.elapsed().as_nanos() / INTERVAL.as_nanos() + 1;
        assert!(u128::from(accepted()) <= probes_max, "{} connections", accepted());
        until(|| running.gateway.metrics().open.load(Ordering::Relaxed) == 0).await;
    }
}

/// Without regular probes, an endpoint is probed when the retry delay is over.
#[tokio::test]
async fn a_failed_dial_is_repeated_after_the_retry_delay() {
    let (a, b) = (Echo::start("a").await, Echo::start("b").await);
    let mut config = config(&[a.address, b.address]);
    config.retry_delay = Duration::from_millis(10);
    let running = Running::start(config).await;
    let a = a.stop().await;
    assert_eq!(running.server_name().await, "b");
    assert!(!running.gateway.endpoints().all()[0].is_up());
    let a = a.start("a");
    running.until(0, true).await;
    // Once it is up, it is not probed again.
    let probes = a.connections.load(Ordering::Relaxed);
    let names = running.server_name().await + &running.server_name().await;
    assert!(["ab", "ba"].contains(&names.as_str()), "{names}");
    assert!(a.connections.load(Ordering::Relaxed) <= probes + 2);
}

#[tokio::test]
async fn a_connection_above_the_limit_is_closed() {
    let a = Echo::start("a").await;
    let config = GatewayConfig { connections_max: 1, ..config(&[a.address]) };
    let running = Running::start(config).await;
    let mut first = running.client().await;
    let mut name = [0; 1];
    timeout(TIMEOUT, first.read_exact(&mut name)).await.unwrap().unwrap();
    let mut second = running.client().await;
    assert_eq!(read_all(&mut second).await, "");
    drop(first);
    until(|| running.gateway.metrics().open.load(Ordering::Relaxed) == 0).await;
    // The permit is dropped shortly after the count of open connections.
    let end = Instant::now() + TIMEOUT;
    while running.server_name().await != "a" {
        assert!(Instant::now() < end, "the limit stays reached");
    }
}

#[tokio::test]
async fn open_connections_may_end_after_the_stop() {
    let a = Echo::start("a").await;
    let running = Running::start(config(&[a.address])).await;
    let mut client = running.client().await;
    let mut name = [0; 1];
    timeout(TIMEOUT, client.read_exact(&mut name)).await.unwrap().unwrap();
    running.gateway.stop();
    until_refused(running.address).await;
    client.write_all(b"last words").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut client).await, "last words");
    timeout(TIMEOUT, running.serves).await.unwrap().unwrap();
}

async fn until_refused(address: SocketAddr) {
    let end = Instant::now() + TIMEOUT;
    while TcpStream::connect(address).await.is_ok() {
        assert!(Instant::now() < end, "it still listens");
        sleep(POLL_INTERVAL).await;
    }
}

async fn get(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    read_all(&mut stream).await
}

async fn page(running: &Running) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gateway = Arc::clone(&running.gateway);
    let serves = tokio::spawn(async move { gateway.serve_metrics(listener).await });
    let missing = get(address, "GET /other").await;
    assert!(missing.starts_with("HTTP/1.1 404 "), "{missing}");
    let wrong = get(address, "POST /metrics").await;
    assert!(wrong.starts_with("HTTP/1.1 405 "), "{wrong}");
    let page = get(address, "GET /metrics").await;
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
    serves.abort();
    page
}

#[tokio::test]
async fn the_page_shows_connections_bytes_and_endpoints() {
    let (a, b) = (Echo::start("a").await, Echo::start("b").await);
    let addresses = [a.address, b.address];
    let _b = b.stop().await;
    let running = Running::start(config(&addresses)).await;
    let mut open = running.client().await;
    open.write_all(b"four").await.unwrap();
    let mut answer = [0; 5];
    timeout(TIMEOUT, open.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"afour");
    // The turn of this client is the dead endpoint.
    assert_eq!(running.server_name().await, "a");
    until(|| running.gateway.metrics().open.load(Ordering::Relaxed) == 1).await;
    let page = page(&running).await;
    let [a, b] = addresses;
    for line in [
        "connections_total 2".to_owned(),
        "connections 1".to_owned(),
        "unserved_connections_total 0".to_owned(),
        "bytes_total{direction=\"to_endpoint\"} 4".to_owned(),
        "bytes_total{direction=\"to_client\"} 6".to_owned(),
        format!("endpoint_up{{endpoint=\"{a}\"}} 1"),
        format!("endpoint_up{{endpoint=\"{b}\"}} 0"),
        format!("endpoint_connections{{endpoint=\"{a}\"}} 1"),
        format!("endpoint_failed_dials_total{{endpoint=\"{b}\"}} 1"),
    ] {
        let line = format!("clearlane_gateway_{line}\n");
        assert!(page.contains(&line), "no {line} in\n{page}");
    }
}
