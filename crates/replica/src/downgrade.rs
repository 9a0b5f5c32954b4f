//! Preparations for a downgrade of the cluster: etcd's `validate`, `enable` and `cancel`.
//!
//! The announcement goes through the log and is stored in bucket `cluster`, under the key
//! `downgrade`: `{"target-version":"3.6.0","enabled":true}`.
//!
//! * The target must be one minor version below the cluster's version.
//! * While a downgrade is announced, another downgrade fails validation.
//!
//! etcd's leader then lowers the cluster's version, and each member rewrites its store for the
//! older version. Our files have only one version. So nothing is rewritten, and the announcement is
//! only stored and shown in responses to Status requests.

use bytes::Bytes;
use clearlane_engine::Bucket;
use clearlane_mvcc::{ReadTxn, WriteTxn};
use clearlane_proto::etcdserverpb::{DowngradeInfo, DowngradeResponse};
use clearlane_proto::membershippb::DowngradeInfoSetRequest;
use serde_json::{Value, json};

use crate::applied_position::AppliedPosition;
use crate::apply;
use crate::error::{Error, Result};
use crate::membership::CLUSTER_VERSION_KEY;

const DOWNGRADE_KEY: &[u8] = b"downgrade";
/// The version that is assumed for a cluster whose store contains no version.
const NEWEST_VERSION: Version = Version { major: 3, minor: 7 };

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DowngradeRejection {
    #[error("etcdserver: wrong downgrade target version format")]
    WrongFormat,
    #[error("etcdserver: invalid downgrade target version")]
    InvalidTarget,
    #[error("etcdserver: cluster has a downgrade job in progress")]
    InProgress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub major: u64,
    pub minor: u64,
}

impl Version {
    /// Parses `X.Y` or `X.Y.Z`. Returns `None` for any other text.
    pub fn parse(text: &str) -> Option<Version> {
        let numbers: Option<Vec<u64>> = text.split('.').map(|part| part.parse().ok()).collect();
        match numbers?[..] {
            [major, minor] | [major, minor, _] => Some(Version { major, minor }),
            _ => None,
        }
    }
}

pub fn cluster_version(state: &dyn ReadTxn) -> Result<Version> {
    let Some(text) = state.get(Bucket::Cluster, CLUSTER_VERSION_KEY)? else {
        return Ok(NEWEST_VERSION);
    };
    let version = std::str::from_utf8(&text).ok().and_then(Version::parse);
    version.ok_or_else(|| Error::damaged("clusterVersion", text.escape_ascii().to_string()))
}

pub fn downgrade_info(state: &dyn ReadTxn) -> Result<DowngradeInfo> {
    let Some(text) = state.get(Bucket::Cluster, DOWNGRADE_KEY)? else {
        return Ok(DowngradeInfo::default());
    };
    let found: Option<Value> = serde_json::from_slice(&text).ok();
    let damaged = || Error::damaged("downgrade", text.escape_ascii().to_string());
    let found = found.ok_or_else(damaged)?;
    let target_version = found["target-version"].as_str().ok_or_else(damaged)?.to_owned();
    let enabled = found["enabled"].as_bool().ok_or_else(damaged)?;
    Ok(DowngradeInfo { enabled, target_version })
}

/// Checks whether a downgrade to this version may be announced. Returns the version as `X.Y.0`.
pub fn validate(
    state: &dyn ReadTxn,
    target: &str,
) -> Result<std::result::Result<String, DowngradeRejection>> {
    let Some(target) = Version::parse(target) else {
        return Ok(Err(DowngradeRejection::WrongFormat));
    };
    let Version { major, minor } = cluster_version(state)?;
    if minor.checked_sub(1).map(|minor| Version { major, minor }) != Some(target) {
        return Ok(Err(DowngradeRejection::InvalidTarget));
    }
    Ok(if downgrade_info(state)?.enabled {
        Err(DowngradeRejection::InProgress)
    } else {
        Ok(format!("{}.{}.0", target.major, target.minor))
    })
}

/// Applies the announcement of a downgrade, or its cancellation.
pub(crate) fn apply_downgrade_info(
    txn: &mut (dyn WriteTxn<AppliedPosition> + '_),
    request: &DowngradeInfoSetRequest,
) -> Result<DowngradeResponse> {
    let target = if request.enabled { request.ver.as_str() } else { "" };
    let text = format!("{{\"target-version\":{},\"enabled\":{}}}", json!(target), request.enabled);
    txn.set(Bucket::Cluster, DOWNGRADE_KEY, Bytes::from(text))?;
    let header = Some(apply::header(txn.revision()));
    Ok(DowngradeResponse { header, ..DowngradeResponse::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_two_numbers_or_three() {
        let version = Some(Version { major: 3, minor: 6 });
        assert_eq!((Version::parse("3.6"), Version::parse("3.6.9")), (version, version));
        for text in ["", "abc", "3", "3.6.1.2", "3.", "v3.6", "-3.6"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }
}
