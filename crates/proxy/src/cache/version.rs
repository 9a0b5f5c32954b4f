//! The version of a member whose progress the cache trusts.
//!
//! In older versions of etcd, progress may overtake events (etcd issue 15220). A copy would then
//! claim a revision whose events it does not have.

use std::time::Duration;

use clearlane_proto::etcdserverpb::StatusRequest;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Channel;

const STATUS_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns the version of a member if its progress must not be trusted.
pub(super) async fn too_old(channel: Channel) -> Result<Option<String>, Status> {
    let mut client = MaintenanceClient::new(channel);
    let status = timeout(STATUS_TIMEOUT, client.status(StatusRequest::default())).await;
    let status =
        status.map_err(|_| Status::unavailable("the member did not send its status"))??;
    let version = status.into_inner().version;
    Ok((!has_ordered_progress(&version)).then_some(version))
}

/// Returns true if progress never overtakes events: from 3.4.31, 3.5.13 and 3.6 on.
fn has_ordered_progress(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok);
    match (next(), next(), next()) {
        (Some(3), Some(4), Some(patch)) => patch >= 31,
        (Some(3), Some(5), Some(patch)) => patch >= 13,
        (Some(major), Some(minor), Some(_)) => (major, minor) >= (3, 6),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_ordered_progress_are_recognised() {
        for version in ["3.4.31", "3.4.40", "3.5.13", "3.6.0-rc.1", "3.7.1", "3.10.0", "4.0.0"] {
            assert!(has_ordered_progress(version), "{version}");
        }
        for version in ["", "3", "3.5", "3.3.27", "3.4.30", "3.5.12", "3.5.0-rc.20", "unknown"] {
            assert!(!has_ordered_progress(version), "{version}");
        }
    }
}
