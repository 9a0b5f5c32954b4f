//! Tests of failing endpoints: the client sends a request to another endpoint if that is safe, and
//! otherwise returns an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clearlane_client::{Client, Error, Keys, Options, Watch, WatchKeys};
use clearlane_test_server::{TestCluster, TestServer};
use tokio::net::TcpSocket;

use crate::proxy::{Proxy, ProxyState};
use crate::with_timeout;

/// Returns an endpoint that rejects connections, and the socket that is bound to its port. While
/// the socket exists, no other test gets the port.
fn dead_endpoint() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let endpoint = format!("http://{}", socket.local_addr().unwrap());
    (socket, endpoint)
}

#[tokio::test]
async fn a_dead_endpoint_costs_no_write_and_does_none_twice() {
    let server = TestServer::start().await.unwrap();
    let [(_one, before), (_other, behind)] = [dead_endpoint(), dead_endpoint()];
    let endpoints = [before, server.endpoint(), behind];
    let client = Client::connect(endpoints, Options::new()).await.unwrap();
    for _ in 0..20 {
        client.put("a", "1").await.unwrap();
    }
    assert_eq!(client.get("a").await.unwrap().kvs.first().unwrap().version, 20);
}

#[tokio::test]
async fn nobody_at_all_is_told_at_once_when_connecting() {
    const LIMIT: Duration = Duration::from_secs(60);
    let options = Options::new().connect_timeout(LIMIT).request_timeout(LIMIT);
    let (_socket, endpoint) = dead_endpoint();
    let begin = Instant::now();
    let error = Client::connect([endpoint], options).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    // The endpoint rejects the connection, so the client does not wait for a timeout.
    assert!(begin.elapsed() < LIMIT / 2, "{:?}", begin.elapsed());
    let error = Client::connect(Vec::<String>::new(), Options::new()).await.unwrap_err();
    assert!(matches!(error, Error::Setup(_)), "{error:?}");
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_told_and_not_repeated() {
    let server = TestServer::start().await.unwrap();
    let direct = server.client().await.unwrap();
    let proxy = Proxy::start(&server.endpoint()).await;
    let client = Client::connect([proxy.endpoint()], Options::new()).await.unwrap();
    client.put("warm", "up").await.unwrap();
    proxy.set(ProxyState::NoResponses);
    let put = tokio::spawn({
        let client = client.clone();
        async move { client.put("a", "1").await }
    });
    crate::wait_until("the put is done", async || direct.get("a").await.unwrap().count == 1).await;
    proxy.set(ProxyState::Cut);
    let error = with_timeout(put).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
    proxy.set(ProxyState::Open);
    assert_eq!(client.get("a").await.unwrap().kvs.first().unwrap().version, 1, "done once");
}

#[tokio::test]
async fn a_write_that_runs_out_of_time_is_told_to_be_unknown_and_a_read_to_be_late() {
    let server = TestServer::start().await.unwrap();
    let proxy = Proxy::start(&server.endpoint()).await;
    let options = Options::new().request_timeout(Duration::from_millis(300));
    let client = Client::connect([proxy.endpoint()], options).await.unwrap();
    proxy.set(ProxyState::NoResponses);
    let put = with_timeout(client.put("a", "1")).await;
    assert!(matches!(put, Err(Error::OutcomeUnknown(_))), "{put:?}");
    let get = with_timeout(client.get("a")).await;
    assert!(matches!(get, Err(Error::TimedOut(_))), "{get:?}");
}

#[tokio::test]
async fn a_read_whose_answer_is_lost_is_asked_elsewhere() {
    let server = TestServer::start().await.unwrap();
    let proxies = [Proxy::start(&server.endpoint()).await, Proxy::start(&server.endpoint()).await];
    let endpoints = proxies.each_ref().map(Proxy::endpoint);
    let client = Client::connect(endpoints, Options::new()).await.unwrap();
    for _ in 0..2 {
        client.put("a", "1").await.unwrap(); // Both endpoints are connected now.
    }
    proxies[0].set(ProxyState::NoResponses);
    let reads: Vec<_> = (0..4)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get("a").await })
        })
        .collect();
    crate::wait_until("half of them are done", async || {
        reads.iter().filter(|read| read.is_finished()).count() == 2
    })
    .await;
    proxies[0].set(ProxyState::Cut);
    for read in reads {
        assert_eq!(with_timeout(read).await.unwrap().unwrap().count, 1);
    }
}

#[tokio::test]
async fn a_frozen_member_is_noticed_by_its_silence() {
    let server = TestServer::start().await.unwrap();
    let proxy = Proxy::start(&server.endpoint()).await;
    let options = Options::new()
        // The keep-alive time-out is long, so that the other endpoint does not also exceed it on a
        // busy machine.
        .keep_alive(Duration::from_millis(100), Duration::from_secs(2))
        .request_timeout(Duration::from_secs(60));
    let endpoints = [proxy.endpoint(), server.endpoint()];
    let client = Client::connect(endpoints, options).await.unwrap();
    let mut watch = client.only(&proxy.endpoint()).unwrap().watch("a").await.unwrap();
    proxy.set(ProxyState::NoResponses);
    // One of the two reads is first sent to the endpoint behind the proxy, which does not respond.
    for _ in 0..2 {
        assert_eq!(with_timeout(client.get("a")).await.unwrap().count, 0);
    }
    client.put("a", "1").await.unwrap();
    proxy.set(ProxyState::Cut);
    proxy.set(ProxyState::Open);
    assert_eq!(with_timeout(watch.next()).await.unwrap().unwrap().revision(), 2);
}

#[tokio::test]
async fn a_lone_server_may_restart_under_its_clients() {
    let mut server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    client.put("a", "1").await.unwrap();
    server.stop().await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { (client.get("a").await, client.put("b", "1").await) }
    });
    server.restart().await.unwrap();
    let (get, put) = with_timeout(waiting).await.unwrap();
    assert_eq!(get.unwrap().count, 1);
    put.unwrap();
}

async fn revisions(watch: &mut Watch, up_to: i64) -> Vec<(i64, String)> {
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(last, _)| *last < up_to) {
        let event = with_timeout(watch.next()).await.unwrap().unwrap();
        seen.push((event.revision(), String::from_utf8_lossy(&event.kv().value).into_owned()));
    }
    seen
}

/// A client that writes until its task is aborted. It counts the writes that were certainly done.
struct Writer {
    done: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Writer {
    async fn start(endpoints: Vec<String>) -> Writer {
        // A follower whose leader has just failed holds a request until the server's time-out. The
        // client's time-out is shorter, so the client tries again earlier.
        let options = Options::new().request_timeout(Duration::from_millis(500));
        let client = Client::connect(endpoints, options).await.unwrap();
        let done = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&done);
        let task = tokio::spawn(async move {
            for number in 0_u64.. {
                let put = client.put("k", number.to_string()).await;
                count.fetch_add(u64::from(put.is_ok()), Ordering::Relaxed);
            }
        });
        Writer { done, task }
    }

    async fn wait_for_progress(&self) {
        let before = self.done.load(Ordering::Relaxed);
        let more = async || self.done.load(Ordering::Relaxed) >= before + 20;
        crate::wait_until("more is written", more).await;
    }
}

#[tokio::test]
async fn a_watch_sees_everything_once_while_each_member_fails_in_turn() {
    let mut cluster = TestCluster::start(3).await.unwrap();
    let client = cluster.client().await.unwrap();
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(client.watch(Keys::prefix("k")).await.unwrap()); // One watch on each member.
    }
    let writer = Writer::start(cluster.endpoints()).await;
    for member in 0..3 {
        writer.wait_for_progress().await;
        cluster.stop(member).await.unwrap();
        cluster.leader().await.unwrap();
        writer.wait_for_progress().await;
        cluster.restart(member).await.unwrap();
    }
    writer.task.abort();
    let last = client.put("k", "last").await.unwrap().revision();
    // A new watch from the first revision returns all events of the prefix. The other watches must
    // have seen the same events.
    let from_begin = WatchKeys::prefix("k").from_revision(watches[0].start_revision());
    let mut whole = client.watch(from_begin).await.unwrap();
    let happened = revisions(&mut whole, last).await;
    assert!(happened.len() > 120, "{}", happened.len());
    for watch in &mut watches {
        assert_eq!(revisions(watch, last).await, happened);
    }
}
