//! Registers the proxy at the cluster, so that clients find all proxies with MemberList.
//!
//! Each proxy has a key `PREFIX/ADDRESS` with a lease. Its value is JSON in etcd's form, so proxies
//! of etcd and of Clearlane can be registered side by side. The proxy reads the list of proxies
//! again every second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest,
};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Status;

use crate::cache::range::Span;
use crate::lease::KeepAlives;
use crate::upstream::Upstream;

const RETRY_DELAY: Duration = Duration::from_secs(1);
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two reads of the list of proxies.
const LIST_INTERVAL: Duration = Duration::from_secs(1);

/// The settings of the flags `--resolver-prefix` and `--resolver-ttl`.
#[derive(Clone, Debug)]
pub struct RegistrationConfig {
    pub prefix: String,
    pub ttl_seconds: i64,
    pub address: String,
    pub host_name: String,
}

#[derive(Debug)]
pub struct Registration {
    state: Arc<RegistrationState>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct RegistrationState {
    config: RegistrationConfig,
    upstream: Arc<Upstream>,
    keep_alives: Arc<KeepAlives>,
    /// The URL and the name of each proxy, by its key.
    proxies: Mutex<BTreeMap<Vec<u8>, (String, String)>>,
    lease: Mutex<Option<i64>>,
}

impl Registration {
    /// Registers the proxy, and keeps it registered. Must be called on a runtime.
    pub fn start(
        config: RegistrationConfig,
        upstream: Arc<Upstream>,
        keep_alives: Arc<KeepAlives>,
    ) -> Registration {
        let (proxies, lease) = Default::default();
        let state = Arc::new(RegistrationState { config, upstream, keep_alives, proxies, lease });
        let task = tokio::spawn(Arc::clone(&state).run());
        Registration { state, task }
    }

    /// Returns the names and URLs of all registered proxies.
    pub fn proxies(&self) -> Vec<(String, String)> {
        self.state.proxies.lock().values().cloned().collect()
    }

    /// Ends the registration: other proxies stop naming this one at once.
    pub async fn stop(&self) {
        self.task.abort();
        self.state.revoke().await;
    }
}

impl RegistrationState {
    async fn run(self: Arc<Self>) {
        loop {
            if let Err(status) = self.register().await {
                self.revoke().await;
                let error = status.message();
                tracing::warn!(error, "the proxy is not registered, and tries again");
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Ends the lease, and with it the registration.
    async fn revoke(&self) {
        let lease = self.lease.lock().take();
        if let Some(id) = lease
            && let Some(channel) = self.upstream.pick().and_then(|it| it.channel())
        {
            let mut client = LeaseClient::new(channel);
            // If this fails, the lease ends after its TTL.
            let _ = in_time(client.lease_revoke(LeaseRevokeRequest { id })).await;
        }
    }

    fn key(&self) -> String {
        format!("{}/{}", self.config.prefix.trim_end_matches('/'), self.config.address)
    }

    /// Registers the proxy, and keeps it registered until its lease is lost.
    async fn register(&self) -> Result<(), Status> {
        let member = self.upstream.wait_and_pick().await;
        let channel = member.and_then(|member| member.channel());
        let channel = channel.ok_or_else(crate::status::no_member)?;
        let ttl = self.config.ttl_seconds;
        let grant = LeaseGrantRequest { ttl, id: 0 };
        let mut client = LeaseClient::new(channel.clone());
        let granted = Instant::now();
        let lease = in_time(client.lease_grant(grant)).await?.id;
        *self.lease.lock() = Some(lease);
        let (address, host) = (&self.config.address, &self.config.host_name);
        let value = serde_json::json!({
            "Op": 0,
            "Addr": address,
            "Metadata": { "Name": host },
        });
        let put = PutRequest {
            key: self.key().into(),
            value: value.to_string().into(),
            lease,
            ..PutRequest::default()
        };
        in_time(KvClient::new(channel).put(put)).await?;
        tracing::info!(key = self.key(), "registered the proxy");
        tokio::select! {
            lost = self.renew(lease, granted) => Err(lost),
            () = self.follow_list() => Ok(()),
        }
    }

    /// Renews the lease. Returns when the lease is lost.
    async fn renew(&self, lease: i64, granted: Instant) -> Status {
        let ttl = Duration::from_secs(self.config.ttl_seconds.unsigned_abs().max(3));
        let mut renewed = granted;
        loop {
            sleep_until(renewed + ttl / 3).await;
            let begin = Instant::now();
            match self.keep_alives.renew(lease).await {
                Ok(answer) if answer.ttl <= 0 => {
                    return Status::not_found("the lease of the registration has expired");
                }
                Ok(_) => renewed = begin,
                Err(status) if renewed.elapsed() >= ttl => return status,
                // No member was reachable, but the lease may still exist.
                Err(_) => sleep(RETRY_DELAY).await,
            }
        }
    }

    /// Reads the list of proxies again and again. After an error it keeps the last list. Does not
    /// return.
    async fn follow_list(&self) {
        let mut is_logged = false;
        loop {
            let listed = self.list().await;
            if let Err(status) = &listed
                && !is_logged
            {
                tracing::warn!(error = status.message(), "cannot read the list of proxies");
            }
            is_logged = listed.is_err();
            sleep(LIST_INTERVAL).await;
        }
    }

    async fn list(&self) -> Result<(), Status> {
        let member = self.upstream.wait_and_pick().await;
        let channel = member.and_then(|member| member.channel());
        let channel = channel.ok_or_else(crate::status::no_member)?;
        let prefix = format!("{}/", self.config.prefix.trim_end_matches('/'));
        let (key, range_end) = Span::of_prefix(prefix.as_bytes()).to_request();
        let request = RangeRequest { key, range_end, serializable: true, ..Default::default() };
        let found = in_time(KvClient::new(channel).range(request)).await?;
        let proxies = found.kvs.iter().filter_map(|kv| {
            let value: serde_json::Value = serde_json::from_slice(&kv.value).ok()?;
            let name = value["Metadata"]["Name"].as_str().unwrap_or_default().to_owned();
            Some((kv.key.to_vec(), (name, value["Addr"].as_str()?.to_owned())))
        });
        *self.proxies.lock() = proxies.collect();
        Ok(())
    }
}

/// Waits for an answer for at most [`CALL_TIMEOUT`].
async fn in_time<T>(
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::unavailable("the member does not answer")),
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.task.abort();
    }
}
