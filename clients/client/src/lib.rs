//! A client of etcd's API, version 3, for a cluster of several endpoints.
//!
//! | module | what it decides |
//! |---|---|
//! | `endpoint` | which endpoints are tried: one that fails is set aside and checked at intervals |
//! | `call` | what is sent again: a read; a write only if it certainly was not carried out |
//! | `watch` | how a stream goes on elsewhere: every event once, in order, or an error |
//! | `lease` | whether a lease is still alive: its holder learns in time that it may not be |
//! | `error` | one variant for each thing that a caller can do about an error |
//!
//! A [`Client`] is cheap to clone, and a clone shares connections and token. It belongs to the
//! tokio runtime in which it was made. Left out: a cache, namespaces, users and roles, and
//! following the member list. See `docs/client.md`.

mod call;
mod cluster;
mod election;
mod error;
mod kv;
mod lease;
mod lock;
mod maintenance;
mod options;
mod backoff;
mod endpoint;
mod watch;

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::JoinSet;

pub use clearlane_proto as proto;
pub use clearlane_proto::mvccpb::KeyValue;
pub use tonic::Code;
pub use tonic::transport::{Certificate, ClientTlsConfig, Identity};

pub use crate::election::{Leadership, Observe};
pub use crate::error::{Error, Result};
pub use crate::kv::{
    Compare, CompareWith, Delete, DeleteReply, Get, GetReply, Keys, Op, OpReply, Put, PutReply,
    RangeStream, Txn, TxnReply,
};
pub use crate::lease::{KeepAlive, Lease, LeaseEnd, TimeToLive};
pub use crate::lock::Lock;
pub use crate::maintenance::SnapshotInfo;
pub use crate::options::Options;
pub use crate::watch::{Batch, Event, Watch, WatchKeys};

use crate::call::Token;
use crate::endpoint::{Endpoint, Endpoints};

/// A client of one cluster.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> clearlane_client::Result<()> {
/// use clearlane_client::{Client, Options};
///
/// let client = Client::connect(["http://127.0.0.1:2379"], Options::default()).await?;
/// client.put("greeting", "hello").await?;
/// let found = client.get("greeting").await?;
/// assert_eq!(found.value().map(|value| &value[..]), Some(&b"hello"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    options_and_token: Arc<OptionsAndToken>,
    endpoints: Arc<Endpoints>,
}

/// Shared by all clones of a client.
#[derive(Debug)]
struct OptionsAndToken {
    options: Options,
    /// `None` until it is asked for; `Some(None)` where none is needed.
    token: Mutex<Option<Option<Token>>>,
}

impl Client {
    /// Returns when one endpoint has answered; the others are connected when their turn comes. An
    /// endpoint is `http://host:port`, `https://host:port` or `host:port`.
    pub async fn connect<E>(endpoints: E, options: Options) -> Result<Client>
    where
        E: IntoIterator,
        E::Item: Into<String>,
    {
        let endpoints: Vec<String> = endpoints.into_iter().map(Into::into).collect();
        let endpoints = Arc::new(Endpoints::new(&endpoints, &options)?);
        let shared = Arc::new(OptionsAndToken { options, token: Mutex::new(None) });
        let client = Client { options_and_token: shared, endpoints };
        client.connect_any().await?;
        client.token(None).await?;
        Ok(client)
    }

    async fn connect_any(&self) -> Result<()> {
        let mut checks = JoinSet::new();
        for endpoint in self.endpoints.all() {
            let endpoint = Arc::clone(endpoint);
            checks.spawn(async move {
                let reached = endpoint.check_reachable().await;
                reached.map_err(|error| format!("{}: {error}", endpoint.url))
            });
        }
        let mut failures = Vec::new();
        while let Some(reached) = checks.join_next().await {
            match reached {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(failure)) => failures.push(failure),
                Err(error) => failures.push(error.to_string()),
            }
        }
        Err(Error::Unavailable(failures.join("; ")))
    }

    /// As they were given.
    pub fn endpoints(&self) -> Vec<String> {
        self.endpoints.all().iter().map(|endpoint| endpoint.url.clone()).collect()
    }

    /// A client of this one of the [`endpoints`](Client::endpoints), for requests about one member.
    /// It shares connection and token.
    pub fn only(&self, endpoint: &str) -> Result<Client> {
        let is_named = |known: &&Arc<Endpoint>| {
            known.url == endpoint
                || known.url.split_once("://").is_some_and(|(_, address)| address == endpoint)
        };
        let found = self.endpoints.all().iter().find(is_named).map(Arc::clone);
        let unknown = || Error::Setup(format!("{endpoint} is none of the client's endpoints"));
        let endpoints = Arc::new(Endpoints::from_endpoints(vec![found.ok_or_else(unknown)?])?);
        Ok(Client { options_and_token: Arc::clone(&self.options_and_token), endpoints })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_be_spawned(_: impl Send) {}

    /// Both are moved into a task.
    async fn work(client: Client, mut watch: Watch, mut kept: KeepAlive) {
        may_be_spawned(client.get("a"));
        may_be_spawned(client.txn(Txn::new()));
        may_be_spawned(client.watch("a"));
        may_be_spawned(client.keep_alive(7));
        may_be_spawned(client.snapshot(Vec::new()));
        may_be_spawned(client.campaign("a", 7, "me"));
        may_be_spawned(client.observe("a").next());
        may_be_spawned(watch.next());
        may_be_spawned(kept.ended());
    }

    /// That it compiles is the test.
    #[test]
    fn everything_may_be_spawned() {
        may_be_spawned(work);
        may_be_spawned(Client::connect(["127.0.0.1:1"], Options::new()));
    }
}
