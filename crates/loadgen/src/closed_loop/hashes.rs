//! Whether all members have the same keys.

use clearlane_proto::etcdserverpb::HashKvRequest;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;

use crate::connection::{self, Endpoints};
use crate::users::Session;
use crate::{Error, Result};

/// At the revision of the first, up to which the others may have to be asked again.
pub(super) async fn compare(endpoints: &Endpoints, session: Option<&Session>) -> Result<()> {
    let count = endpoints.list().len() as u64;
    let channels = connection::open(endpoints, count).await?;
    let mut expected = None;
    for (endpoint, channel) in endpoints.list().iter().zip(channels) {
        let name = endpoint.uri();
        let (revision, known) = expected.unwrap_or((0, None));
        let mut client = MaintenanceClient::new(channel);
        let hash = loop {
            let request = Session::request_of(session, HashKvRequest { revision });
            match client.hash_kv(request).await {
                Ok(answer) => break answer.into_inner(),
                // It has not applied that revision yet.
                Err(status) if status.message().contains("future revision") => {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
                Err(status) => {
                    let why = status.message();
                    return Err(Error::Server(format!("--check-hashkv: {name}: {why}")));
                }
            }
        };
        if known.is_some_and(|known| known != hash.hash) {
            let first = endpoints.list()[0].uri();
            let what = format!("{name} and {first} differ at revision {}", hash.hash_revision);
            return Err(Error::Server(format!("--check-hashkv: {what}")));
        }
        expected = Some((hash.hash_revision, Some(hash.hash)));
    }
    Ok(())
}
