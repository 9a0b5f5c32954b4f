//! Requests for hashes between members. The module
//! [`corruption`](clearlane_server::observe::corruption) compares the hashes.
//!
//! A member computes one hash at a time for other members, on a blocking thread. So the other
//! members cannot occupy more than one thread with hashes, and no raft message waits for a hash.
//!
//! A member that [does not serve yet](fetch_from_peers) has no peer table, so it opens a separate
//! connection for each request.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use clearlane_mvcc::HashKv;
use clearlane_net::tls::Dialer;
use clearlane_proto::etcdserverpb::{HashKvRequest, HashKvResponse};
use clearlane_proto::peerpb::peer_client::PeerClient;
use clearlane_replica::RequestError;
use clearlane_server::Server;
use clearlane_server::observe::checksums;
use clearlane_server::observe::corruption::{MemberHash, PeerHash};
use clearlane_server::threads::ServerThreads;
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
        // The permit is held until the hash is computed, even if the caller cancels the request
        // earlier.
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

/// Requests the hash at `revision` from all other members. This function is for a member that does
/// not serve yet, and therefore has no peer table. If another member does not respond within
/// `patience`, the result for that member is [`RequestError::TimedOut`]. Fails if the runtime for
/// the requests cannot be created, or if the thread for the requests panics. Panics if that thread
/// cannot be started.
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

/// Tries the addresses of a member in their order, and returns the first hash. If no address
/// returns a hash, fails with the error of the last call, or with [`RequestError::NoLeader`] if no
/// connection could be made.
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
