//! Elections among programs. A program remains the leader as long as its lease exists.

use clearlane_proto::mvccpb::KeyValue;
use clearlane_proto::v3electionpb::election_client::ElectionClient;
use clearlane_proto::v3electionpb::{
    CampaignRequest, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest, ResignRequest,
};
use tonic::Streaming;
use tonic::transport::Channel;

use crate::backoff::Backoff;
use crate::call::CallPolicy;
use crate::error::{Error, NONE_ELECTED, Result, StatusKind};
use crate::lock::require_lease;
use crate::{Client, Compare};

fn stub(channel: Channel) -> ElectionClient<Channel> {
    ElectionClient::new(channel).max_decoding_message_size(usize::MAX)
}

/// The leadership of an election. It is valid while its lease exists.
#[derive(Clone, Debug)]
pub struct Leadership {
    client: Client,
    key: LeaderKey,
}

impl Leadership {
    /// Returns a condition for a transaction. The condition holds only if this candidate is still
    /// the leader.
    pub fn is_held(&self) -> Compare {
        Compare::create_revision(self.key.key.clone()).equal(self.key.rev)
    }

    /// Changes the value that observers get. Fails with [`Error::NotElected`] if this candidate is
    /// no longer the leader.
    pub async fn proclaim(&self, value: impl Into<Vec<u8>>) -> Result<()> {
        let (leader, value) = (Some(self.key.clone()), value.into().into());
        let send = async |channel, request| stub(channel).proclaim(request).await;
        self.client.call(CallPolicy::WRITE, ProclaimRequest { leader, value }, send).await.map(drop)
    }

    /// Gives up the leadership. The next candidate then becomes the leader.
    pub async fn resign(self) -> Result<()> {
        let request = ResignRequest { leader: Some(self.key) };
        let send = async |channel, request| stub(channel).resign(request).await;
        // The request names the revision of the leader's key, so a second request has no effect.
        self.client.call(CallPolicy::READ, request, send).await.map(drop)
    }
}

impl Client {
    /// Waits until this lease leads the election. Observers then get `value`. Has no time limit;
    /// [`Client::lock`] describes how to limit such a wait, and what to do if the member fails.
    pub async fn campaign(
        &self,
        name: impl Into<Vec<u8>>,
        lease: i64,
        value: impl Into<Vec<u8>>,
    ) -> Result<Leadership> {
        let (name, value) = (name.into().into(), value.into().into());
        let request = CampaignRequest { name, lease: require_lease(lease)?, value };
        let send = async |channel, request| stub(channel).campaign(request).await;
        let key = self.call(CallPolicy::LONG_WRITE, request, send).await?.leader;
        let key = key.ok_or(Error::Unexpected("it does not contain the leader's key"))?;
        Ok(Leadership { client: self.clone(), key })
    }

    /// Returns the key of the leader, with its value, or `None` if there is no leader.
    pub async fn leader(&self, name: impl Into<Vec<u8>>) -> Result<Option<KeyValue>> {
        let request = LeaderRequest { name: name.into().into() };
        let send = async |channel, request| stub(channel).leader(request).await;
        match self.call(CallPolicy::READ, request, send).await {
            Ok(reply) => Ok(reply.kv),
            Err(Error::Rejected { text, .. }) if text == NONE_ELECTED => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Observes the leader and its value: the current state, and then every change. After a failure
    /// of an endpoint or the end of a leadership, only the newest state is returned, and earlier
    /// changes may be missing.
    pub fn observe(&self, name: impl Into<Vec<u8>>) -> Observe {
        let request = LeaderRequest { name: name.into().into() };
        Observe {
            client: self.clone(),
            request,
            stream: None,
            last_revision: 0,
            backoff: Backoff::new(),
        }
    }
}

/// The consecutive leaders of an election, and their values: see [`Client::observe`].
#[derive(Debug)]
pub struct Observe {
    client: Client,
    request: LeaderRequest,
    stream: Option<Streaming<LeaderResponse>>,
    /// Events up to this revision were reported. A new stream may repeat them.
    last_revision: i64,
    backoff: Backoff,
}

impl Observe {
    /// Waits for the next change. The first call returns the current state once there is a leader.
    /// If endpoints fail, the call tries again without a time limit. Fails if a server rejects the
    /// request with a final error.
    pub async fn next(&mut self) -> Result<KeyValue> {
        loop {
            let Some(stream) = &mut self.stream else {
                self.reopen().await?;
                continue;
            };
            match stream.message().await {
                Ok(Some(response)) => {
                    let kv = response.kv.unwrap_or_default();
                    if kv.mod_revision > self.last_revision {
                        self.last_revision = kv.mod_revision;
                        self.backoff.reset();
                        return Ok(kv);
                    }
                    continue;
                }
                Err(status) if StatusKind::from_status(&status) == StatusKind::Final => {
                    self.stream = None;
                    return Err(Error::from_status(&status));
                }
                Ok(None) | Err(_) => self.stream = None,
            }
            self.backoff.wait().await;
        }
    }

    async fn reopen(&mut self) -> Result<()> {
        let send = async |channel, request| stub(channel).observe(request).await;
        match self.client.call(CallPolicy::STREAM, self.request.clone(), send).await {
            Ok(stream) => self.stream = Some(stream),
            Err(error) if error.is_transient() => self.backoff.wait().await,
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
