//! When members are compared: the clock, the questions to the other members, and the alarm. What is
//! compared, and which member is wrong then, is in [`clearlane_server::corruption`]. The three
//! checks are described in `docs/maintenance.md`: at the start of a member with data, periodically
//! at the leader, and at the leader behind compactions.
//!
//! A hash reads the whole store, on a thread of its own and over a view: reads and writes do not
//! wait for it, except in the [old eras](clearlane_backend), as in etcd.

use std::convert::Infallible;
use std::time::Duration;

use clearlane_mvcc::HashKv;
use clearlane_net::tls::Dialer;
use clearlane_peer::hash_kv;
use clearlane_proto::etcdserverpb::AlarmType;
use clearlane_server::corruption::{
    HashCheckResult, MemberHash, PeerHash, PeriodicCheck, compare_compaction_hashes,
    count_mismatches,
};
use clearlane_server::threads::ServerThreads;
use clearlane_server::{RequestError, Server, alarms, checksums};
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

/// etcd's time for a request: 5 s, and two election time-outs.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CorruptionChecks {
    /// Before this member serves.
    pub is_initial: bool,
    /// `None`: off.
    pub periodic: Option<Duration>,
    /// `None`: off.
    pub after_compactions: Option<Duration>,
}

fn peer_timeout(node: &ServerThreads) -> Duration {
    REQUEST_TIMEOUT + 2 * node.election_timeout()
}

/// The error ends the member.
pub fn initial_check(
    node: &ServerThreads,
    peer_urls: &[String],
    outgoing: &Dialer,
) -> Result<(), String> {
    let (own, patience) = (node.metadata().node_id, peer_timeout(node));
    let id = format!("{own:x}");
    tracing::info!(
        "local-member-id" = id,
        timeout = ?patience,
        "starting initial corruption check"
    );
    let failed = |why: &dyn std::fmt::Display| format!("{id} failed to fetch hash ({why})");
    let own_hash = checksums::hash_kv(&*node.store(), 0).map_err(|error| failed(&error))?;
    let sum = own_hash.hash_kv;
    let others =
        hash_kv::fetch_from_peers(node, (peer_urls, outgoing), sum.hash_revision, patience);
    let others = others.map_err(|error| failed(&error))?;
    if count_mismatches(&sum, &others) > 0 {
        tracing::error!("local-member-id" = id, "checkInitialHashKV failed");
        return Err(format!("{id} found data inconsistency with peers"));
    }
    tracing::info!("local-member-id" = id, "initial corruption checking passed; no corruption");
    Ok(())
}

/// Only while this member leads.
pub async fn run_periodic_checks(member: Server, every: Duration) -> Infallible {
    let id = format!("{:x}", member.threads().metadata().node_id);
    tracing::info!("local-member-id" = id, interval = ?every, "enabled corruption checking");
    loop {
        sleep(every).await;
        if !member.is_leader() {
            continue;
        }
        match periodic_check(&member).await {
            Ok(Some(suspect)) => raise_corrupt_alarm(&member, suspect).await,
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "failed to check hash KV"),
        }
    }
}

/// The member that differs, if any.
async fn periodic_check(member: &Server) -> Result<Option<u64>, RequestError> {
    let before = local_hash(member).await?.hash_kv;
    let others = peer_hashes(member, before.hash_revision).await;
    // What the others have applied is agreed on, and from here on this member has it, too.
    let fresh = timeout(peer_timeout(member.threads()), member.linearizable_read_notify()).await;
    fresh.unwrap_or(Err(RequestError::TimedOut))?;
    let after = local_hash(member).await?;
    let leader = member.threads().metadata().node_id;
    Ok(PeriodicCheck { leader, before, after, others: &others }.find_corrupt_member())
}

/// Checks what compactions have left, while this member leads.
pub async fn run_compaction_checks(member: Server, every: Duration) -> Infallible {
    let mut checked = 0;
    loop {
        sleep(every).await;
        if member.is_leader() {
            checked = checked.max(compaction_check(&member, checked).await);
        }
    }
}

/// Goes from the newest compaction to older ones until all members could be compared. The revision
/// at which that was is returned, or 0.
async fn compaction_check(member: &Server, checked: i64) -> i64 {
    let hashes = member.threads().store().compaction_hashes();
    let unchecked: Vec<HashKv> =
        hashes.into_iter().take_while(|hash| hash.hash_revision > checked).collect();
    let leader = member.threads().metadata().node_id;
    let (mut looked, mut found) = (0, 0);
    for own in &unchecked {
        let others = peer_hashes(member, own.hash_revision).await;
        if others.is_empty() {
            continue;
        }
        looked += 1;
        match compare_compaction_hashes(leader, own, &others) {
            HashCheckResult::Inconclusive => continue,
            HashCheckResult::Equal => {}
            HashCheckResult::Corrupt(suspects) => {
                for suspect in suspects {
                    raise_corrupt_alarm(member, suspect).await;
                }
            }
        }
        found = own.hash_revision;
        break;
    }
    tracing::info!("number-of-hashes-checked" = looked, "finished compaction hash check");
    found
}

/// At the newest revision.
async fn local_hash(member: &Server) -> Result<MemberHash, RequestError> {
    let store = member.threads().store();
    let work = tokio::task::spawn_blocking(move || checksums::hash_kv(&*store, 0));
    work.await.map_err(|_| RequestError::Stopped)?
}

/// Asks all at once.
async fn peer_hashes(member: &Server, revision: i64) -> Vec<PeerHash> {
    let node = member.threads();
    let (Some(others), own) = (node.peer_clients(), node.metadata().node_id) else {
        return Vec::new();
    };
    let members = node.members();
    let ids = members.iter().map(|member| member.id).filter(|id| *id != own);
    let asked = ids.map(|id| async move {
        let said = timeout(peer_timeout(node), others.hash_kv(id, revision)).await;
        PeerHash { id, result: said.unwrap_or(Err(RequestError::TimedOut)) }
    });
    join_all(asked).await
}

/// If the alarm gets lost, the next check raises it again.
async fn raise_corrupt_alarm(member: &Server, suspect: u64) {
    if member.threads().alarms().is_raised_by(suspect, AlarmType::Corrupt) {
        return;
    }
    let raised = member.propose(alarms::corrupt(suspect)).await;
    if let Err(error) = raised {
        let id = format!("{suspect:x}");
        tracing::warn!("member-id" = id, %error, "failed to raise the alarm CORRUPT");
    }
}
