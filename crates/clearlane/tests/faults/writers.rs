//! Clients that write new keys continuously, on any member that responds, and record the
//! acknowledged keys. Other clients check that revisions never decrease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::program::{TIMEOUT, kv, kv_with_timeout, short_pause};
use crate::support::put;

#[derive(Debug)]
pub(crate) struct WriterProgress {
    started_at: Instant,
    is_stopping: AtomicBool,
    pub(crate) acknowledged: AtomicU64,
    pub(crate) reads: AtomicU64,
    /// The highest revision that any client has received.
    revision: AtomicI64,
    /// The start of the newest acknowledged put, in microseconds since `started_at`.
    newest_put_started_us: AtomicU64,
}

pub(crate) struct Writers {
    pub(crate) progress: Arc<WriterProgress>,
    writers: JoinSet<Vec<String>>,
    readers: JoinSet<()>,
}

impl Writers {
    /// Starts `writers` tasks that write, and `readers` tasks that read.
    pub(crate) fn start(ports: &[u16], writers: usize, readers: usize) -> Writers {
        Writers::start_at(ports, writers, readers, "")
    }

    /// Same as [`start`](Writers::start). The writers' keys contain `round`, so that two rounds
    /// have no keys in common.
    pub(crate) fn start_at(ports: &[u16], writers: usize, readers: usize, round: &str) -> Writers {
        let seen = Arc::new(WriterProgress {
            started_at: Instant::now(),
            is_stopping: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            revision: AtomicI64::new(0),
            newest_put_started_us: AtomicU64::new(0),
        });
        let mut all = Writers { progress: seen, writers: JoinSet::new(), readers: JoinSet::new() };
        for number in 0..writers {
            let member = FailoverClient::new(ports, number);
            let prefix = format!("w{number:02}{round}");
            all.writers.spawn(write(member, prefix, Arc::clone(&all.progress)));
        }
        for number in 0..readers {
            all.readers.spawn(read(FailoverClient::new(ports, number), Arc::clone(&all.progress)));
        }
        all
    }

    /// Stops all clients. Returns the acknowledged keys.
    pub(crate) async fn end(self) -> Vec<String> {
        self.progress.is_stopping.store(true, SeqCst);
        self.readers.join_all().await;
        self.writers.join_all().await.concat()
    }
}

impl WriterProgress {
    /// Waits until a put that started after this call is acknowledged. Returns how long this took.
    pub(crate) async fn wait_for_recovery(&self) -> std::time::Duration {
        let begin = self.started_at.elapsed();
        while u128::from(self.newest_put_started_us.load(SeqCst)) < begin.as_micros() {
            assert!(self.started_at.elapsed() - begin < TIMEOUT, "no client can write");
            short_pause().await;
        }
        self.started_at.elapsed() - begin
    }
}

struct FailoverClient {
    ports: Vec<u16>,
    index: usize,
    client: Option<KvClient<Channel>>,
}

impl FailoverClient {
    fn new(ports: &[u16], at: usize) -> FailoverClient {
        FailoverClient { ports: ports.to_vec(), index: at, client: None }
    }

    async fn client(&mut self) -> Option<&mut KvClient<Channel>> {
        if self.client.is_none() {
            self.client = kv(self.ports[self.index % self.ports.len()]).await.ok();
            if self.client.is_none() {
                self.switch_member().await;
            }
        }
        self.client.as_mut()
    }

    async fn switch_member(&mut self) {
        self.client = None;
        self.index += 1;
        short_pause().await;
    }
}

async fn write(
    mut member: FailoverClient,
    prefix: String,
    seen: Arc<WriterProgress>,
) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for number in 0_u64.. {
        if seen.is_stopping.load(SeqCst) {
            break;
        }
        let begun = seen.started_at.elapsed().as_micros() as u64;
        let Some(client) = member.client().await else { continue };
        let key = format!("{prefix}/{number:010}");
        match client.put(put(&key, value_of(&key))).await {
            Ok(reply) => {
                let revision = reply.into_inner().header.unwrap().revision;
                seen.revision.fetch_max(revision, SeqCst);
                seen.newest_put_started_us.fetch_max(begun, SeqCst);
                seen.acknowledged.fetch_add(1, SeqCst);
                acknowledged.push(key);
            }
            // The client does not know whether the put was applied, so it does not record the key
            // as acknowledged.
            Err(_) => member.switch_member().await,
        }
    }
    acknowledged
}

/// Returns the value for a key. The value contains the key, so a check detects a value that was put
/// for another key.
pub(crate) fn value_of(key: &str) -> String {
    format!("{key}={}", "v".repeat(100))
}

/// Reads until the clients are stopped, and checks each revision: once any client has received a
/// revision, every later read must return this revision or a higher one.
async fn read(mut member: FailoverClient, seen: Arc<WriterProgress>) {
    while !seen.is_stopping.load(SeqCst) {
        let Some(client) = member.client().await else { continue };
        let least = seen.revision.load(SeqCst);
        let range = RangeRequest {
            key: "w".into(),
            range_end: "x".into(),
            count_only: true,
            ..RangeRequest::default()
        };
        match client.range(range).await {
            Ok(reply) => {
                let revision = reply.into_inner().header.unwrap().revision;
                assert!(revision >= least, "a read goes back from {least} to {revision}");
                seen.revision.fetch_max(revision, SeqCst);
                seen.reads.fetch_add(1, SeqCst);
            }
            Err(_) => member.switch_member().await,
        }
    }
}

pub(crate) async fn check_keys_present(port: u16, keys: &[String], serializable: bool) {
    let mut client = kv_with_timeout(port).await;
    let range = RangeRequest {
        key: "w".into(),
        range_end: "x".into(),
        serializable,
        ..RangeRequest::default()
    };
    let begin = Instant::now();
    // On a busy machine the members may be about to elect another leader. A read that fails for
    // this reason is tried again.
    let there = loop {
        match client.range(range.clone()).await {
            Ok(reply) => break reply.into_inner().kvs,
            Err(status) => assert!(begin.elapsed() < TIMEOUT, "{status}"),
        }
        short_pause().await;
    };
    let there: std::collections::HashMap<_, _> =
        there.into_iter().map(|kv| (kv.key, kv.value)).collect();
    for key in keys {
        let value = there.get(key.as_bytes());
        let value = value.unwrap_or_else(|| panic!("{key} was acknowledged and is not there"));
        assert_eq!(value, value_of(key).as_bytes(), "{key}");
    }
}
