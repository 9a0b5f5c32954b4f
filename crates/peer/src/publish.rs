//! Publishes the name of each member, its client URLs, and the version of the cluster through the
//! log.
//!
//! Each member writes its name and its client URLs into the table of members. Then the leader
//! writes the cluster's version, if the cluster has none. In a new cluster of one member these two
//! log entries have the indexes 3 and 4, where etcd's tools expect them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_replica::membership;
use clearlane_server::Server;
use clearlane_server::threads::PeerTraffic;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::peer_table::PeerTable;

/// Time limit of one attempt. A proposal is lost if it is forwarded to a leader that then fails.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after an attempt that failed before its time limit. It is also the pause between two
/// checks of whether this member leads, while the cluster has no version.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Time before the first warning that this member is not published yet, and between two such
/// warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(5);

/// Publishes the member's name and its client URLs, and then sets `published` to true. After that,
/// sets the cluster's version whenever the cluster has none and this member leads. Does not return
/// while the member exists, and the future itself keeps the member alive. So the future ends only
/// when the runtime's shutdown drops it.
pub(super) async fn publish(
    member: Server,
    name: String,
    client_urls: Vec<String>,
    table: Arc<PeerTable>,
    published: watch::Sender<bool>,
) {
    let mut warned_at = Instant::now();
    loop {
        if warned_at.elapsed() >= WARNING_INTERVAL {
            warned_at = Instant::now();
            warn_of_silence(&member, &table);
        }
        match timeout(ATTEMPT_TIMEOUT, member.publish(&name, &client_urls)).await {
            Ok(Ok(())) => break,
            // For example, too many requests are in progress. Without a leader the attempt waits
            // until its time limit.
            Ok(Err(_)) => sleep(RETRY_DELAY).await,
            Err(_) => {}
        }
    }
    published.send_replace(true);
    tracing::info!(%name, ?client_urls, "published this member");
    let mut members = member.threads().watch_members();
    loop {
        let version = members.borrow_and_update().version().map(Arc::<str>::from);
        if version.is_some() {
            // The cluster has a version, and restarts and raft snapshots keep it. So there is
            // nothing to do before the members change.
            if members.changed().await.is_err() {
                return;
            }
            continue;
        }
        if member.is_leader() {
            let said = member.set_cluster_version(membership::CLUSTER_VERSION);
            let _ = timeout(ATTEMPT_TIMEOUT, said).await;
        }
        sleep(RETRY_DELAY).await;
    }
}

/// Logs why this member may be unable to publish itself. Another process may answer at this
/// member's peer URLs as if it were this member. Then this member can connect to the other members,
/// but their messages go to that process. So the log line lists the other members as silent.
fn warn_of_silence(member: &Server, table: &PeerTable) {
    let ids = |is_wanted: fn(&PeerTraffic) -> bool| -> Vec<String> {
        let wanted = table.traffic().into_iter().filter(is_wanted);
        wanted.map(|traffic| format!("{:x}", traffic.id)).collect()
    };
    let members = Arc::clone(&member.threads().watch_members().borrow());
    let own = members.get(member.threads().metadata().node_id);
    let peer_urls = own.map(|own| own.peer_urls.clone()).unwrap_or_default();
    tracing::warn!(
        connected = ?ids(|traffic| traffic.is_active),
        silent = ?ids(|traffic| traffic.received_bytes == 0),
        ?peer_urls,
        "this member is not ready, since no leader has accepted its name; silent members have sent \
         nothing since it started: is this the process that answers at these peer URLs?"
    );
}
