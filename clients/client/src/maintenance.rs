//! The state of a member, and its maintenance.
//!
//! Most of this is about one member: ask [`Client::only`] one endpoint.

use clearlane_proto::etcdserverpb::alarm_request::AlarmAction;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmType, DefragmentRequest, HashKvRequest, HashKvResponse,
    MoveLeaderRequest, SnapshotRequest, StatusRequest, StatusResponse,
};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tonic::transport::Channel;

use crate::Client;
use crate::call::CallPolicy;
use crate::error::{Error, Result, describe_status};

/// A snapshot ends with the SHA-256 of what is before it.
const CHECKSUM_BYTES: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Bytes that were written, the checksum at the end included.
    pub bytes: u64,
    /// The version of the storage format, if the server says it.
    pub version: String,
}

fn stub(channel: Channel) -> MaintenanceClient<Channel> {
    MaintenanceClient::new(channel)
}

impl Client {
    /// The member's own view; it needs no leader.
    pub async fn status(&self) -> Result<StatusResponse> {
        let send = async |channel, request| stub(channel).status(request).await;
        self.call(CallPolicy::MEMBER, StatusRequest {}, send).await
    }

    /// An error if the member does not answer a linearizable read, or if an alarm is set.
    pub async fn health(&self) -> Result<()> {
        match self.get("health").await {
            // The permission check needs a leader, too.
            Ok(_) | Err(Error::PermissionDenied) => {}
            Err(error) => return Err(error),
        }
        match self.alarms().await?.first().map(AlarmMember::alarm) {
            Some(AlarmType::Nospace) => Err(Error::NoSpace),
            Some(AlarmType::Corrupt) => Err(Error::Corrupt),
            Some(AlarmType::None) | None => Ok(()),
        }
    }

    pub async fn alarms(&self) -> Result<Vec<AlarmMember>> {
        self.alarm(CallPolicy::READ, AlarmAction::Get, AlarmMember::default()).await
    }

    /// Returns the alarm that was ended; empty if it was not set.
    pub async fn disarm(&self, alarm: AlarmMember) -> Result<Vec<AlarmMember>> {
        self.alarm(CallPolicy::WRITE, AlarmAction::Deactivate, alarm).await
    }

    async fn alarm(
        &self,
        way: CallPolicy,
        action: AlarmAction,
        alarm: AlarmMember,
    ) -> Result<Vec<AlarmMember>> {
        let AlarmMember { member_id, alarm } = alarm;
        let request = AlarmRequest { action: action.into(), member_id, alarm };
        let send = async |channel, request| stub(channel).alarm(request).await;
        Ok(self.call(way, request, send).await?.alarms)
    }

    /// Returns freed space of the member's store to the file system. Has no time limit.
    pub async fn defragment(&self) -> Result<()> {
        let send = async |channel, request| stub(channel).defragment(request).await;
        self.call(CallPolicy::MEMBER_WORK, DefragmentRequest {}, send).await.map(drop)
    }

    /// The hash of a member's records up to a revision (0: the present one). All members have the
    /// same hash at the same revision.
    pub async fn hash_kv(&self, revision: i64) -> Result<HashKvResponse> {
        let send = async |channel, request| stub(channel).hash_kv(request).await;
        self.call(CallPolicy::MEMBER, HashKvRequest { revision }, send).await
    }

    /// Tries all endpoints until the leader is found.
    pub async fn move_leader(&self, to: u64) -> Result<()> {
        let send = async |channel, request| stub(channel).move_leader(request).await;
        self.call(CallPolicy::WRITE, MoveLeaderRequest { target_id: to }, send).await.map(drop)
    }

    /// Writes a member's store in the format of `etcdctl snapshot save`, and checks the checksum.
    /// After an error, what was written is of no use.
    pub async fn snapshot<W: AsyncWrite + Unpin>(&self, mut writer: W) -> Result<SnapshotInfo> {
        let send = async |channel, request| stub(channel).snapshot(request).await;
        let mut chunks = self.call(CallPolicy::MEMBER_WORK, SnapshotRequest {}, send).await?;
        let (mut sum, mut tail) = (Sha256::new(), Vec::new());
        let mut copied = SnapshotInfo { bytes: 0, version: String::new() };
        let broken = |status| {
            Error::Unavailable(format!("a copy has broken off: {}", describe_status(&status)))
        };
        while let Some(chunk) = chunks.message().await.map_err(broken)? {
            writer.write_all(&chunk.blob).await?;
            copied.bytes += chunk.blob.len() as u64;
            copied.version = chunk.version;
            tail.extend_from_slice(&chunk.blob);
            // The last bytes may be the checksum, and are kept out of the sum.
            let known = tail.len().saturating_sub(CHECKSUM_BYTES);
            sum.update(&tail[..known]);
            tail.drain(..known);
        }
        writer.flush().await?;
        if tail[..] == sum.finalize()[..] {
            Ok(copied)
        } else {
            Err(Error::Unexpected("a copy whose sum is wrong: it has not come whole"))
        }
    }
}
