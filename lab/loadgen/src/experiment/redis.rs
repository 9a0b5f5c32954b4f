//! Put, get and notification, against Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{PutRequest, WatchCreateRequest, WatchRequest};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

use super::beside::{data_keys, filled};
use super::charts::{Column, bars, linear, log, table};
use super::check::Check;
use super::closed_loop::{ClosedLoop, ClosedLoopReport};
use super::context::{Context, PREFIX, Subject, channel};
use super::findings::{Findings, Outcome, Story};
use super::load::WARM_UP;
use super::measurements::{Measurements, quotient};
use super::resp::{RedisConnection, Reply};
use crate::class_metrics::{ClassMetrics, CompletedRequest};
use crate::plot::Better;
use crate::response_scanner::ResponseStats;
use crate::servers::{ClusterOptions, ETCD};
use crate::workload::Workload;
use crate::{Error, Result};

const STORY: Story = Story {
    title: "Put, get and notification, against Redis",
    see: "Redis does less for each request: no history, no index of revisions, no raft, and a \
          protocol of plain lines. With its append-only file synced always, a put has the same \
          promise of one machine as here; without, it has none, and is that much quicker.",
    published: "Redis 7.0 with the file synced always, 500 clients on two cores: 120,192 SET and \
                111,732 GET per second. etcd 3.7.1 on the same machine: 20,345 puts, 29,729 \
                serializable and 26,452 linearizable gets per second.",
    source: "both measured on the machine of this project, each with its own program",
    differs: "Redis' own program takes hardly any time for each command, and the load here waits \
              for each answer. Of 100 clients, those of etcd's API share ten connections, and so \
              their system calls; those of Redis have one each. What compares is the one client.",
};

pub(super) const SKIPPED: &str =
    "skipped: there is no Redis; give one that runs by --redis HOST:PORT";
const REDIS: &str = "redis";
const KEYS: u64 = 2000;
const VALUE_BYTES: u64 = 256;
const KEY_PREFIX: &str = "experiment:";
const NOTIFICATIONS: usize = 200;
const NOTIFICATION_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn redis(context: &Context) -> Result<Outcome> {
    let Some(address) = &context.redis else { return Ok(Outcome::Skipped(SKIPPED.to_owned())) };
    let syncs = append_only(address).await?;
    let (workers, window) = (100, Duration::from_secs(context.pick(2, 10)));
    let subjects = context.servers(&["clearlane"])?;
    let load = workload()?;
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        let server = subject.name();
        let running = filled(context, subject, ClusterOptions::default(), &[&load], seed).await?;
        let endpoints = [running.endpoint()];
        for (phase, clients) in [("one", 1), ("many", workers)] {
            for class in ["put", "get"] {
                let (endpoints, workload) = (&endpoints[..], &load);
                let closed = ClosedLoop { endpoints, workload, class, clients, window, seed };
                closed.run().await?.record(&format!("{phase}/{class}"), None, server, into);
            }
        }
        let notified = watch_and_put(&endpoints[0]).await?;
        into.add_some(server, "notification/p50", notified.latency_ms(0.5));
        into.add_some(server, "notification/p99", notified.latency_ms(0.99));
        running.end().await?;
        measure_redis(address, workers, window, into).await
    };
    let mut measured = context.in_turns(&subjects, measure).await?;
    measured.add_server(REDIS);
    let columns = [
        Column::median("one client, put p50, ms", "one/put/p50"),
        Column::median("get p50, ms", "one/get/p50"),
        Column::median("100 clients, puts per second", "many/put/per second"),
        Column::median("gets per second", "many/get/per second"),
        Column::median("notification p50, ms", "notification/p50"),
        Column::median("notification p99, ms", "notification/p99"),
    ];
    let one =
        [("put", "one/put/p50"), ("get", "one/get/p50"), ("notification", "notification/p50")];
    let many = [("put", "many/put/per second"), ("get", "many/get/per second")];
    let shown = vec![
        table(&measured, &columns),
        bars(&measured, "100 clients", log("requests per second"), Better::Higher, &many),
        bars(&measured, "One client", linear("p50, ms"), Better::Lower, &one),
    ];
    let mut checks = Vec::new();
    for server in measured.servers().iter().filter(|server| *server != REDIS) {
        let get = |server: &str| measured.median(server, "one/get/p50");
        let claim = format!("one client, p50 of a get at {server} over that at redis");
        checks.push(Check::at_least(&claim, quotient(get(server), get(REDIS)), 0.9).into_bar());
    }
    if measured.has(ETCD) {
        let gets = |server: &str| measured.median(server, "many/get/per second");
        let claim = "gets per second of 100 clients, redis over etcd";
        checks.push(Check::at_least(claim, quotient(gets(REDIS), gets(ETCD)), 1.0));
    }
    let setting = vec![format!(
        "{KEYS} keys with {VALUE_BYTES} bytes; gets are serializable. One client and {workers}, \
         each in a closed loop for {} s. A notification is a watch, or a message of a channel: \
         from when the put or the message is sent until it comes. Redis' {syncs}.",
        window.as_secs()
    )];
    Ok(Outcome::Found(Box::new(Findings { story: STORY, setting, shown, checks, measured })))
}

fn workload() -> Result<Workload> {
    let keys = data_keys(KEYS, 40, &VALUE_BYTES.to_string());
    Workload::parse(&format!(
        "seconds = 1\n{keys}
        [[class]]
        name = 'put'
        operation = 'put'
        rate = 1
        [[class]]
        name = 'get'
        operation = 'range'
        consistency = 'serializable'
        rate = 1
        "
    ))
}

/// What Redis promises of a put.
async fn append_only(address: &str) -> Result<String> {
    let mut connection = RedisConnection::open(address).await?;
    let mut words = Vec::new();
    for name in ["appendonly", "appendfsync"] {
        let reply = connection.call(&[b"CONFIG", b"GET", name.as_bytes()]).await;
        let value = match reply {
            Ok(Reply::List(pair)) => match pair.into_iter().nth(1) {
                Some(Reply::Text(Some(value))) => String::from_utf8_lossy(&value).into_owned(),
                _ => "not told".to_owned(),
            },
            _ => "not told".to_owned(),
        };
        words.push(format!("{name} is {value}"));
    }
    Ok(words.join(" and "))
}

async fn measure_redis(
    address: &str,
    workers: u64,
    window: Duration,
    into: &mut Measurements,
) -> Result<()> {
    set_all(address).await?;
    for (phase, clients) in [("one", 1), ("many", workers)] {
        for class in ["put", "get"] {
            let metrics = redis_loop(address, class, clients, window).await?;
            let report = ClosedLoopReport { metrics, window };
            report.record(&format!("{phase}/{class}"), None, REDIS, into);
        }
    }
    let notified = subscribe_and_publish(address).await?;
    into.add_some(REDIS, "notification/p50", notified.latency_ms(0.5));
    into.add_some(REDIS, "notification/p99", notified.latency_ms(0.99));
    Ok(())
}

/// As the other servers are filled: a get of a missing key is quick.
async fn set_all(address: &str) -> Result<()> {
    let mut connection = RedisConnection::open(address).await?;
    let value = vec![b'v'; VALUE_BYTES as usize];
    for number in 0..KEYS {
        connection.call(&[b"SET", key(number).as_bytes(), &value]).await?;
    }
    Ok(())
}

fn key(number: u64) -> String {
    format!("{KEY_PREFIX}{number:030}")
}

/// A get has the value.
fn check_reply(reply: Result<Reply>) -> Result<()> {
    match reply? {
        Reply::Text(None) => Err(Error::Server("redis: a key is missing".to_owned())),
        _ => Ok(()),
    }
}

/// Behind a warm-up.
async fn redis_loop(
    address: &str,
    class: &'static str,
    clients: u64,
    window: Duration,
) -> Result<ClassMetrics> {
    let metrics = Arc::<Mutex<ClassMetrics>>::default();
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(RedisConnection::open(address).await?);
    }
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    for (number, mut connection) in (0_u64..).zip(connections) {
        let metrics = Arc::clone(&metrics);
        tasks.spawn(async move {
            let value = vec![b'v'; VALUE_BYTES as usize];
            for place in (number * 7..).step_by(13) {
                let sent = start.elapsed();
                if sent >= WARM_UP + window {
                    break;
                }
                let key = key(place % KEYS);
                let reply = match class {
                    "put" => connection.call(&[b"SET", key.as_bytes(), &value]).await,
                    _ => connection.call(&[b"GET", key.as_bytes()]).await,
                };
                // Times count from the end of the warm-up.
                let counted = sent.saturating_sub(WARM_UP);
                let done = completed(counted, start + WARM_UP, check_reply(reply));
                let is_broken = done.result.is_err();
                if sent >= WARM_UP || is_broken {
                    metrics.lock().add(done);
                }
                if is_broken {
                    break;
                }
            }
        });
    }
    tasks.join_all().await;
    Ok(std::mem::take(&mut *metrics.lock()))
}

fn completed(sent: Duration, start: Instant, result: Result<()>) -> CompletedRequest {
    let result = result.map(|()| ResponseStats::default()).map_err(|error| error.to_string());
    CompletedRequest { due: sent, sent, answered: start.elapsed(), result }
}

fn not_notified() -> Error {
    Error::Server("a notification did not come within 5 s".to_owned())
}

async fn subscribe_and_publish(address: &str) -> Result<ClassMetrics> {
    let name = format!("{KEY_PREFIX}channel");
    let mut subscriber = RedisConnection::open(address).await?;
    let mut publisher = RedisConnection::open(address).await?;
    subscriber.call(&[b"SUBSCRIBE", name.as_bytes()]).await?;
    let (start, mut metrics) = (Instant::now(), ClassMetrics::default());
    for _ in 0..NOTIFICATIONS {
        let sent = start.elapsed();
        let words: [&[u8]; 3] = [b"PUBLISH", name.as_bytes(), b"message"];
        let publish = publisher.call(&words);
        let message = async {
            subscriber.next_reply().await?;
            Ok::<_, Error>(completed(sent, start, Ok(())))
        };
        let both = async { tokio::try_join!(publish, message) };
        let (_, done) = timeout(NOTIFICATION_TIMEOUT, both).await.map_err(|_| not_notified())??;
        metrics.add(done);
    }
    Ok(metrics)
}

/// The same with a watch of one key.
async fn watch_and_put(endpoint: &str) -> Result<ClassMetrics> {
    let key = format!("{PREFIX}watched");
    let failed = |status: tonic::Status| Error::Server(format!("a watch: {}", status.message()));
    let create = WatchCreateRequest { key: key.clone().into(), ..WatchCreateRequest::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    // The watch ends when the sender is dropped.
    let (requests, stream) = mpsc::channel(1);
    let _ = requests.send(create).await;
    let mut watch = WatchClient::new(channel(endpoint).await?);
    let events = watch.watch(ReceiverStream::new(stream)).await.map_err(failed)?;
    let mut events = events.into_inner();
    events.message().await.map_err(failed)?;
    let mut client = KvClient::new(channel(endpoint).await?);
    let (start, mut metrics) = (Instant::now(), ClassMetrics::default());
    for _ in 0..NOTIFICATIONS {
        let sent = start.elapsed();
        let value = bytes::Bytes::from_static(b"message");
        let put = client.put(PutRequest { key: key.clone().into(), value, ..Default::default() });
        let event = async {
            events.message().await?;
            Ok::<_, tonic::Status>(completed(sent, start, Ok(())))
        };
        let both = async { tokio::try_join!(put, event) };
        let (_, done) = timeout(NOTIFICATION_TIMEOUT, both)
            .await
            .map_err(|_| not_notified())?
            .map_err(failed)?;
        metrics.add(done);
    }
    drop(requests);
    Ok(metrics)
}
