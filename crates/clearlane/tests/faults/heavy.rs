//! Tests that a request that takes long to apply costs no member its leadership: the term does not
//! change, no request fails because of a change of the leader, and raft ticks on time. The same
//! must hold in each old era while expensive reads hold its locks.
//!
//! `CLEARLANE_KEYS=500000` makes the test as heavy as intended. `CLEARLANE_TICK_MAX_MS=20` also
//! limits how late the ticks of raft may be. The test compares the ticks with a thread that only
//! sleeps and wakes, because a pause of the virtual machine delays both. It fails if the largest
//! delay of a tick exceeds the largest delay of a wake-up by more than 20 ms.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{Compare, DeleteRangeRequest, RangeRequest, TxnRequest};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::env_number;
use crate::program::{Program, leader_of, members, short_pause};
use crate::sleeper::Sleeper;
use crate::support::{http_get, op, put, put_all};
use crate::three::agree;

/// Number of concurrent writers.
const WRITERS: usize = 16;
/// Time limit of a request. None of the requests in this file takes that long.
const TIMEOUT: Duration = Duration::from_secs(300);
const TIMED_OUT: &str = "etcdserver: request timed out";

fn keys() -> usize {
    env_number("CLEARLANE_KEYS").unwrap_or(20_000) as usize
}

async fn kv(member: &Program) -> KvClient<Channel> {
    let endpoint = Endpoint::from_shared(member.url()).unwrap().timeout(TIMEOUT);
    KvClient::new(endpoint.connect().await.unwrap()).max_decoding_message_size(usize::MAX)
}

async fn fill(member: &Program, keys: usize) {
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let mut kv = kv(member).await;
        writers.spawn(async move {
            let keys = (writer..keys).step_by(WRITERS);
            let puts = keys.map(|key| put(format!("h{key:07}"), "v".repeat(256)));
            put_all(&mut kv, puts).await;
        });
    }
    writers.join_all().await;
}

fn all() -> RangeRequest {
    RangeRequest { key: "h".into(), range_end: "i".into(), ..RangeRequest::default() }
}

fn sorted() -> RangeRequest {
    let (order, target) = (SortOrder::Descend, SortTarget::Value);
    RangeRequest { sort_order: order.into(), sort_target: target.into(), limit: 1, ..all() }
}

fn ten_ranges() -> TxnRequest {
    let own = op(Request::RequestPut(put("own", "ranges")));
    let ranges = (0..10).map(|_| op(Request::RequestRange(sorted())));
    TxnRequest { success: [own].into_iter().chain(ranges).collect(), ..TxnRequest::default() }
}

/// Ten compares of values, each over a different range and in a nested transaction. The apply loop
/// must visit all records for each of them.
fn ten_compares() -> TxnRequest {
    let compare = |number| Compare {
        result: CompareResult::NotEqual.into(),
        target: CompareTarget::Value.into(),
        key: "h".into(),
        range_end: format!("i{}", "-".repeat(number)).into(),
        target_union: Some(TargetUnion::Value("another".into())),
    };
    let own = op(Request::RequestPut(put("own", "compares")));
    let compare = (0..10).map(compare).collect();
    let nested = TxnRequest { compare, success: vec![own], ..TxnRequest::default() };
    let success = vec![op(Request::RequestTxn(nested))];
    TxnRequest { success, ..TxnRequest::default() }
}

/// Alternates small puts and linearizable reads on a member until `stop` is set. Returns the
/// errors, and the longest time of a put together with its read.
async fn light(
    mut kv: KvClient<Channel>,
    name: usize,
    stop: Arc<AtomicBool>,
) -> (Vec<String>, Duration) {
    let (mut refused, mut longest) = (Vec::new(), Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let small = put(format!("small{name}"), "v");
        let look = RangeRequest { key: small.key.clone(), ..RangeRequest::default() };
        refused.extend(kv.put(small).await.err().map(|status| status.message().to_owned()));
        refused.extend(kv.range(look).await.err().map(|status| status.message().to_owned()));
        longest = longest.max(begin.elapsed());
        short_pause().await;
    }
    (refused, longest)
}

/// Returns the value of a metric without labels.
fn metric(member: &Program, name: &str) -> f64 {
    let page = http_get(("127.0.0.1", member.client), "/metrics");
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}")).trim().parse().unwrap()
}

/// Prints the largest delay of a tick on each member. Fails if `CLEARLANE_TICK_MAX_MS` is set, and
/// one of these delays exceeds the sleeper's largest delay by more than this number of
/// milliseconds.
fn check_tick_lateness(what: &str, members: &[Program], sleeper: &Sleeper) {
    let late = |member| 1000.0 * metric(member, "clearlane_raft_tick_lateness_max_seconds");
    let late: Vec<f64> = members.iter().map(late).collect();
    let slept = sleeper.latest_ms();
    println!(
        "{what}: latest tick of each member {late:.1?} ms, of a thread that only sleeps {slept:.1} ms"
    );
    if let Some(most) = env_number("CLEARLANE_TICK_MAX_MS") {
        let most = slept + most as f64;
        assert!(late.iter().all(|late| *late <= most), "{what}: {late:?} ms, at most {most}");
    }
}

async fn terms(members: &mut [Program]) -> Vec<u64> {
    let mut terms = Vec::new();
    for member in members {
        terms.push(member.ready().await.raft_term);
    }
    terms
}

/// Waits until the apply loop has applied a request that has timed out. As in etcd, the client gets
/// the time-out although the request is still being applied.
async fn wait_until_applied(kv: &mut KvClient<Channel>, status: &Status, what: &str) {
    assert_eq!(status.message(), TIMED_OUT, "{what}");
    while kv.put(put("behind", "v")).await.is_err() {}
}

#[tokio::test]
async fn a_request_that_takes_long_to_apply_costs_no_leadership() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = members(dir.path(), 3);
    for member in &mut members {
        // Allows up to 1,000 operations in a transaction. The default is 128.
        member.flags = vec!["--max-txn-ops=1000".to_owned()];
        member.start();
    }
    let leader = leader_of(&mut members).await;
    let sleeper = Sleeper::start();
    fill(&members[leader], keys()).await;
    let before = terms(&mut members).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for (name, member) in members.iter().enumerate() {
        clients.spawn(light(kv(member).await, name, Arc::clone(&stop)));
    }
    let mut heavy = kv(&members[leader]).await;
    for (what, request) in [("10 sorted ranges", ten_ranges()), ("10 compares", ten_compares())] {
        let begin = Instant::now();
        if let Err(status) = heavy.txn(request).await {
            wait_until_applied(&mut heavy, &status, what).await;
        }
        println!("{what} over {} keys: {:?}", keys(), begin.elapsed());
        check_tick_lateness(what, &members, &sleeper);
    }
    let begin = Instant::now();
    let (key, range_end) = ("h".into(), "i".into());
    let delete = DeleteRangeRequest { key, range_end, prev_kv: false };
    match heavy.delete_range(delete).await {
        Ok(answer) => assert_eq!(answer.into_inner().deleted as usize, keys()),
        Err(status) => wait_until_applied(&mut heavy, &status, "delete").await,
    }
    println!("delete of all {} keys: {:?}", keys(), begin.elapsed());
    check_tick_lateness("delete", &members, &sleeper);
    stop.store(true, Ordering::Relaxed);
    for (refused, longest) in clients.join_all().await {
        println!("a light client: {longest:?} at most, refused {refused:?}");
        let changed = refused.iter().any(|why| why.contains("leader changed"));
        assert!(!changed, "{refused:?}");
    }
    assert_eq!(terms(&mut members).await, before, "the term stays");
    agree(&mut members).await;
}

async fn hold_locks(member: &Program) {
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let (mut kv, stop) = (kv(member).await, Arc::clone(&stop));
        clients.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                kv.range(RangeRequest { serializable: true, ..sorted() }).await.unwrap();
            }
        });
    }
    let mut writer = kv(member).await;
    let begin = Instant::now();
    let mut puts = 0;
    while begin.elapsed() < Duration::from_secs(3) {
        // The readers may delay a put for longer than the request timeout.
        match writer.put(put("own", "v")).await {
            Ok(_) => puts += 1,
            Err(status) => assert_eq!(status.message(), TIMED_OUT),
        }
    }
    println!("{puts} puts beside 4 expensive readers");
    stop.store(true, Ordering::Relaxed);
    clients.join_all().await;
}

#[tokio::test]
async fn locks_of_an_old_era_hold_up_no_tick() {
    for era in ["3.0", "3.1", "3.2", "3.4", "3.5", "clearlane"] {
        let dir = tempfile::tempdir().unwrap();
        let mut members = members(dir.path(), 1);
        members[0].flags = vec![format!("--era={era}")];
        let sleeper = Sleeper::start();
        members[0].start();
        members[0].ready().await;
        fill(&members[0], keys()).await;
        hold_locks(&members[0]).await;
        check_tick_lateness(&format!("era {era}"), &members, &sleeper);
    }
}
