//! Hashes, from member to member: what [`corruption`](clearlane_server::corruption) compares.
//!
//! A member answers from a thread of its own, one question at a time, so that peers cannot keep
//! more than one thread busy with this, and no message of raft waits behind it.
//!
//! A member that [has not begun to serve](fetch_from_peers) has no links yet, and connects.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use clearlane_mvcc::HashKv;
use clearlane_net::tls::Dialer;
use clearlane_proto::etcdserverpb::{HashKvRequest, HashKvResponse};
use clearlane_proto::peerpb::peer_client::PeerClient;
use clearlane_server::checksums;
use clearlane_server::corruption::{MemberHash, PeerHash};
use clearlane_server::threads::ServerThreads;
use clearlane_server::{RequestError, Server};
use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::{Request, Status};

use super::client::error_from_status;
use super::headers::{PeerHeaders, status_of};
use super::remote_peer::{connect, run_on_thread};

pub(super) async fn handle_hash_kv(
    member: &Server,
    turn: &Arc<Semaphore>,
    revision: i64,
) -> Result<HashKvResponse, Status> {
    let turn = Arc::clone(turn).acquire_owned().await;
    let store = member.threads().store();
    let work = tokio::task::spawn_blocking(move || {
        // Given back when the work is done, also if no request waits for it any more.
        let _turn = turn;
        checksums::hash_kv(&*store, revision)
    });
    let done = work.await.map_err(|error| Status::internal(error.to_string()))?;
    let MemberHash { hash_kv, revision } = done.map_err(status_of)?;
    let HashKv { hash, compact_revision, hash_revision } = hash_kv;
    let header = member.header_at(revision);
    Ok(HashKvResponse { header, hash, compact_revision, hash_revision })
}

pub(super) fn member_hash(response: &HashKvResponse) -> MemberHash {
    let HashKvResponse { header, hash, compact_revision, hash_revision } = *response;
    let revision = header.map_or(0, |header| header.revision);
    MemberHash { hash_kv: HashKv { hash, compact_revision, hash_revision }, revision }
}

/// Asks all other members for their hash at a revision, on behalf of one that has no links yet. A
/// member that does not answer in this time has not answered.
pub fn fetch_from_peers(
    node: &ServerThreads,
    (peer_urls, outgoing): (&[String], &Dialer),
    revision: i64,
    patience: Duration,
) -> io::Result<Vec<PeerHash>> {
    let (members, metadata) = (node.members(), node.metadata());
    let (cluster, from) = (metadata.cluster_id, metadata.node_id);
    let asked = members.iter().filter(|member| member.id != from).map(|member| {
        let (id, urls) = (member.id, member.peer_urls.clone());
        let headers = PeerHeaders { cluster, from, to: id, peer_urls: peer_urls.to_vec() };
        async move {
            let answer = timeout(patience, fetch_from(&urls, &headers, outgoing, revision)).await;
            PeerHash { id, result: answer.unwrap_or(Err(RequestError::TimedOut)) }
        }
    });
    run_on_thread(|| join_all(asked))
}

/// Uses the first address that can be reached.
async fn fetch_from(
    urls: &[String],
    headers: &PeerHeaders,
    outgoing: &Dialer,
    revision: i64,
) -> Result<MemberHash, RequestError> {
    let mut refused = RequestError::NoLeader;
    for url in urls {
        let Ok(channel) = connect(url, outgoing).await else { continue };
        let mut request = Request::new(HashKvRequest { revision });
        headers.write(request.metadata_mut());
        match PeerClient::new(channel).hash_kv(request).await {
            Ok(response) => return Ok(member_hash(response.get_ref())),
            Err(status) => refused = error_from_status(status),
        }
    }
    Err(refused)
}
