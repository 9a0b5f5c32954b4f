//! Tests of leases over real sockets: granted, kept alive, expired, revoked, and restored after a
//! restart.

use std::time::{Duration, Instant};

use clearlane_backend::Era;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, PutRequest, RangeRequest,
};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::support::{TestServer, block_on, block_on_for, code_and_message, with_server};

#[derive(Clone)]
struct Client {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
}

impl Client {
    async fn connect(server: &TestServer) -> Client {
        let channel = server.channel().await;
        Client { kv: KvClient::new(channel.clone()), lease: LeaseClient::new(channel) }
    }

    async fn grant(&mut self, id: i64, ttl: i64) -> Result<(i64, i64), Status> {
        let granted = self.lease.lease_grant(LeaseGrantRequest { id, ttl }).await?.into_inner();
        Ok((granted.id, granted.ttl))
    }

    async fn put(&mut self, key: &str, lease: i64) -> Result<i64, Status> {
        let request = PutRequest { key: key.to_owned().into(), lease, ..PutRequest::default() };
        Ok(self.kv.put(request).await?.into_inner().header.unwrap().revision)
    }

    /// Returns the number of keys with a prefix, and the revision.
    async fn count(&mut self, prefix: &str) -> (i64, i64) {
        let (key, range_end) = (prefix.to_owned(), format!("{prefix}\u{7f}"));
        let (key, range_end) = (key.into(), range_end.into());
        let request = RangeRequest { key, range_end, count_only: true, ..Default::default() };
        let found = self.kv.range(request).await.unwrap().into_inner();
        (found.count, found.header.unwrap().revision)
    }

    async fn standing(&mut self, id: i64) -> LeaseTimeToLiveResponse {
        let request = LeaseTimeToLiveRequest { id, keys: true };
        self.lease.lease_time_to_live(request).await.unwrap().into_inner()
    }

    async fn list(&mut self) -> Vec<i64> {
        let list = self.lease.lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
        list.leases.iter().map(|lease| lease.id).collect()
    }

    async fn revoke(&mut self, id: i64) -> Result<i64, Status> {
        let revoked = self.lease.lease_revoke(LeaseRevokeRequest { id }).await?.into_inner();
        Ok(revoked.header.unwrap().revision)
    }

    /// Waits until no key has the prefix. Returns the store's revision at that time.
    async fn gone(&mut self, prefix: &str) -> i64 {
        loop {
            let (count, revision) = self.count(prefix).await;
            if count == 0 {
                return revision;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[test]
fn granted_listed_and_revoked_with_its_keys_at_one_revision() {
    with_server(async |server| {
        let mut client = Client::connect(server).await;
        assert_eq!(client.grant(100, 600).await.unwrap(), (100, 600));
        assert_eq!(client.grant(-9, 50).await.unwrap(), (-9, 50));
        assert_eq!(client.grant(7, 0).await.unwrap(), (7, 2), "the least there is");
        let (chosen, ttl) = client.grant(0, 60).await.unwrap();
        assert!(chosen > 0 && ttl == 60);
        let words = "etcdserver: lease already exists";
        let refused = client.grant(100, 5).await.unwrap_err();
        assert_eq!(code_and_message(&refused), (Code::FailedPrecondition, words));
        let words = "etcdserver: too large lease TTL";
        let refused = client.grant(8, 9_000_000_001).await.unwrap_err();
        assert_eq!(code_and_message(&refused), (Code::OutOfRange, words));

        for (key, revision) in [("k/b", 2), ("k/a", 3), ("k/c", 4)] {
            assert_eq!(client.put(key, 100).await.unwrap(), revision);
        }
        assert_eq!(client.put("k/c", -9).await.unwrap(), 5, "it moves");
        let standing = client.standing(100).await;
        assert!((540..600).contains(&standing.ttl) && standing.granted_ttl == 600, "{standing:?}");
        assert_eq!(standing.keys, ["k/a", "k/b"]);
        // On a slow machine, lease 7 may have expired.
        let mut listed = client.list().await;
        listed.retain(|id| *id != 7);
        assert_eq!(listed, [-9, chosen, 100], "by their end");

        assert_eq!(client.revoke(100).await.unwrap(), 6, "two keys, one revision");
        assert_eq!(client.count("k/").await, (1, 6));
        let words = "etcdserver: requested lease not found";
        let refused = client.revoke(100).await.unwrap_err();
        assert_eq!(code_and_message(&refused), (Code::NotFound, words));
        let refused = client.put("k/d", 100).await.unwrap_err();
        assert_eq!(code_and_message(&refused), (Code::NotFound, words));
        let standing = client.standing(100).await;
        assert_eq!((standing.ttl, standing.granted_ttl, standing.keys.len()), (-1, 0, 0));
    });
}

#[test]
fn kept_alive_it_lives_and_then_it_takes_its_keys_along() {
    with_server(async |server| {
        let mut client = Client::connect(server).await;
        client.grant(60, 5).await.unwrap();
        client.put("x", 60).await.unwrap();
        let (ask, requests) = tokio::sync::mpsc::channel(1);
        let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
        let answers = client.lease.lease_keep_alive(requests).await.unwrap();
        let mut answers = answers.into_inner();
        let (begin, mut asked) = (Instant::now(), Instant::now());
        while begin.elapsed() < Duration::from_secs(6) {
            asked = Instant::now();
            ask.send(LeaseKeepAliveRequest { id: 60 }).await.unwrap();
            let answer = answers.message().await.unwrap().unwrap();
            assert_eq!((answer.id, answer.ttl, answer.header.unwrap().revision), (60, 5, 2));
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        assert_eq!(client.count("x").await, (1, 2), "longer than it was granted for");
        assert_eq!(client.gone("x").await, 3);
        let after = asked.elapsed();
        assert!(after >= Duration::from_secs(5), "gone after {after:?} is too early");
        for id in [60, 4711] {
            ask.send(LeaseKeepAliveRequest { id }).await.unwrap();
            let answer = answers.message().await.unwrap().unwrap();
            assert_eq!((answer.id, answer.ttl), (id, 0), "and the stream goes on");
        }
        drop(ask);
        assert!(answers.message().await.unwrap().is_none(), "no more is asked");
        assert_eq!(client.list().await, [0; 0]);
    });
}

#[test]
fn after_a_restart_leases_have_their_keys_and_their_time_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path(), Era::Clearlane);
    block_on(async {
        let mut client = Client::connect(&server).await;
        for (id, ttl) in [(70, 600), (71, 3), (72, 900)] {
            client.grant(id, ttl).await.unwrap();
        }
        client.put("long", 70).await.unwrap();
        client.put("short", 71).await.unwrap();
        client.revoke(72).await.unwrap();
    });
    server.stop();
    let server = TestServer::start(dir.path(), Era::Clearlane);
    block_on(async {
        let mut client = Client::connect(&server).await;
        let standing = client.standing(70).await;
        // The leader adds an election timeout to the remaining time.
        assert!((540..=601).contains(&standing.ttl) && standing.granted_ttl == 600, "{standing:?}");
        assert_eq!(standing.keys, ["long"]);
        assert_eq!(client.list().await, [71, 70]);
        assert_eq!(client.gone("short").await, 4);
        assert_eq!(client.count("long").await, (1, 4));
    });
    server.stop();
}

/// The times of consecutive puts and reads.
#[derive(Default)]
struct Times {
    puts: Vec<Duration>,
    reads: Vec<Duration>,
}

impl Times {
    /// Measures one put and one read. Returns the number of keys with leases.
    async fn take(&mut self, client: &mut Client) -> i64 {
        let begin = Instant::now();
        client.put("beside", 0).await.unwrap();
        self.puts.push(begin.elapsed());
        let begin = Instant::now();
        let (count, _) = client.count("leased/").await;
        self.reads.push(begin.elapsed());
        count
    }

    fn p99s(&mut self) -> [Duration; 2] {
        [&mut self.puts, &mut self.reads].map(|times| {
            times.sort();
            let last = times.len().checked_sub(1).expect("some were taken");
            times[last * 99 / 100]
        })
    }
}

/// Thousands of leases expire together, and puts and reads during that time take only slightly
/// longer than usual. The following command, which takes three minutes, prints figures for a
/// hundred thousand leases:
///
/// ```text
/// CLEARLANE_LEASES=100000 \
///     cargo test --release -p clearlane --test services thousands -- --nocapture
/// ```
#[test]
fn puts_and_reads_go_on_while_thousands_end() {
    let wanted = std::env::var("CLEARLANE_LEASES").ok();
    let leases: i64 = wanted.map_or(3_000, |leases| leases.parse().expect("a whole number"));
    // All leases must have been granted before the first one expires.
    let ttl = 8 + leases / 2_000;
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path(), Era::Clearlane);
    block_on_for(Duration::from_secs(60 + leases as u64 / 200), async {
        let mut client = Client::connect(&server).await;
        let mut grants = tokio::task::JoinSet::new();
        for first in 0..50 {
            let mut client = client.clone();
            grants.spawn(async move {
                for id in (first + 1..=leases).step_by(50) {
                    client.grant(id, ttl).await.unwrap();
                    client.put(&format!("leased/{id}"), id).await.unwrap();
                }
            });
        }
        while let Some(granted) = grants.join_next().await {
            granted.unwrap();
        }
        let (mut calm, mut beside) = (Times::default(), Times::default());
        while calm.take(&mut client).await == leases {}
        let ending = Instant::now();
        while beside.take(&mut client).await > 0 {}
        assert_eq!(client.list().await, [0; 0]);
        let (took, puts) = (ending.elapsed(), beside.puts.len());
        assert!(puts > 20, "{puts} puts while they ended: they must have gone all at once");
        let calm_worst = *calm.puts.iter().chain(&calm.reads).max().unwrap();
        let ([put, read], calm) = (beside.p99s(), calm.p99s());
        println!(
            "{leases} leases ended in {took:?}: p99 of {puts} puts {put:?}, of reads {read:?}; before {calm:?}"
        );
        // A request that waits for the end of all leases would take about as long as `took`. The
        // bound also allows for disks that pause for a second or two.
        let bound = Duration::from_secs(2).max(took / 2).min(Duration::from_secs(5));
        let bound = bound.max(2 * calm_worst);
        let worst = beside.puts.iter().chain(&beside.reads).max().unwrap();
        assert!(*worst < bound, "one took {worst:?} of {took:?}");
    });
    server.stop();
}
