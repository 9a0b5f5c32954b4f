//! Whether all members have the same keys.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{HashKvRequest, HashKvResponse};
use tokio::time::sleep;

use crate::connection::{self, Endpoints};
use crate::users::Session;
use crate::{Error, Result};

/// How long a member may be behind the first.
const BEHIND_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// At the revision of the first. A member that is behind it, or has not compacted as far, is asked
/// again.
pub(super) async fn compare(endpoints: &Endpoints, session: Option<&Session>) -> Result<()> {
    let count = endpoints.list().len() as u64;
    let channels = connection::open(endpoints, count).await?;
    let mut first: Option<HashKvResponse> = None;
    for (endpoint, channel) in endpoints.list().iter().zip(channels) {
        let name = endpoint.uri();
        let wrong = |why: &str| Error::Server(format!("--check-hashkv: {name} {why}"));
        let revision = first.as_ref().map_or(0, |first| first.hash_revision);
        let mut client = MaintenanceClient::new(channel);
        let deadline = Instant::now() + BEHIND_MAX;
        let hash = loop {
            if Instant::now() >= deadline {
                return Err(wrong("stays behind"));
            }
            let request = Session::request_of(session, HashKvRequest { revision });
            let is_same = |hash: &HashKvResponse| {
                first.as_ref().is_none_or(|of| of.compact_revision == hash.compact_revision)
            };
            match client.hash_kv(request).await {
                Ok(answer) if is_same(answer.get_ref()) => break answer.into_inner(),
                Err(status) if !status.message().contains("future revision") => {
                    return Err(wrong(&format!("says {}", status.message())));
                }
                _ => sleep(PAUSE).await,
            }
        };
        match &first {
            Some(of) if of.hash != hash.hash => {
                let first = endpoints.list()[0].uri();
                let revision = hash.hash_revision;
                return Err(wrong(&format!("and {first} differ at revision {revision}")));
            }
            Some(_) => {}
            None => first = Some(hash),
        }
    }
    Ok(())
}
