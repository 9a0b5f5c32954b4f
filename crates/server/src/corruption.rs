//! Who looks whether members differ, and when.
//!
//! What is compared, and who is wrong then, is told in [`clearlane_member::corruption`]. Here are the
//! clock, the questions to the others, and the alarm.
//!
//! | check | switched on by | when |
//! |---|---|---|
//! | initial | `--feature-gates=InitialCorruptCheck=true` | at a start with data, before anybody is served |
//! | periodic | `--corrupt-check-time=D` | every D, at the leader |
//! | behind compactions | `--feature-gates=CompactHashCheck=true` | every `--compact-hash-check-time`, at the leader |
//!
//! A hash reads the whole store. It is worked out on a thread of its own, over a view: neither reads nor
//! writes wait for it. (In the [old eras](clearlane_backend) they do, as they did in etcd.) A member
//! that has no data yet has nothing to compare, and one that is alone nobody.

use std::convert::Infallible;
use std::time::Duration;

use clearlane_member::corruption::{Heard, Periodic, Said, Verdict, differ_from, verdict};
use clearlane_member::node::Node;
use clearlane_member::{Handle, Trouble, alarms, checksums};
use clearlane_mvcc::HashKv;
use clearlane_proto::etcdserverpb::AlarmType;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::peer::hashes;
use crate::tls::Outgoing;

/// etcd's time for a request: 5 s, and two election time-outs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which checks there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Before this member serves.
    pub is_initial: bool,
    /// So often, if at all.
    pub periodic: Option<Duration>,
    /// So often behind compactions, if at all.
    pub at_compactions: Option<Duration>,
}

fn patience(node: &Node) -> Duration {
    PATIENCE + 2 * node.election_timeout()
}

/// Compares a member that is about to serve with the others. The error ends it.
pub fn before_serving(
    node: &Node,
    peer_urls: &[String],
    outgoing: &Outgoing,
) -> Result<(), String> {
    let (own, patience) = (node.metadata().node_id, patience(node));
    let id = format!("{own:x}");
    tracing::info!(
        "local-member-id" = id,
        timeout = ?patience,
        "starting initial corruption check"
    );
    let failed = |why: &dyn std::fmt::Display| format!("{id} failed to fetch hash ({why})");
    let (sum, _) = checksums::hash_kv(&*node.store(), 0).map_err(|trouble| failed(&trouble))?;
    let others = hashes::ask(node, (peer_urls, outgoing), sum.hash_revision, patience);
    let others = others.map_err(|error| failed(&error))?;
    if differ_from(&sum, &others) > 0 {
        tracing::error!("local-member-id" = id, "checkInitialHashKV failed");
        return Err(format!("{id} found data inconsistency with peers"));
    }
    tracing::info!("local-member-id" = id, "initial corruption checking passed; no corruption");
    Ok(())
}

/// Looks every so often, while this member leads. Goes on for as long as it is polled.
pub async fn look_now_and_then(member: Handle, every: Duration) -> Infallible {
    let id = format!("{:x}", member.node().metadata().node_id);
    tracing::info!("local-member-id" = id, interval = ?every, "enabled corruption checking");
    loop {
        sleep(every).await;
        if !leads(&member) {
            continue;
        }
        match look(&member).await {
            Ok(Some(suspect)) => raise(&member, suspect).await,
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "failed to check hash KV"),
        }
    }
}

/// One look: which member must not be believed?
async fn look(member: &Handle) -> Result<Option<u64>, Trouble> {
    let before = hash(member).await?.sum;
    let others = ask(member, before.hash_revision).await;
    // What the others have applied is agreed on, and from here on this member has it, too.
    let fresh = timeout(patience(member.node()), member.fresh()).await;
    fresh.unwrap_or(Err(Trouble::TimedOut))?;
    let after = hash(member).await?;
    let leader = member.node().metadata().node_id;
    Ok(Periodic { leader, before, after, others: &others }.suspect())
}

/// Looks every so often at what compactions have left, while this member leads. Goes on for as long
/// as it is polled.
pub async fn look_behind_compactions(member: Handle, every: Duration) -> Infallible {
    let mut checked = 0;
    loop {
        sleep(every).await;
        if leads(&member) {
            checked = checked.max(look_behind(&member, checked).await);
        }
    }
}

/// Goes from the newest compaction to older ones until all members could be compared. The revision
/// at which that was, or 0.
async fn look_behind(member: &Handle, checked: i64) -> i64 {
    let hashes = member.store().compaction_hashes();
    let unchecked: Vec<HashKv> =
        hashes.into_iter().take_while(|hash| hash.hash_revision > checked).collect();
    let leader = member.node().metadata().node_id;
    let (mut looked, mut found) = (0, 0);
    for own in &unchecked {
        let others = ask(member, own.hash_revision).await;
        if others.is_empty() {
            continue;
        }
        looked += 1;
        match verdict(leader, own, &others) {
            Verdict::Unclear => continue,
            Verdict::Agreed => {}
            Verdict::Wrong(suspects) => {
                for suspect in suspects {
                    raise(member, suspect).await;
                }
            }
        }
        found = own.hash_revision;
        break;
    }
    tracing::info!("number-of-hashes-checked" = looked, "finished compaction hash check");
    found
}

fn leads(member: &Handle) -> bool {
    let node = member.node();
    node.status().leader() == node.metadata().node_id
}

/// Of this member, at its newest revision.
async fn hash(member: &Handle) -> Result<Said, Trouble> {
    let store = member.store();
    let work = tokio::task::spawn_blocking(move || checksums::hash_kv(&*store, 0));
    let (sum, revision) = work.await.map_err(|_| Trouble::Stopped)??;
    Ok(Said { sum, revision })
}

/// All others at once.
async fn ask(member: &Handle, revision: i64) -> Vec<Heard> {
    let node = member.node();
    let (Some(others), own) = (node.others(), node.metadata().node_id) else { return Vec::new() };
    let members = node.members();
    let ids = members.iter().map(|member| member.id).filter(|id| *id != own);
    let asked = ids.map(|id| async move {
        let said = timeout(patience(node), others.hash_kv(id, revision)).await;
        Heard { id, said: said.unwrap_or(Err(Trouble::TimedOut)) }
    });
    join_all(asked).await
}

/// Tells everybody whom not to believe. If it gets lost, the next look raises it again.
async fn raise(member: &Handle, suspect: u64) {
    if member.node().alarms().is_raised_by(suspect, AlarmType::Corrupt) {
        return;
    }
    let raised = member.write(alarms::corrupt(suspect)).await;
    if let Err(error) = raised {
        let id = format!("{suspect:x}");
        tracing::warn!("member-id" = id, %error, "failed to raise the alarm CORRUPT");
    }
}
