//! How is a member, and what can be done about it?
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

/// At the end of a copy stands the sum of what was before it.
const CHECKSUM_BYTES: usize = 32;

/// A copy of the store that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// So many bytes were written, the sum at the end among them.
    pub bytes: u64,
    /// The version of the format, if the server says it.
    pub version: String,
}

fn stub(channel: Channel) -> MaintenanceClient<Channel> {
    MaintenanceClient::new(channel)
}

impl Client {
    /// What a member says of itself: sizes, its leader, how far it has come. It need not have a
    /// leader for that.
    pub async fn status(&self) -> Result<StatusResponse> {
        let send = |channel, request| async move { stub(channel).status(request).await };
        self.call(CallPolicy::MEMBER, StatusRequest {}, send).await
    }

    /// Whether a member serves: it answers a linearizable read, and there is no alarm.
    pub async fn health(&self) -> Result<()> {
        match self.get("health").await {
            // It has the result of the permission check, which takes a leader as well.
            Ok(_) | Err(Error::PermissionDenied) => {}
            Err(error) => return Err(error),
        }
        match self.alarms().await?.first().map(AlarmMember::alarm) {
            Some(AlarmType::Nospace) => Err(Error::NoSpace),
            Some(AlarmType::Corrupt) => Err(Error::Corrupt),
            Some(AlarmType::None) | None => Ok(()),
        }
    }

    /// The alarms of all members.
    pub async fn alarms(&self) -> Result<Vec<AlarmMember>> {
        self.alarm(CallPolicy::READ, AlarmAction::Get, AlarmMember::default()).await
    }

    /// Ends an alarm, once its reason is gone. Returns it, or nothing if there was none.
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
        let send = |channel, request| async move { stub(channel).alarm(request).await };
        Ok(self.call(way, request, send).await?.alarms)
    }

    /// A member gives back the space of what was deleted and compacted. Takes as long as it takes.
    pub async fn defragment(&self) -> Result<()> {
        let send = |channel, request| async move { stub(channel).defragment(request).await };
        self.call(CallPolicy::MEMBER_WORK, DefragmentRequest {}, send).await.map(drop)
    }

    /// The sum of a member's records up to a revision, or up to now if that is 0. Members of a
    /// cluster have the same, for the same revisions.
    pub async fn hash_kv(&self, revision: i64) -> Result<HashKvResponse> {
        let send = |channel, request| async move { stub(channel).hash_kv(request).await };
        self.call(CallPolicy::MEMBER, HashKvRequest { revision }, send).await
    }

    /// Another member leads from now on. Whichever endpoint leads is found.
    pub async fn move_leader(&self, to: u64) -> Result<()> {
        let send = |channel, request| async move { stub(channel).move_leader(request).await };
        self.call(CallPolicy::WRITE, MoveLeaderRequest { target_id: to }, send).await.map(drop)
    }

    /// Copies a member's store into a writer, in the form that `etcdctl snapshot save` would have
    /// written, and checks that it has come whole. After an error, what was written is of no use.
    pub async fn snapshot<W: AsyncWrite + Unpin>(&self, mut writer: W) -> Result<SnapshotInfo> {
        let send = |channel, request| async move { stub(channel).snapshot(request).await };
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
            // All but what may be the sum is summed up.
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
