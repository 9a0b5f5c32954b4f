//! Stops, kills and cuts off each of three members in turn, under load with compactions and leases.
//! No process may end by itself, and all members must have the same data.
//!
//! Each fault occurs once by default. `CLEARLANE_ROUNDS` sets the number of faults. If it is set,
//! the tests also require that the leader changes only because of a fault, which cannot be relied
//! on if the machine is busy.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseTimeToLiveRequest,
    PutRequest, StatusResponse,
};
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::env_number;
use crate::links::{FAULT_DURATION, PeerProxies};
use crate::program::{Program, TIMEOUT, connect, kv, members, patient_channel, short_pause};
use crate::sleeper::Sleeper;
use crate::support::put;
use crate::three::agree;
use crate::writers::{Writers, check_keys_present};

const LEASES: i64 = 8;
/// The TTL of the leases in seconds. It is longer than a fault and the election after it.
const TTL: i64 = 10;
/// The interval between two keep-alives of a lease, or two compactions.
const CLIENT_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Stop,
    Kill,
    Cut,
}

struct BackgroundClients {
    ports: Vec<u16>,
    is_stopping: AtomicBool,
    compactions: AtomicU64,
}

/// Waits until all members agree on the leader. Returns the leader and its term.
async fn wait_for_agreed_leader(members: &mut [Program]) -> (u64, u64) {
    let begin = Instant::now();
    loop {
        let mut said = Vec::new();
        for member in &mut *members {
            let StatusResponse { leader, raft_term, .. } = member.ready().await;
            said.push((leader, raft_term));
        }
        if said[0].0 != 0 && said.iter().all(|one| *one == said[0]) {
            return said[0];
        }
        assert!(begin.elapsed() < TIMEOUT, "they say of leader and term: {said:?}");
        short_pause().await;
    }
}

fn logs(members: &[Program]) -> String {
    let last = |member: &Program| {
        let log = member.log();
        let lines: Vec<&str> = log.lines().collect();
        format!("\n{}: ...\n{}", member.name, lines[lines.len().saturating_sub(15)..].join("\n"))
    };
    members.iter().map(last).collect()
}

/// Grants a lease and puts its key. Succeeds also if the lease already exists.
async fn grant(port: u16, id: i64) -> Result<(), Status> {
    let channel = connect(port).await.map_err(|error| Status::unavailable(error.to_string()))?;
    let granted = LeaseClient::new(channel).lease_grant(LeaseGrantRequest { ttl: TTL, id }).await;
    let is_there = granted.as_ref().is_err_and(|status| status.code() == Code::FailedPrecondition);
    if !is_there {
        granted?;
    }
    let put = PutRequest { lease: id, ..put(format!("l{id}"), "kept") };
    let mut kv = kv(port).await.map_err(|error| Status::unavailable(error.to_string()))?;
    kv.put(put).await.map(drop)
}

/// Keeps a lease alive once. Returns the remaining TTL, or 0 if there is no such lease.
async fn keep_alive(port: u16, id: i64) -> Result<i64, Status> {
    let channel = connect(port).await.map_err(|error| Status::unavailable(error.to_string()))?;
    let once = tokio_stream::once(LeaseKeepAliveRequest { id });
    let mut replies = LeaseClient::new(channel).lease_keep_alive(once).await?.into_inner();
    let reply = replies.message().await?;
    reply.map(|reply| reply.ttl).ok_or_else(|| Status::unavailable("no reply"))
}

/// Grants a lease and keeps it alive until the end of the test. After each error it continues with
/// the next member. The lease must not expire, unless no member has responded for the length of its
/// TTL. Returns the longest time without a response.
async fn hold_lease(others: Arc<BackgroundClients>, id: i64) -> Duration {
    let port = |turn: usize| others.ports[turn % others.ports.len()];
    let mut turn = id as usize;
    while grant(port(turn), id).await.is_err() {
        turn += 1;
    }
    let (mut kept, mut longest) = (Instant::now(), Duration::ZERO);
    while !others.is_stopping.load(SeqCst) {
        let asked = Instant::now();
        match keep_alive(port(turn), id).await {
            Ok(ttl) => {
                longest = longest.max(kept.elapsed());
                let was_kept = kept.elapsed() < Duration::from_secs(TTL as u64);
                assert!(
                    ttl > 0 || !was_kept,
                    "lease {id} ended {:?} after it was kept",
                    kept.elapsed()
                );
                if ttl == 0 {
                    while grant(port(turn), id).await.is_err() {
                        turn += 1;
                    }
                }
                kept = asked;
                tokio::time::sleep(CLIENT_INTERVAL).await;
            }
            Err(_) => turn += 1,
        }
    }
    longest
}

/// Compacts repeatedly, on any member that responds.
async fn compact(others: Arc<BackgroundClients>) {
    for turn in 0.. {
        if others.is_stopping.load(SeqCst) {
            return;
        }
        tokio::time::sleep(CLIENT_INTERVAL).await;
        let Ok(mut kv) = kv(others.ports[turn % others.ports.len()]).await else { continue };
        let Ok(reply) = kv.put(put("compacted", "v")).await else { continue };
        let revision = reply.into_inner().header.unwrap().revision;
        let compaction = CompactionRequest { revision, physical: turn % 2 == 0 };
        others.compactions.fetch_add(u64::from(kv.compact(compaction).await.is_ok()), SeqCst);
    }
}

async fn inject_fault(fault: Fault, at: usize, members: &mut [Program], links: &PeerProxies) {
    match fault {
        Fault::Stop => members[at].signal("STOP"),
        Fault::Kill => members[at].kill(),
        Fault::Cut => links.cut(Some(at)),
    }
    tokio::time::sleep(FAULT_DURATION).await;
    for (other, member) in members.iter_mut().enumerate() {
        assert!(other == at || member.is_running(), "{other} has ended: {}", member.log());
    }
    match fault {
        Fault::Stop => members[at].signal("CONT"),
        Fault::Kill => links.start(at, &mut members[at]),
        Fault::Cut => links.cut(None),
    }
}

async fn check_leases_live(port: u16) {
    let mut client = LeaseClient::new(patient_channel(port).await);
    for id in 1..=LEASES {
        let asked = LeaseTimeToLiveRequest { id, keys: true };
        let lease = client.lease_time_to_live(asked).await.unwrap().into_inner();
        assert!(lease.ttl > 0 && lease.keys == [format!("l{id}").into_bytes()], "{lease:?}");
    }
}

#[tokio::test]
async fn faults_of_each_member_in_turn_end_no_process_and_no_lease() {
    let dir = tempfile::tempdir().unwrap();
    let rounds = env_number("CLEARLANE_ROUNDS");
    let mut members = members(dir.path(), 3);
    let links = PeerProxies::new(&mut members).await;
    for (at, member) in members.iter_mut().enumerate() {
        links.start(at, member);
    }
    wait_for_agreed_leader(&mut members).await;
    let ports: Vec<u16> = members.iter().map(|member| member.client).collect();
    let writers = Writers::start(&ports, 8, 2);
    let (ends, compactions) = (AtomicBool::new(false), AtomicU64::new(0));
    let others = Arc::new(BackgroundClients { ports, is_stopping: ends, compactions });
    let compacting = tokio::spawn(compact(Arc::clone(&others)));
    let mut leases = JoinSet::new();
    for id in 1..=LEASES {
        leases.spawn(hold_lease(Arc::clone(&others), id));
    }
    writers.progress.wait_for_recovery().await;
    let sleeper = Sleeper::start();
    let (mut changes, mut of_leaders) = (0, 0);
    let mut before = wait_for_agreed_leader(&mut members).await;
    for round in 0..rounds.unwrap_or(3) as usize {
        let fault = [Fault::Stop, Fault::Kill, Fault::Cut][round % 3];
        let at = (round + round / 3) % 3;
        let (leader, term) = wait_for_agreed_leader(&mut members).await;
        assert!(
            (leader, term) == before || rounds.is_none(),
            "without a fault: {term}, {before:?}{}",
            logs(&members)
        );
        sleeper.begin_anew();
        let is_leader = members[at].ready().await.header.unwrap().member_id == leader;
        inject_fault(fault, at, &mut members, &links).await;
        writers.progress.wait_for_recovery().await;
        before = wait_for_agreed_leader(&mut members).await;
        let changed = before != (leader, term);
        println!(
            "round {round}: {fault:?} of {at}, leader: {is_leader}, term {term} and then {}, a thread that only \
             sleeps was {:.0} ms late",
            before.1,
            sleeper.latest_ms()
        );
        assert!(
            is_leader || !changed || rounds.is_none(),
            "{fault:?} of a follower, {before:?}{}",
            logs(&members)
        );
        of_leaders += u32::from(is_leader);
        changes += u32::from(changed);
    }
    assert!(
        wait_for_agreed_leader(&mut members).await == before || rounds.is_none(),
        "without a fault: {before:?}"
    );
    others.is_stopping.store(true, SeqCst);
    let gaps = leases.join_all().await;
    check_leases_live(others.ports[0]).await;
    compacting.await.unwrap();
    let keys = writers.end().await;
    agree(&mut members).await;
    check_keys_present(others.ports[0], &keys, false).await;
    println!(
        "{of_leaders} faults of leaders, {changes} changes of leaders; {} acknowledged puts are there, {} \
         compactions, {LEASES} leases live, kept alive every {:?} at least",
        keys.len(),
        others.compactions.load(SeqCst),
        gaps.iter().max().unwrap()
    );
}
