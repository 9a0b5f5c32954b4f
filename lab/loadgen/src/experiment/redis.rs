//! Measures puts, gets and notifications of a server of etcd's API and of Redis.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{PutRequest, WatchCreateRequest};
use tokio::join;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::context::{PREFIX, channel};
use super::curve::{loop_options, run_loop, run_loops};
use super::measurements::Measurements;
use super::plan::LoopPlan;
use super::resp::{RedisConnection, Reply};
use super::turn::Turn;
use crate::class_metrics::{CallResult, ClassMetrics, LoopMetrics};
use crate::closed_loop::engine::{LoopOptions, LoopRequest, RequestSource};
use crate::connection::{self, open_watch};
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
        let options = loop_options(&[address.to_owned()], clients, window)?;
        // The requests use connections to Redis, which their source opens.
        let options = LoopOptions { connections: 0, ..options };
        let mut source = |thread| records.source(address, class == "put", thread);
        run_loop(options, &mut source).await?.record(figure, None, REDIS, into);
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
            connection.call(&[b"SET", self.key(number).as_bytes(), &self.value()]).await?;
        }
        Ok(())
    }

    fn key(self, number: u64) -> String {
        format!("{KEY_PREFIX}{:030}", number % self.keys)
    }

    fn value(self) -> Vec<u8> {
        vec![b'v'; self.bytes]
    }

    /// Returns the source of the requests of a thread's clients. Each client has its own
    /// connection.
    fn source(self, address: &str, is_put: bool, thread: u64) -> RequestSource {
        let address = address.to_owned();
        let mut clients = HashMap::<u64, Arc<Mutex<Option<RedisConnection>>>>::new();
        let mut numbers = (thread * 7..).step_by(13);
        Box::new(move |client| {
            let key = self.key(numbers.next().expect("the numbers do not end"));
            let (client, address) =
                (Arc::clone(clients.entry(client).or_default()), address.clone());
            LoopRequest::Calls(Box::pin(async move {
                let mut client = client.lock().await;
                let request = async {
                    let mut connection = match client.take() {
                        Some(connection) => connection,
                        None => RedisConnection::open(&address).await?,
                    };
                    let reply = match is_put {
                        true => connection.call(&[b"SET", key.as_bytes(), &self.value()]).await?,
                        false => connection.call(&[b"GET", key.as_bytes()]).await?,
                    };
                    match reply {
                        Reply::Text(None) => {
                            Err(Error::Server("redis: a key is missing".to_owned()))
                        }
                        _ => Ok(connection),
                    }
                };
                // After a failure, the next request opens a new connection.
                *client = Some(request.await.map_err(|error| error.to_string())?);
                Ok(ResponseStats::default())
            }))
        })
    }
}

/// Sends notifications one after the other. `notify` sends one, and adds the time until it arrives.
async fn notifications(
    mut notify: impl AsyncFnMut(&LoopMetrics) -> Result<()>,
) -> Result<ClassMetrics> {
    let late = |_| Error::Server("no notification arrived within 5 s".to_owned());
    let metrics = LoopMetrics::start();
    for _ in 0..NOTIFICATIONS {
        timeout(NOTIFICATION_TIMEOUT, notify(&metrics)).await.map_err(late)??;
    }
    let metrics = metrics.take();
    match metrics.errors().keys().next() {
        Some(why) => Err(Error::Server(format!("a notification failed: {why}"))),
        None => Ok(metrics),
    }
}

fn arrived<T>(message: std::result::Result<T, impl ToString>) -> CallResult {
    message.map(|_| ResponseStats::default()).map_err(|error| error.to_string())
}

async fn subscribe_and_publish(address: &str) -> Result<ClassMetrics> {
    let name = format!("{KEY_PREFIX}channel");
    let mut subscriber = RedisConnection::open(address).await?;
    let mut publisher = RedisConnection::open(address).await?;
    subscriber.call(&[b"SUBSCRIBE", name.as_bytes()]).await?;
    notifications(async |metrics| {
        let message = metrics.add(async { arrived(subscriber.next_reply().await) });
        let words: [&[u8]; 3] = [b"PUBLISH", name.as_bytes(), b"message"];
        join!(message, publisher.call(&words)).1.map(drop)
    })
    .await
}

/// Puts one key again and again, and measures the time until a watch of the key receives each
/// event.
async fn watch_and_put(endpoint: &str) -> Result<ClassMetrics> {
    let key = Bytes::from(format!("{PREFIX}watched"));
    let failed = |status| connection::error("a watch failed")(status);
    let create = WatchCreateRequest { key: key.clone(), ..WatchCreateRequest::default() };
    let opened = open_watch(channel(endpoint).await?, None, create).await;
    let (_open, mut events) = opened.map_err(failed)?;
    events.message().await.map_err(failed)?;
    let mut client = KvClient::new(channel(endpoint).await?);
    notifications(async |metrics| {
        let event = metrics.add(async { arrived(events.message().await) });
        let (key, value) = (key.clone(), Bytes::from_static(b"message"));
        let put = client.put(PutRequest { key, value, ..PutRequest::default() });
        join!(event, put).1.map(drop).map_err(failed)
    })
    .await
}
