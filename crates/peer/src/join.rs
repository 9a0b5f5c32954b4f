//! The calls of a member without data to other members, before its threads run.

use std::io;
use std::time::Duration;

use clearlane_net::tls::Dialer;
use clearlane_proto::peerpb::peer_client::PeerClient;
use clearlane_proto::peerpb::{MembersReply, MembersRequest};
use futures_util::future::join_all;
use tokio::time::timeout;

use super::remote_peer::{connect, run_on_thread};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Sends the request to all addresses at once. Returns the result of each, in their order.
pub async fn ask_all(
    urls: &[String],
    outgoing: &Dialer,
    request: &MembersRequest,
) -> Vec<Result<MembersReply, String>> {
    let calls = urls.iter().map(async |url| {
        let reply = timeout(REQUEST_TIMEOUT, ask(url, outgoing, request.clone())).await;
        reply.unwrap_or_else(|_| Err(format!("{url}: no answer")))
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

/// Runs a future to its end on its own thread, for callers that may have a runtime on theirs.
pub fn block_on<F: Future<Output: Send>>(work: impl FnOnce() -> F + Send) -> io::Result<F::Output> {
    run_on_thread(work)
}
