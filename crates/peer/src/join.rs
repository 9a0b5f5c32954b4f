//! Calls that a member without data makes to other members before its own threads run.

use std::io;
use std::time::Duration;

use clearlane_net::tls::Dialer;
use clearlane_proto::peerpb::peer_client::PeerClient;
use clearlane_proto::peerpb::{MembersReply, MembersRequest};
use futures_util::future::join_all;
use tokio::time::timeout;

use super::remote_peer::{connect, run_on_thread};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Sends the request to all addresses at the same time, and waits up to 3 s for each response.
/// Returns the results in the order of the addresses.
pub async fn ask_all(
    urls: &[String],
    outgoing: &Dialer,
    request: &MembersRequest,
) -> Vec<Result<MembersReply, String>> {
    let calls = urls.iter().map(async |url| {
        let reply = timeout(REQUEST_TIMEOUT, ask(url, outgoing, request.clone())).await;
        reply.unwrap_or_else(|_| Err(format!("{url}: no response")))
    });
    join_all(calls).await
}

async fn ask(
    url: &str,
    outgoing: &Dialer,
    request: MembersRequest,
) -> Result<MembersReply, String> {
    let channel = connect(url, outgoing).await.map_err(|why| format!("{url}: {why}"))?;
    let reply = PeerClient::new(channel).members(request).await;
    reply.map(|reply| reply.into_inner()).map_err(|status| format!("{url}: {}", status.message()))
}

/// Runs a future to completion on a separate thread, because the caller's thread may already run a
/// runtime, and cannot run a second one.
pub fn block_on<F: Future<Output: Send>>(work: impl FnOnce() -> F + Send) -> io::Result<F::Output> {
    run_on_thread(work)
}
