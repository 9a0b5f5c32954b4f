//! Clients that write new keys for ever, wherever somebody answers, and remember what was acknowledged;
//! and others that look whether the past comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::program::{PATIENCE, kv, moment, patient};

/// What they have come to, together.
#[derive(Debug)]
pub(crate) struct Seen {
    begin: Instant,
    ends: AtomicBool,
    pub(crate) acknowledged: AtomicU64,
    pub(crate) reads: AtomicU64,
    /// The newest revision that anybody was told of.
    revision: AtomicI64,
    /// When the newest acknowledged put was begun, in microseconds.
    begun: AtomicU64,
}

/// The clients at work.
pub(crate) struct Writers {
    pub(crate) seen: Arc<Seen>,
    writers: JoinSet<Vec<String>>,
    readers: JoinSet<()>,
}

impl Writers {
    /// So many of each, each at one of the members at a time.
    pub(crate) fn start(ports: &[u16], writers: usize, readers: usize) -> Writers {
        let seen = Arc::new(Seen {
            begin: Instant::now(),
            ends: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            revision: AtomicI64::new(0),
            begun: AtomicU64::new(0),
        });
        let mut all = Writers { seen, writers: JoinSet::new(), readers: JoinSet::new() };
        for number in 0..writers {
            let member = Somewhere::new(ports, number);
            all.writers.spawn(write(member, number, Arc::clone(&all.seen)));
        }
        for number in 0..readers {
            all.readers.spawn(read(Somewhere::new(ports, number), Arc::clone(&all.seen)));
        }
        all
    }

    /// Ends them; returns the keys that were acknowledged.
    pub(crate) async fn end(self) -> Vec<String> {
        self.seen.ends.store(true, SeqCst);
        self.readers.join_all().await;
        self.writers.join_all().await.concat()
    }
}

impl Seen {
    /// Waits until a put is acknowledged that was begun after now; says how long it took.
    pub(crate) async fn heals(&self) -> std::time::Duration {
        let begin = self.begin.elapsed();
        while u128::from(self.begun.load(SeqCst)) < begin.as_micros() {
            assert!(self.begin.elapsed() - begin < PATIENCE, "nobody can write");
            moment().await;
        }
        self.begin.elapsed() - begin
    }
}

/// A member that answers; another one if it does not.
struct Somewhere {
    ports: Vec<u16>,
    at: usize,
    client: Option<KvClient<Channel>>,
}

impl Somewhere {
    fn new(ports: &[u16], at: usize) -> Somewhere {
        Somewhere { ports: ports.to_vec(), at, client: None }
    }

    async fn client(&mut self) -> Option<&mut KvClient<Channel>> {
        if self.client.is_none() {
            self.client = kv(self.ports[self.at % self.ports.len()]).await.ok();
            if self.client.is_none() {
                self.leave().await;
            }
        }
        self.client.as_mut()
    }

    async fn leave(&mut self) {
        self.client = None;
        self.at += 1;
        moment().await;
    }
}

async fn write(mut member: Somewhere, writer: usize, seen: Arc<Seen>) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for number in 0_u64.. {
        if seen.ends.load(SeqCst) {
            break;
        }
        let begun = seen.begin.elapsed().as_micros() as u64;
        let Some(client) = member.client().await else { continue };
        let key = format!("w{writer:02}/{number:010}");
        let put = PutRequest {
            key: key.clone().into(),
            value: value_of(&key).into(),
            ..PutRequest::default()
        };
        match client.put(put).await {
            Ok(reply) => {
                let revision = reply.into_inner().header.unwrap().revision;
                seen.revision.fetch_max(revision, SeqCst);
                seen.begun.fetch_max(begun, SeqCst);
                seen.acknowledged.fetch_add(1, SeqCst);
                acknowledged.push(key);
            }
            // What has become of it nobody knows.
            Err(_) => member.leave().await,
        }
    }
    acknowledged
}

/// A value that shows whose it is.
pub(crate) fn value_of(key: &str) -> String {
    format!("{key}={}", "v".repeat(100))
}

/// Whoever has been told of a revision, all who ask from then on are told of that one or a later one.
async fn read(mut member: Somewhere, seen: Arc<Seen>) {
    while !seen.ends.load(SeqCst) {
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
            Err(_) => member.leave().await,
        }
    }
}

/// Looks for keys and their values at one member.
pub(crate) async fn are_there(port: u16, keys: &[String], serializable: bool) {
    let mut client = patient(port).await;
    let range = RangeRequest {
        key: "w".into(),
        range_end: "x".into(),
        serializable,
        ..RangeRequest::default()
    };
    let begin = Instant::now();
    // The members may be about to choose another leader, on a machine that has much else to do.
    let there = loop {
        match client.range(range.clone()).await {
            Ok(reply) => break reply.into_inner().kvs,
            Err(status) => assert!(begin.elapsed() < PATIENCE, "{status}"),
        }
        moment().await;
    };
    let there: std::collections::HashMap<_, _> =
        there.into_iter().map(|kv| (kv.key, kv.value)).collect();
    for key in keys {
        let value = there.get(key.as_bytes());
        let value = value.unwrap_or_else(|| panic!("{key} was acknowledged and is not there"));
        assert_eq!(value, value_of(key).as_bytes(), "{key}");
    }
}
