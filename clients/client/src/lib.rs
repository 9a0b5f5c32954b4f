//! A client of etcd's API, version 3, for a cluster with one or more endpoints.
//!
//! | module | decision |
//! |---|---|
//! | `endpoint` | the endpoints to try: after a failure, an endpoint is checked at intervals |
//! | `call` | the requests to send again: a write only if it certainly was not carried out |
//! | `watch` | the revision at which a stream resumes: every event arrives once and in order |
//! | `lease` | the time at which a lease is considered lost, which is never too late |
//! | `error` | one variant for each reaction of a caller |
//!
//! A clone of a [`Client`] is cheap, and shares connections and token. A client works only in the
//! tokio runtime that created it. There is no cache, no namespace, and no call for users and roles.
//! The client does not learn endpoints from the member list. See `docs/client.md`.
#![doc = ""]
#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

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

/// The messages of etcd's API, which requests and replies contain.
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

/// The data that all clones of a client share.
#[derive(Debug)]
struct OptionsAndToken {
    options: Options,
    /// The token. `None` until it is fetched, and `Some(None)` if no token is needed.
    token: Mutex<Option<Option<Token>>>,
}

impl Client {
    /// Connects to a cluster. Checks all endpoints at the same time, until one has responded. Then
    /// fetches a token, if the options have a user. An endpoint is `http://host:port`,
    /// `https://host:port` or `host:port`.
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

    /// Returns the URLs of all endpoints.
    pub fn endpoints(&self) -> Vec<String> {
        self.endpoints.all().iter().map(|endpoint| endpoint.url.clone()).collect()
    }

    /// Returns a client of one of the [`endpoints`](Client::endpoints), for requests about one
    /// member. It shares the connection and the token with this client.
    pub fn only(&self, endpoint: &str) -> Result<Client> {
        let is_named = |known: &&Arc<Endpoint>| {
            known.url == endpoint
                || known.url.split_once("://").is_some_and(|(_, address)| address == endpoint)
        };
        let found = self.endpoints.all().iter().find(is_named).map(Arc::clone);
        let unknown = || Error::Setup(format!("the client has no endpoint {endpoint}"));
        let endpoints = Arc::new(Endpoints::from_endpoints(vec![found.ok_or_else(unknown)?])?);
        Ok(Client { options_and_token: Arc::clone(&self.options_and_token), endpoints })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_be_spawned(_: impl Send) {}

    /// Checks that the futures of a client, a watch and a keep-alive are `Send`.
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

    /// The test passes if this function compiles.
    #[test]
    fn everything_may_be_spawned() {
        may_be_spawned(work);
        may_be_spawned(Client::connect(["127.0.0.1:1"], Options::new()));
    }
}
