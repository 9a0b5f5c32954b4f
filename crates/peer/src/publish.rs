//! What a member publishes of itself through the log, and what the leader publishes for all.
//!
//! Each member writes its name and its clients' addresses into the table of members; then the
//! leader writes a version, if the cluster has none. In a new cluster of one these are entries 3
//! and 4, where etcd's tools expect them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_server::threads::PeerTraffic;
use clearlane_server::{Server, membership};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::peer_table::PeerTable;

/// Bounded because a proposal that is forwarded to a leader that goes is lost.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Also between checks whether this member leads.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Before the first warning, and between two.
const WARNING_INTERVAL: Duration = Duration::from_secs(5);

/// Publishes name and version, then keeps the version up to date.
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
            // No leader, or too much is under way.
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
            // A copy of another member's store, or a restart, brings it along.
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

/// Logs why this member may not be able to publish itself. A member that knows a wrong address of
/// this one can be reached by it, but never sends anything.
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
