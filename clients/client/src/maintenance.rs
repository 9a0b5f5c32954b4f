//! The state of a member, and its maintenance.
//!
//! Most of these calls are about one member: choose its endpoint with [`Client::only`].

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

/// Length of the SHA-256 checksum at the end of a snapshot. The checksum covers all bytes before
/// it.
const CHECKSUM_BYTES: usize = 32;

/// The size and the version of a snapshot that [`Client::snapshot`] has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Number of written bytes, including the checksum at the end.
    pub bytes: u64,
    /// The version of the storage format. Empty if the server does not send it.
    pub version: String,
}

fn stub(channel: Channel) -> MaintenanceClient<Channel> {
    MaintenanceClient::new(channel)
}

impl Client {
    /// Returns the state of a member, as the member itself reports it. The member needs no leader.
    pub async fn status(&self) -> Result<StatusResponse> {
        let send = async |channel, request| stub(channel).status(request).await;
        self.call(CallPolicy::MEMBER, StatusRequest {}, send).await
    }

    /// Fails if no member completes a linearizable read, or if an alarm is raised. With
    /// [`Client::only`], the member of that endpoint must complete the read.
    pub async fn health(&self) -> Result<()> {
        match self.get("health").await {
            // A member checks the permission only after it has confirmed that there is a leader. So
            // the member that returns this error is healthy.
            Ok(_) | Err(Error::PermissionDenied) => {}
            Err(error) => return Err(error),
        }
        match self.alarms().await?.first().map(AlarmMember::alarm) {
            Some(AlarmType::Nospace) => Err(Error::NoSpace),
            Some(AlarmType::Corrupt) => Err(Error::Corrupt),
            Some(AlarmType::None) | None => Ok(()),
        }
    }

    /// Returns the raised alarms of all members.
    pub async fn alarms(&self) -> Result<Vec<AlarmMember>> {
        self.alarm(CallPolicy::READ, AlarmAction::Get, AlarmMember::default()).await
    }

    /// Ends an alarm. Returns the alarm, or an empty list if the alarm was not raised.
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

    /// Returns free space of the member's store to the file system. Has no time limit.
    pub async fn defragment(&self) -> Result<()> {
        let send = async |channel, request| stub(channel).defragment(request).await;
        self.call(CallPolicy::MEMBER_WORK, DefragmentRequest {}, send).await.map(drop)
    }

    /// Returns the hash of a member's records up to a revision. If `revision` is 0, the current
    /// revision is used. Compare the hashes of two members only if `hash_revision` and
    /// `compact_revision` of their responses are equal.
    pub async fn hash_kv(&self, revision: i64) -> Result<HashKvResponse> {
        let send = async |channel, request| stub(channel).hash_kv(request).await;
        self.call(CallPolicy::MEMBER, HashKvRequest { revision }, send).await
    }

    /// Transfers leadership to the member `to`. Tries all endpoints until the leader is found.
    pub async fn move_leader(&self, to: u64) -> Result<()> {
        let send = async |channel, request| stub(channel).move_leader(request).await;
        self.call(CallPolicy::WRITE, MoveLeaderRequest { target_id: to }, send).await.map(drop)
    }

    /// Writes a member's store in the format of `etcdctl snapshot save`, and checks the checksum.
    /// Has no time limit. After an error, the written data is useless.
    pub async fn snapshot<W: AsyncWrite + Unpin>(&self, mut writer: W) -> Result<SnapshotInfo> {
        let send = async |channel, request| stub(channel).snapshot(request).await;
        let mut chunks = self.call(CallPolicy::MEMBER_WORK, SnapshotRequest {}, send).await?;
        let (mut sum, mut tail) = (Sha256::new(), Vec::new());
        let mut copied = SnapshotInfo { bytes: 0, version: String::new() };
        let broken = |status| {
            Error::Unavailable(format!("the snapshot is incomplete: {}", describe_status(&status)))
        };
        while let Some(chunk) = chunks.message().await.map_err(broken)? {
            writer.write_all(&chunk.blob).await?;
            copied.bytes += chunk.blob.len() as u64;
            copied.version = chunk.version;
            tail.extend_from_slice(&chunk.blob);
            // The last 32 received bytes may be the checksum, so they are not hashed yet.
            let known = tail.len().saturating_sub(CHECKSUM_BYTES);
            sum.update(&tail[..known]);
            tail.drain(..known);
        }
        writer.flush().await?;
        if tail[..] == sum.finalize()[..] {
            Ok(copied)
        } else {
            Err(Error::Unexpected("the snapshot does not match its checksum"))
        }
    }
}
