//! Replaces the endpoints by the client URLs of the cluster's members, again and again.

use std::sync::Weak;
use std::time::Duration;

use clearlane_proto::etcdserverpb::MemberListRequest;
use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use tokio::time::{sleep, timeout};
use tonic::Status;

use super::Upstream;

const LIST_TIMEOUT: Duration = Duration::from_secs(2);

/// Does not return until the upstream is dropped.
pub(super) async fn follow(upstream: Weak<Upstream>, interval: Duration) {
    loop {
        {
            let Some(upstream) = upstream.upgrade() else { return };
            match timeout(LIST_TIMEOUT, client_urls(&upstream)).await {
                Ok(Ok(urls)) if !urls.is_empty() => {
                    let known = upstream.members();
                    if known.len() != urls.len()
                        || known.iter().any(|member| !urls.iter().any(|url| url == member.url()))
                    {
                        tracing::info!(endpoints = urls.join(","), "the members have changed");
                        upstream.set_endpoints(&urls);
                    }
                }
                Ok(Ok(_)) => {}
                Ok(Err(status)) => {
                    tracing::warn!(error = status.message(), "cannot list the members");
                }
                Err(_) => tracing::warn!("cannot list the members: no answer"),
            }
        }
        sleep(interval).await;
    }
}

/// Returns the client URLs of all members that can serve clients. A learner and a member that was
/// never started cannot.
async fn client_urls(upstream: &Upstream) -> Result<Vec<String>, Status> {
    let member = upstream.wait_and_pick().await;
    let channel = member.and_then(|member| member.channel());
    let channel = channel.ok_or_else(|| Status::unavailable("no member is connected"))?;
    let request = MemberListRequest { linearizable: true };
    let list = ClusterClient::new(channel).member_list(request).await?.into_inner();
    let members = list.members.into_iter().filter(|member| !member.is_learner);
    let urls = members.flat_map(|member| member.client_urls);
    Ok(urls.map(|url| url.trim_end_matches('/').to_owned()).collect())
}
