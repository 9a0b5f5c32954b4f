//! Checks whether all members have the same keys.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{HashKvRequest, HashKvResponse};
use tokio::time::sleep;
use tonic::Response;

use crate::connection::{self, Endpoints};
use crate::users::Session;
use crate::{Error, Result};

/// Maximum time to wait until a member has caught up with the first member.
const BEHIND_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// Compares the hashes of all members at the revision of the first member. If a member lags behind,
/// or its last compaction differs from the first member's, the request is repeated for up to 10 s.
/// Fails if the member has not caught up by then, if its hash differs from the first member's hash,
/// or if a request fails for another reason.
pub(super) async fn compare(endpoints: &Endpoints, session: Option<&Session>) -> Result<()> {
    let count = endpoints.list().len() as u64;
    let channels = connection::open(endpoints, count).await?;
    let mut first: Option<HashKvResponse> = None;
    for (endpoint, channel) in endpoints.list().iter().zip(channels) {
        let wrong =
            |why: String| Error::Server(format!("--check-hashkv: {} {why}", endpoint.uri()));
        let revision = first.as_ref().map_or(0, |first| first.hash_revision);
        let compacted = first.as_ref().map(|first| first.compact_revision);
        let mut client = MaintenanceClient::new(channel);
        let deadline = Instant::now() + BEHIND_MAX;
        let hash = loop {
            let request = Session::request_of(session, HashKvRequest { revision });
            match client.hash_kv(request).await.map(Response::into_inner) {
                Ok(hash) if compacted.is_none_or(|at| at == hash.compact_revision) => break hash,
                Err(status) if !status.message().contains("future revision") => {
                    return Err(wrong(format!("failed with {}", status.message())));
                }
                _ if Instant::now() >= deadline => {
                    return Err(wrong("still lags after 10 s".to_owned()));
                }
                _ => sleep(PAUSE).await,
            }
        };
        let first = first.get_or_insert(hash);
        if first.hash != hash.hash {
            let (other, revision) = (endpoints.list()[0].uri(), hash.hash_revision);
            return Err(wrong(format!("and {other} differ at revision {revision}")));
        }
    }
    Ok(())
}
