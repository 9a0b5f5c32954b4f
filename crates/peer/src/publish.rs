//! What a member publishes of itself through the log, and what the leader publishes for all.
//!
//! Each member writes its name and its clients' addresses into the table of members; then the
//! leader writes a version, if the cluster has none. In a new cluster of one these are entries 3
//! and 4, where etcd's tools expect them.

use std::sync::Arc;
use std::time::Duration;

use clearlane_server::{Server, membership};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Bounded because a proposal that is forwarded to a leader that goes is lost.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Also between checks whether this member leads.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Publishes name and version, then keeps the version up to date.
pub(super) async fn publish(
    member: Server,
    name: String,
    client_urls: Vec<String>,
    published: watch::Sender<bool>,
) {
    loop {
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
