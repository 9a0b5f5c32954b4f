//! Elections among programs, held by leases.

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

/// Valid as long as its lease lives.
#[derive(Clone, Debug)]
pub struct Leadership {
    client: Client,
    key: LeaderKey,
}

impl Leadership {
    /// For a transaction: holds only if this is still the leader.
    pub fn is_held(&self) -> Compare {
        Compare::create_revision(self.key.key.clone()).equal(self.key.rev)
    }

    /// Changes the value that observers get. [`Error::NotElected`] if this does not lead any more.
    pub async fn proclaim(&self, value: impl Into<Vec<u8>>) -> Result<()> {
        let (leader, value) = (Some(self.key.clone()), value.into().into());
        let send = async |channel, request| stub(channel).proclaim(request).await;
        self.client.call(CallPolicy::WRITE, ProclaimRequest { leader, value }, send).await.map(drop)
    }

    pub async fn resign(self) -> Result<()> {
        let request = ResignRequest { leader: Some(self.key) };
        let send = async |channel, request| stub(channel).resign(request).await;
        // Guarded by its revision: to resign twice is to resign once.
        self.client.call(CallPolicy::READ, request, send).await.map(drop)
    }
}

impl Client {
    /// Waits until this lease leads the election, with `value` as what observers get.
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
        let key = key.ok_or(Error::Unexpected("elected, and not said as what"))?;
        Ok(Leadership { client: self.clone(), key })
    }

    pub async fn leader(&self, name: impl Into<Vec<u8>>) -> Result<Option<KeyValue>> {
        let request = LeaderRequest { name: name.into().into() };
        let send = async |channel, request| stub(channel).leader(request).await;
        match self.call(CallPolicy::READ, request, send).await {
            Ok(reply) => Ok(reply.kv),
            Err(Error::Rejected { text, .. }) if text == NONE_ELECTED => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Follows the leader and its value: the present state, and then every change.
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

#[derive(Debug)]
pub struct Observe {
    client: Client,
    request: LeaderRequest,
    stream: Option<Streaming<LeaderResponse>>,
    /// Events up to here were reported; a new stream may bring them again.
    last_revision: i64,
    backoff: Backoff,
}

impl Observe {
    /// The next change. Retries through failures of endpoints.
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
