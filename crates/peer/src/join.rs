//! Asking a running cluster for its members, before this member's threads run.

use std::io;
use std::time::Duration;

use clearlane_net::tls::Dialer;
use clearlane_proto::peerpb::MembersRequest;
use clearlane_proto::peerpb::peer_client::PeerClient;
use clearlane_server::membership::Member;
use tokio::time::timeout;

use super::remote_peer::{connect, run_on_thread};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// A cluster, as one of its members knows it.
#[derive(Clone, Debug)]
pub struct ClusterInfo {
    pub cluster_id: u64,
    pub members: Vec<Member>,
}

/// The answers of the members at these addresses, and the errors of those that do not answer.
pub fn fetch_cluster(
    urls: &[String],
    outgoing: &Dialer,
) -> io::Result<Vec<Result<ClusterInfo, String>>> {
    run_on_thread(|| async {
        let mut answers = Vec::new();
        for url in urls {
            let answer = timeout(REQUEST_TIMEOUT, fetch_from(url, outgoing)).await;
            answers.push(answer.unwrap_or_else(|_| Err(format!("{url}: no answer"))));
        }
        answers
    })
}

async fn fetch_from(url: &str, outgoing: &Dialer) -> Result<ClusterInfo, String> {
    let channel = connect(url, outgoing).await.map_err(|why| format!("{url}: {why}"))?;
    let reply = PeerClient::new(channel).members(MembersRequest {}).await;
    let reply = reply.map_err(|status| format!("{url}: {}", status.message()))?.into_inner();
    Ok(ClusterInfo { cluster_id: reply.cluster_id, members: reply.members })
}
