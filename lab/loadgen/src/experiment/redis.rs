//! Measures puts, gets and notifications at a server and at Redis.

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

use super::closed_loop::ClosedLoopReport;
use super::context::{PREFIX, channel};
use super::curve::run_loops;
use super::load::WARM_UP;
use super::measurements::Measurements;
use super::plan::LoopPlan;
use super::resp::{RedisConnection, Reply};
use super::turn::Turn;
use crate::class_metrics::{ClassMetrics, CompletedRequest};
use crate::response_scanner::ResponseStats;
use crate::{Error, Result};

pub(super) const SKIPPED: &str = "skipped: it needs a running Redis, which --redis HOST:PORT names";
pub(super) const REDIS: &str = "redis";
const KEY_PREFIX: &str = "experiment:";
const NOTIFICATIONS: usize = 200;
const NOTIFICATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Measures a server, and then Redis.
pub(super) async fn measure(turn: &Turn<'_>, address: &str, into: &mut Measurements) -> Result<()> {
    let (server, running) = (turn.server(), turn.start(&[]).await?);
    run_loops(turn, &running, None, into).await?;
    record_notifications(server, &watch_and_put(&running.leader).await?, into);
    running.end().await?;
    measure_redis(turn, address, into).await
}

fn record_notifications(server: &str, notified: &ClassMetrics, into: &mut Measurements) {
    into.add(server, "notification/p50", notified.latency_ms(0.5));
    into.add(server, "notification/p99", notified.latency_ms(0.99));
}

/// Returns the settings of Redis that decide whether a put is synced.
pub(super) async fn syncs(address: &str) -> Result<String> {
    let mut connection = RedisConnection::open(address).await?;
    let mut words = Vec::new();
    for name in ["appendonly", "appendfsync"] {
        let reply = connection.call(&[b"CONFIG", b"GET", name.as_bytes()]).await;
        let value = match reply {
            Ok(Reply::List(pair)) => match pair.into_iter().nth(1) {
                Some(Reply::Text(Some(value))) => String::from_utf8_lossy(&value).into_owned(),
                _ => "unknown".to_owned(),
            },
            _ => "unknown".to_owned(),
        };
        words.push(format!("{name} is {value}"));
    }
    Ok(words.join(" and "))
}

async fn measure_redis(turn: &Turn<'_>, address: &str, into: &mut Measurements) -> Result<()> {
    let records = Records { keys: turn.values.get("count")?, bytes: turn.values.get("value")? };
    records.set_all(address).await?;
    let window = Duration::from_secs(turn.values.get("seconds")?);
    for LoopPlan { figure, class, clients, .. } in &turn.plan.loops {
        let clients = turn.values.number(clients)?;
        let metrics = redis_loop(address, records, class == "put", clients, window).await?;
        ClosedLoopReport { metrics, window }.record(figure, None, REDIS, into);
    }
    record_notifications(REDIS, &subscribe_and_publish(address).await?, into);
    Ok(())
}

#[derive(Clone, Copy, Debug)]
struct Records {
    keys: u64,
    /// The number of bytes in each value.
    bytes: usize,
}

impl Records {
    /// Sets all keys, because the server that is compared with Redis is also filled. A get of a
    /// missing key would be faster than a get of a value.
    async fn set_all(self, address: &str) -> Result<()> {
        let mut connection = RedisConnection::open(address).await?;
        for number in 0..self.keys {
            connection.call(&[b"SET", key(number).as_bytes(), &self.value()]).await?;
        }
        Ok(())
    }

    fn value(self) -> Vec<u8> {
        vec![b'v'; self.bytes]
    }
}

fn key(number: u64) -> String {
    format!("{KEY_PREFIX}{number:030}")
}

/// Fails if Redis has replied with an error, or if a get has not found its key.
fn check_reply(reply: Result<Reply>) -> Result<()> {
    match reply? {
        Reply::Text(None) => Err(Error::Server("redis: a key is missing".to_owned())),
        _ => Ok(()),
    }
}

/// Runs the clients, with a warm-up. A request of the warm-up is counted only if it fails. A client
/// ends after its first failure.
async fn redis_loop(
    address: &str,
    records: Records,
    is_put: bool,
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
            let value = records.value();
            for place in (number * 7..).step_by(13) {
                let sent = start.elapsed();
                if sent >= WARM_UP + window {
                    break;
                }
                let key = key(place % records.keys);
                let reply = if is_put {
                    connection.call(&[b"SET", key.as_bytes(), &value]).await
                } else {
                    connection.call(&[b"GET", key.as_bytes()]).await
                };
                // Times are measured from the end of the warm-up.
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
    Error::Server("no notification arrived within 5 s".to_owned())
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

/// Puts one key again and again, and measures the time until a watch of the key has each event.
async fn watch_and_put(endpoint: &str) -> Result<ClassMetrics> {
    let key = format!("{PREFIX}watched");
    let failed =
        |status: tonic::Status| Error::Server(format!("a watch failed: {}", status.message()));
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
