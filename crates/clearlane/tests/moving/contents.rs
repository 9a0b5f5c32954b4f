//! The data that clients have put into a cluster, and a check that it is complete.

use std::collections::{BTreeMap, BTreeSet};

use clearlane_proto::etcdserverpb::alarm_request::AlarmAction;
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{
    AlarmRequest, AlarmType, AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest,
    AuthUserAddRequest, AuthUserGrantRoleRequest, AuthUserListRequest, AuthenticateRequest,
    CompactionRequest, DeleteRangeRequest, HashKvRequest, LeaseGrantRequest, LeaseLeasesRequest,
    LeaseRevokeRequest, PutRequest, RangeRequest, SnapshotRequest,
};
use rand::RngExt;
use rand::rngs::StdRng;
use tonic::Request;
use tonic::transport::Channel;

const KEYS: u32 = 150;
const CHANGES_PER_ROUND: u32 = 250;
/// The TTL of leases, which is much longer than a test.
const TTL: i64 = 100_000;

/// The state of the cluster according to all responses so far.
#[derive(Default)]
pub(crate) struct Contents {
    records: BTreeMap<Vec<u8>, (Vec<u8>, i64)>,
    leases: BTreeSet<i64>,
    users: BTreeSet<String>,
    revision: i64,
    compacted: i64,
    has_auth: bool,
    has_alarm: bool,
    /// Hash and compact revision of the store at the revision in `revision`.
    hash: (u32, i64),
}

/// Adds the token of root to a message, if authentication is on.
async fn with_token<T>(contents: &Contents, channel: &Channel, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if contents.has_auth {
        let (name, password) = ("root".to_owned(), "secret".to_owned());
        let login = AuthenticateRequest { name, password };
        let token = AuthClient::new(channel.clone()).authenticate(login).await.unwrap();
        let token = token.into_inner().token.parse().unwrap();
        request.metadata_mut().insert("authorization", token);
    }
    request
}

impl Contents {
    pub(crate) async fn check(&self, channel: &Channel) {
        let mut maintenance = MaintenanceClient::new(channel.clone());
        if self.has_auth {
            let range = RangeRequest { key: b"k".to_vec().into(), ..Default::default() };
            let refused = KvClient::new(channel.clone()).range(range).await.unwrap_err();
            assert!(refused.message().contains("user name is empty"), "{refused}");
        }
        let all = RangeRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            ..RangeRequest::default()
        };
        let all = with_token(self, channel, all).await;
        let found = KvClient::new(channel.clone()).range(all).await.unwrap().into_inner();
        assert_eq!(found.header.unwrap().revision, self.revision);
        let records = found.kvs.into_iter().map(|kv| {
            let (key, value) = (Vec::from(kv.key), Vec::from(kv.value));
            (key, (value, kv.lease))
        });
        assert_eq!(records.collect::<BTreeMap<_, _>>(), self.records);
        let leases = with_token(self, channel, LeaseLeasesRequest {}).await;
        let leases = LeaseClient::new(channel.clone()).lease_leases(leases).await.unwrap();
        let leases: BTreeSet<i64> = leases.into_inner().leases.iter().map(|l| l.id).collect();
        assert_eq!(leases, self.leases);
        let users = with_token(self, channel, AuthUserListRequest {}).await;
        let users = AuthClient::new(channel.clone()).user_list(users).await.unwrap().into_inner();
        assert_eq!(users.users.into_iter().collect::<BTreeSet<_>>(), self.users);
        let alarms = AlarmRequest { action: AlarmAction::Get.into(), ..Default::default() };
        let alarms = maintenance.alarm(with_token(self, channel, alarms).await).await.unwrap();
        assert_eq!(alarms.into_inner().alarms.len(), usize::from(self.has_alarm));
        let hash = HashKvRequest { revision: self.revision };
        let hash = maintenance.hash_kv(with_token(self, channel, hash).await).await.unwrap();
        let hash = hash.into_inner();
        assert_eq!((hash.hash, hash.compact_revision), self.hash);
    }

    /// Returns the bytes that `etcdctl snapshot save` would write to a file.
    pub(crate) async fn snapshot(&self, channel: &Channel) -> Vec<u8> {
        let request = with_token(self, channel, SnapshotRequest {}).await;
        let mut parts = MaintenanceClient::new(channel.clone()).snapshot(request).await.unwrap();
        let mut file = Vec::new();
        while let Some(part) = parts.get_mut().message().await.unwrap() {
            file.extend_from_slice(&part.blob);
        }
        file
    }

    /// Makes changes of all kinds. `round` decides whether authentication is enabled or disabled
    /// first, whether a compaction follows, and whether an alarm is raised at the end.
    pub(crate) async fn change(&mut self, channel: &Channel, round: u32, rng: &mut StdRng) {
        if self.has_alarm {
            self.set_alarm(channel, AlarmAction::Deactivate).await;
        }
        self.add_user(channel, round).await;
        if round % 4 == 1 {
            let enable = with_token(self, channel, AuthEnableRequest {}).await;
            AuthClient::new(channel.clone()).auth_enable(enable).await.unwrap();
            self.has_auth = true;
        } else if round % 4 == 3 {
            let disable = with_token(self, channel, AuthDisableRequest {}).await;
            AuthClient::new(channel.clone()).auth_disable(disable).await.unwrap();
            self.has_auth = false;
        }
        for _ in 0..CHANGES_PER_ROUND {
            self.change_one(channel, rng).await;
        }
        if round.is_multiple_of(2) {
            self.compacted = rng.random_range(self.compacted + 1..=self.revision);
            let compaction = CompactionRequest { revision: self.compacted, physical: true };
            let compaction = with_token(self, channel, compaction).await;
            KvClient::new(channel.clone()).compact(compaction).await.unwrap();
        }
        if round % 3 == 2 {
            self.set_alarm(channel, AlarmAction::Activate).await;
        }
        let hash = HashKvRequest { revision: self.revision };
        let hash = with_token(self, channel, hash).await;
        let hash = MaintenanceClient::new(channel.clone()).hash_kv(hash).await.unwrap();
        self.hash = (hash.get_ref().hash, hash.get_ref().compact_revision);
    }

    async fn change_one(&mut self, channel: &Channel, rng: &mut StdRng) {
        let mut kv = KvClient::new(channel.clone());
        let mut lease = LeaseClient::new(channel.clone());
        let key = format!("key{:03}", rng.random_range(0..KEYS)).into_bytes();
        match rng.random_range(0..20) {
            0 => {
                let grant = with_token(self, channel, LeaseGrantRequest { ttl: TTL, id: 0 }).await;
                self.leases.insert(lease.lease_grant(grant).await.unwrap().into_inner().id);
            }
            1 => {
                let Some(id) = self.leases.pop_first() else { return };
                let revoke = with_token(self, channel, LeaseRevokeRequest { id }).await;
                let revoked = lease.lease_revoke(revoke).await.unwrap().into_inner();
                self.records.retain(|_, (_, attached)| *attached != id);
                self.revision = revoked.header.unwrap().revision;
            }
            2..4 => {
                let delete = DeleteRangeRequest { key: key.clone().into(), ..Default::default() };
                let delete = with_token(self, channel, delete).await;
                let deleted = kv.delete_range(delete).await.unwrap().into_inner();
                self.records.remove(&key);
                self.revision = deleted.header.unwrap().revision;
            }
            number => {
                let attached = match number {
                    4 => self.leases.last().copied().unwrap_or_default(),
                    _ => 0,
                };
                let value = vec![rng.random(); rng.random_range(0..2_000)];
                let put = PutRequest {
                    key: key.clone().into(),
                    value: value.clone().into(),
                    lease: attached,
                    ..PutRequest::default()
                };
                let done = kv.put(with_token(self, channel, put).await).await.unwrap().into_inner();
                self.records.insert(key, (value, attached));
                self.revision = done.header.unwrap().revision;
            }
        }
    }

    async fn add_user(&mut self, channel: &Channel, round: u32) {
        let mut auth = AuthClient::new(channel.clone());
        let name = if round == 0 { "root".to_owned() } else { format!("user{round}") };
        let add = AuthUserAddRequest {
            name: name.clone(),
            password: "secret".to_owned(),
            ..AuthUserAddRequest::default()
        };
        auth.user_add(with_token(self, channel, add).await).await.unwrap();
        if round == 0 {
            auth.role_add(AuthRoleAddRequest { name: "root".to_owned() }).await.unwrap();
            let (user, role) = ("root".to_owned(), "root".to_owned());
            auth.user_grant_role(AuthUserGrantRoleRequest { user, role }).await.unwrap();
        }
        self.users.insert(name);
    }

    async fn set_alarm(&mut self, channel: &Channel, action: AlarmAction) {
        // The alarm belongs to a member that does not exist, because a member's own alarm would end
        // by itself.
        let alarm =
            AlarmRequest { action: action.into(), member_id: 7, alarm: AlarmType::Nospace.into() };
        let alarm = with_token(self, channel, alarm).await;
        MaintenanceClient::new(channel.clone()).alarm(alarm).await.unwrap();
        self.has_alarm = action == AlarmAction::Activate;
    }
}
