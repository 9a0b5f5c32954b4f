//! Finds the other members of a new cluster in another cluster of etcd: `--discovery-token`.
//!
//! ```text
//!   /_etcd/registry/TOKEN/_config/size     number of members, which the operator has written
//!   /_etcd/registry/TOKEN/members/ID       NAME=URL of a member, which the member writes
//! ```
//!
//! The keys and values are etcd's, so members of etcd and Clearlane find each other. The first
//! members to write their keys form the cluster, and any other member fails. While the service does
//! not respond, the member tries again.

use std::time::Duration;

use clearlane_net::tls::Dialer;
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    AuthenticateRequest, PutRequest, RangeRequest, RangeResponse, WatchCreateRequest, WatchRequest,
};
use clearlane_proto::mvccpb::KeyValue;
use tokio::time::{sleep, timeout};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::ServiceTls;
use crate::data::InitialCluster;

/// The first and the longest pause between two attempts. The pause doubles each time.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(16));

#[derive(Clone, Debug)]
pub struct DiscoveryService {
    pub token: String,
    /// URLs of the service, with a scheme.
    pub endpoints: Vec<String>,
    pub tls: Option<ServiceTls>,
    pub dial_timeout: Duration,
    pub request_timeout: Duration,
    pub keep_alive_interval: Duration,
    pub keep_alive_timeout: Duration,
    pub credentials: Option<Credentials>,
}

#[derive(Clone)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

/// Omits the password, so that it never appears in a log.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The error texts start with etcd's texts, except the text of `Refused`. The rest of each text
/// gives details, such as a remedy for the operator.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    #[error("discovery: size key not found: write the number of members to {0}")]
    SizeNotFound(String),
    #[error("discovery: size key is bad: {key} must be a number above 0, and is {value:?}")]
    BadSize { key: String, value: String },
    #[error("discovery: cluster is full: {0} members have registered before this one")]
    Full(usize),
    #[error("discovery: the service refuses this member (--discovery-user): {0}")]
    Refused(String),
    #[error("discovery: invalid peer URL: {0}")]
    InvalidUrl(crate::data::Error),
}

enum Failure {
    Final(DiscoveryError),
    /// The attempt failed, but a later one may succeed.
    Retry(String),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        // A later attempt with the same user and password would fail in the same way.
        if matches!(
            status.code(),
            Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated
        ) {
            return DiscoveryError::Refused(status.message().to_owned()).into();
        }
        Failure::Retry(format!("{:?}: {}", status.code(), status.message()))
    }
}

impl From<DiscoveryError> for Failure {
    fn from(error: DiscoveryError) -> Failure {
        Failure::Final(error)
    }
}

impl DiscoveryService {
    /// Registers the member and waits for the others. `own` is the member in the notation of
    /// `--initial-cluster`.
    pub async fn join(
        &self,
        dialer: &Dialer,
        id: u64,
        own: &str,
    ) -> Result<InitialCluster, DiscoveryError> {
        let (mut pause, longest) = PAUSES;
        for endpoint in self.endpoints.iter().cycle() {
            match self.try_join((dialer, endpoint), id, own).await {
                Ok(cluster) => {
                    tracing::info!(%cluster, "discovery joined cluster successfully");
                    return Ok(cluster);
                }
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Retry(error)) => {
                    tracing::warn!(
                        endpoint,
                        error,
                        ?pause,
                        "the discovery service did not respond; trying again"
                    );
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
        unreachable!("there is an endpoint, as the flags are checked")
    }

    async fn try_join(
        &self,
        at: (&Dialer, &str),
        id: u64,
        own: &str,
    ) -> Result<InitialCluster, Failure> {
        let mut session = Session::connect(self, at).await?;
        let size = session.size().await?;
        let own_key = format!("{}{id:x}", self.members_prefix());
        let (mut members, mut revision) = session.members().await?;
        if !members.iter().any(|member| member.key == own_key.as_bytes()) {
            if members.len() >= size {
                return Err(DiscoveryError::Full(size).into());
            }
            session.register(&own_key, own).await?;
            (members, revision) = session.members().await?;
        }
        loop {
            let cluster: Vec<&KeyValue> = members.iter().take(size).collect();
            let is_in = cluster.iter().any(|member| member.key == own_key.as_bytes());
            if cluster.len() == size {
                if !is_in {
                    return Err(DiscoveryError::Full(size).into());
                }
                let list: Vec<_> =
                    cluster.iter().map(|member| String::from_utf8_lossy(&member.value)).collect();
                let parsed = list.join(",").parse().map_err(DiscoveryError::InvalidUrl);
                return Ok(parsed?);
            }
            tracing::info!(
                "found-peers" = cluster.len(),
                size,
                "waiting for peers from discovery service"
            );
            session.wait_for_change(revision + 1).await?;
            (members, revision) = session.members().await?;
        }
    }

    fn prefix(&self) -> String {
        format!("/_etcd/registry/{}/", self.token.trim_matches('/'))
    }

    fn members_prefix(&self) -> String {
        self.prefix() + "members/"
    }
}

/// A connection to the service.
struct Session<'s> {
    service: &'s DiscoveryService,
    channel: Channel,
    /// The token of the user. `None` if there is no user, or if authentication is off in the
    /// service.
    auth: Option<MetadataValue<Ascii>>,
}

impl<'s> Session<'s> {
    async fn connect(
        service: &'s DiscoveryService,
        (dialer, endpoint): (&Dialer, &str),
    ) -> Result<Session<'s>, Failure> {
        let connected = dialer.connect_with(endpoint, |endpoint| {
            endpoint
                .connect_timeout(service.dial_timeout)
                .http2_keep_alive_interval(service.keep_alive_interval)
                .keep_alive_timeout(service.keep_alive_timeout)
        });
        let channel = timeout(service.dial_timeout, connected).await;
        let no_answer = || format!("no connection within {:?}", service.dial_timeout);
        let channel = channel.unwrap_or_else(|_| Err(no_answer())).map_err(Failure::Retry)?;
        let mut session = Session { service, channel, auth: None };
        if let Some(Credentials { user, password }) = &service.credentials {
            let request = AuthenticateRequest { name: user.clone(), password: password.clone() };
            let request = session.request(request);
            let mut client = AuthClient::new(session.channel.clone());
            match session.answer(client.authenticate(request)).await {
                // This code means that authentication is off in the service. As in etcd's client,
                // requests then carry no token.
                Err(status) if status.code() == Code::FailedPrecondition => {
                    tracing::warn!(error = status.message(), "--discovery-user has no effect");
                }
                response => {
                    let invalid = |_| Failure::Retry("the token is not valid".to_owned());
                    session.auth = Some(response?.token.parse().map_err(invalid)?);
                }
            }
        }
        Ok(session)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        self.authorize(&mut request);
        request
    }

    fn authorize<T>(&self, request: &mut Request<T>) {
        if let Some(auth) = &self.auth {
            request.metadata_mut().insert("token", auth.clone());
        }
    }

    /// Waits for a response, but no longer than `--discovery-request-timeout`.
    async fn answer<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Status> {
        let answered = timeout(self.service.request_timeout, call).await;
        let late = |_| Err(Status::deadline_exceeded("no response"));
        answered.unwrap_or_else(late).map(Response::into_inner)
    }

    async fn range(&mut self, request: RangeRequest) -> Result<RangeResponse, Status> {
        let mut client = KvClient::new(self.channel.clone());
        self.answer(client.range(self.request(request))).await
    }

    async fn size(&mut self) -> Result<usize, Failure> {
        let key = self.service.prefix() + "_config/size";
        let request = RangeRequest { key: key.clone().into(), ..RangeRequest::default() };
        let found = self.range(request).await?;
        let Some(found) = found.kvs.first() else {
            return Err(DiscoveryError::SizeNotFound(key).into());
        };
        let value = String::from_utf8_lossy(&found.value).into_owned();
        match value.parse() {
            Ok(size) if size > 0 => Ok(size),
            _ => Err(DiscoveryError::BadSize { key, value }.into()),
        }
    }

    /// Returns the registered members, ordered by the time of their registration, and the revision
    /// of the list.
    async fn members(&mut self) -> Result<(Vec<KeyValue>, i64), Failure> {
        let (key, range_end) = self.member_keys();
        let request = RangeRequest {
            key: key.into(),
            range_end: range_end.into(),
            ..RangeRequest::default()
        };
        let found = self.range(request).await?;
        let mut members = found.kvs;
        members.retain(|member| {
            let is_member = member.value.contains(&b'=');
            if !is_member {
                let key = String::from_utf8_lossy(&member.key);
                tracing::warn!(%key, "invalid peer info returned from discovery service");
            }
            is_member
        });
        members.sort_by_key(|member| member.create_revision);
        Ok((members, found.header.unwrap_or_default().revision))
    }

    async fn register(&mut self, key: &str, own: &str) -> Result<(), Failure> {
        let put = PutRequest {
            key: key.to_owned().into(),
            value: own.to_owned().into(),
            ..PutRequest::default()
        };
        let request = self.request(put);
        let mut client = KvClient::new(self.channel.clone());
        self.answer(client.put(request)).await?;
        tracing::info!("memberKey" = key, "memberInfo" = own, "registered this member");
        Ok(())
    }

    /// Returns once the key of a member has changed at this revision or later. Fails if the watch
    /// ends first.
    async fn wait_for_change(&mut self, start_revision: i64) -> Result<(), Failure> {
        let (key, range_end) = self.member_keys();
        let create = WatchCreateRequest {
            key: key.into(),
            range_end: range_end.into(),
            start_revision,
            ..WatchCreateRequest::default()
        };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // The stream of requests never ends, so the client does not close its half of the watch.
        let requests =
            tokio_stream::StreamExt::chain(tokio_stream::once(create), tokio_stream::pending());
        let mut request = Request::new(requests);
        self.authorize(&mut request);
        let mut client = WatchClient::new(self.channel.clone());
        let mut responses = client.watch(request).await?.into_inner();
        loop {
            let Some(response) = responses.message().await? else {
                return Err(Failure::Retry("the watch has ended".to_owned()));
            };
            if response.canceled {
                return Err(Failure::Retry(response.cancel_reason));
            }
            if !response.events.is_empty() {
                return Ok(());
            }
        }
    }

    /// Returns the range of all members' keys, as its start and end.
    fn member_keys(&self) -> (String, String) {
        let prefix = self.service.members_prefix();
        // The character after a slash is `0`.
        let end = format!("{}0", prefix.trim_end_matches('/'));
        (prefix, end)
    }
}
