//! Corruption checks: they compare the hashes of the members' data, and report corrupt members.
//! This module runs the checks, requests the hashes of the other members, and raises the alarm.
//!
//! The module [`corruption`](clearlane_server::observe::corruption) defines the values that are
//! compared, and decides which member is corrupt. There are three checks, described in
//! `docs/maintenance.md`: at the start of a member with data, periodically on the leader, and on
//! the leader after compactions.
//!
//! For the periodic check, a separate thread computes the hash from a snapshot of the whole store.
//! Reads and writes do not wait for this thread, except in the [old eras](clearlane_backend), as in
//! etcd. For the check at the start, the main thread computes the hash. For the check after
//! compactions, the compactions themselves have computed the hashes.

use std::convert::Infallible;
use std::time::Duration;

use clearlane_mvcc::HashKv;
use clearlane_net::tls::Dialer;
use clearlane_peer::hash_kv;
use clearlane_proto::etcdserverpb::AlarmType;
use clearlane_replica::{RequestError, alarms};
use clearlane_server::Server;
use clearlane_server::observe::checksums;
use clearlane_server::observe::corruption::{
    HashCheckResult, MemberHash, PeerHash, PeriodicCheck, compare_compaction_hashes,
    count_mismatches,
};
use clearlane_server::threads::ServerThreads;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

/// Time limit of a request to another member, without the two election timeouts that
/// [`peer_timeout`] adds. The sum equals etcd's limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CorruptionChecks {
    /// If true, a member that starts with data compares its hash with the hashes of the other
    /// members before it serves clients.
    pub is_initial: bool,
    /// The interval of the periodic check. `None` if it is off.
    pub periodic: Option<Duration>,
    /// The interval of the check of compaction hashes. `None` if it is off.
    pub after_compactions: Option<Duration>,
}

fn peer_timeout(node: &ServerThreads) -> Duration {
    REQUEST_TIMEOUT + 2 * node.election_timeout()
}

/// Compares this member's hash with the hashes of the other members. Fails if a hash differs, if
/// this member's own hash cannot be computed, or if the requests cannot be started. A member that
/// does not respond, or has another compact revision, is skipped. If this function fails, the
/// caller ends the member.
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

/// At each interval, compares the hashes of all members if this member is the leader, and raises an
/// alarm for a corrupt member.
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

/// Returns the ID of a corrupt member, or `None` if the hashes show no corruption. The leader
/// itself is corrupt if its hash of the same revision and compact revision has changed between two
/// reads. Fails if the leader's hash cannot be computed, or if the linearizable read fails.
async fn periodic_check(member: &Server) -> Result<Option<u64>, RequestError> {
    let before = local_hash(member).await?.hash_kv;
    let others = peer_hashes(member, before.hash_revision).await;
    // The revisions that the others have applied are committed. After this linearizable read, this
    // member has applied them as well.
    let fresh = timeout(peer_timeout(member.threads()), member.linearizable_read_notify()).await;
    fresh.unwrap_or(Err(RequestError::TimedOut))?;
    let after = local_hash(member).await?;
    let leader = member.threads().metadata().node_id;
    Ok(PeriodicCheck { leader, before, after, others: &others }.find_corrupt_member())
}

/// At each interval, compares the hashes of compactions if this member is the leader, and raises
/// alarms for corrupt members. Compactions up to the last conclusive comparison are skipped.
pub async fn run_compaction_checks(member: Server, every: Duration) -> Infallible {
    let mut checked = 0;
    loop {
        sleep(every).await;
        if member.is_leader() {
            checked = checked.max(compaction_check(&member, checked).await);
        }
    }
}

/// Compares the members' hashes of compactions above revision `checked`, the newest first, until
/// one comparison is conclusive. Raises alarms for corrupt members. Returns the revision of the
/// compaction with the conclusive comparison, or 0 if there was none.
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

/// Returns this member's hash at its newest revision.
async fn local_hash(member: &Server) -> Result<MemberHash, RequestError> {
    let store = member.threads().store();
    let work = tokio::task::spawn_blocking(move || checksums::hash_kv(&*store, 0));
    work.await.map_err(|_| RequestError::Stopped)?
}

/// Requests the hash at `revision` from all other members at the same time, and returns their
/// responses or errors. Returns an empty list if the clients for the other members are not set.
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

/// Raises the alarm CORRUPT for a member, unless it is already raised. If the proposal fails, a
/// warning is logged. The next periodic check tries again. [`run_compaction_checks`] tries again
/// only after a newer compaction, because it skips compactions that it has compared.
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
