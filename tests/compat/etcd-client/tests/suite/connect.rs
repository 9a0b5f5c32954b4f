//! Connecting: the options, the addresses, and later changes of the addresses.

use std::time::Duration;

use clearlane_compat_etcd_client::{Cluster, assert_refused, next, soon, until};
use etcd_client::{
    BalancedChannelBuilder, Channel, Client, ConnectOptions, Error, GetOptions, LeaseGrantOptions,
};
use tokio::sync::mpsc::Sender;
use tonic::Code;
use tonic::codegen::http::Uri;
use tonic::transport::Endpoint;
use tonic::transport::channel::Change;
use tower::util::BoxCloneSyncService;

/// Returns whether the result is the error of a client that reaches no server.
fn is_unreachable(answer: Result<etcd_client::GetResponse, Error>) -> bool {
    matches!(answer, Err(Error::GRpcStatus(_) | Error::TransportError(_)))
}

#[tokio::test]
async fn every_option_that_needs_no_users() {
    let cluster = Cluster::one().await;
    let second = Duration::from_secs(1);
    for options in [
        ConnectOptions::new(),
        ConnectOptions::default(),
        ConnectOptions::new().with_keep_alive(second, second),
        ConnectOptions::new().with_keep_alive(second, second).with_keep_alive_while_idle(false),
        ConnectOptions::new().with_timeout(20 * second),
        ConnectOptions::new().with_connect_timeout(20 * second),
        ConnectOptions::new().with_tcp_keepalive(second),
        ConnectOptions::new().with_require_leader(true),
        ConnectOptions::new().with_auto_token_refresh(true),
    ] {
        let mut client = cluster.client_with(options.clone()).await;
        client.put("key", "1", None).await.unwrap();
        assert_eq!(client.get("key", None).await.unwrap().count(), 1, "{options:?}");
    }
}

#[tokio::test]
async fn addresses_of_every_form() {
    let cluster = Cluster::one().await;
    let url = cluster.client_url(0);
    let bare = url.strip_prefix("http://").unwrap();
    for address in [&url, bare] {
        let mut client = Client::connect([address], None).await.unwrap();
        client.status().await.unwrap();
    }
    let none: [&str; 0] = [];
    assert!(matches!(Client::connect(none, None).await, Err(Error::InvalidArgs(_))));
    let secret = Client::connect(["https://127.0.0.1:1"], None).await;
    assert!(matches!(secret, Err(Error::InvalidArgs(_))));
    let wrong = Client::connect(["http://[x"], None).await;
    assert!(matches!(wrong, Err(Error::InvalidUri(_))));
}

#[tokio::test]
async fn pings_keep_a_quiet_connection() {
    let cluster = Cluster::one().await;
    let interval = Duration::from_secs(5);
    let options = ConnectOptions::new().with_keep_alive(interval, interval);
    let mut client = cluster.client_with(options).await;
    let mut watch = client.watch("key", None).await.unwrap();
    assert!(next(&mut watch).await.created());
    // Two pings are sent during this silence. A server that treats them as too many would end the
    // stream.
    let silence = tokio::time::timeout(Duration::from_secs(11), watch.message()).await;
    assert!(silence.is_err(), "{silence:?}");
    client.put("key", "1", None).await.unwrap();
    let message = next(&mut watch).await;
    assert_eq!(message.events().len(), 1);
}

#[tokio::test]
async fn users_are_asked_for_only_where_there_are_some() {
    let cluster = Cluster::one().await;
    let options = ConnectOptions::new().with_user("root", "secret");
    let refused = Client::connect(cluster.client_urls(), Some(options)).await;
    let words = "etcdserver: authentication is not enabled";
    assert_refused(refused.map(|_| ()), Code::FailedPrecondition, words);
    let mut client = cluster.client().await;
    client.refresh_token().await.unwrap();
    client.update_user(None).await.unwrap();
    let user = Some(("root".to_owned(), "secret".to_owned()));
    assert_refused(client.update_user(user).await, Code::FailedPrecondition, words);
    client.get("key", None).await.unwrap();
}

#[tokio::test]
async fn endpoints_come_and_go() {
    let (first, second) = (Cluster::one().await, Cluster::one().await);
    let mut client = first.client().await;
    client.put("first", "1", None).await.unwrap();
    client.add_endpoint(second.client_url(0)).await.unwrap();
    client.remove_endpoint(first.client_url(0)).await.unwrap();
    // The clusters are independent, so the responses show which cluster the client uses.
    until("the second is asked", || {
        let mut client = client.clone();
        async move { (client.get("first", None).await.ok()?.count() == 0).then_some(()) }
    })
    .await;
    client.put("second", "1", None).await.unwrap();
    assert_eq!(second.client().await.get("second", None).await.unwrap().count(), 1);
    let wrong = client.add_endpoint("https://127.0.0.1:1").await;
    assert!(matches!(wrong, Err(Error::InvalidArgs(_))));
    assert!(matches!(client.remove_endpoint("http://[x").await, Err(Error::InvalidUri(_))));
}

#[tokio::test]
async fn a_channel_made_elsewhere() {
    let cluster = Cluster::one().await;
    let endpoint = Endpoint::from_shared(cluster.client_url(0)).unwrap();
    let made = Channel::Tonic(endpoint.connect_lazy());
    let mut client = Client::from_channel(made, None).await.unwrap();
    client.put("key", "1", None).await.unwrap();
    let refused = client.add_endpoint(cluster.client_url(0)).await;
    assert!(matches!(refused, Err(Error::EndpointsNotManaged)));
    let refused = client.remove_endpoint(cluster.client_url(0)).await;
    assert!(matches!(refused, Err(Error::EndpointsNotManaged)));

    let service = tower::ServiceExt::map_err(endpoint.connect_lazy(), tower::BoxError::from);
    let own = Channel::Custom(BoxCloneSyncService::new(service));
    let mut client = Client::from_channel(own, None).await.unwrap();
    assert_eq!(client.get("key", None).await.unwrap().count(), 1);
}

struct OwnBalance;

impl BalancedChannelBuilder for OwnBalance {
    type Error = tonic::transport::Error;

    fn balanced_channel(
        self,
        buffer_size: usize,
    ) -> Result<(Channel, Sender<Change<Uri, Endpoint>>), Self::Error> {
        let (channel, sender) = tonic::transport::Channel::balance_channel(buffer_size);
        Ok((Channel::Tonic(channel), sender))
    }
}

#[tokio::test]
async fn a_balance_made_elsewhere() {
    let cluster = Cluster::one().await;
    let urls = cluster.client_urls();
    let client = Client::connect_with_balanced_channel(urls, None, OwnBalance).await;
    assert_eq!(client.unwrap().get("key", None).await.unwrap().count(), 0);
}

#[tokio::test]
async fn a_server_that_comes_back_is_found() {
    let mut cluster = Cluster::one().await;
    let mut client =
        cluster.client_with(ConnectOptions::new().with_timeout(Duration::from_secs(5))).await;
    client.put("key", "1", None).await.unwrap();
    cluster.stop(0);
    assert!(is_unreachable(soon("an answer", client.get("key", None)).await));
    cluster.start(0).await;
    let got = until("the server is found", || {
        let mut client = client.clone();
        async move { client.get("key", None).await.ok() }
    })
    .await;
    assert_eq!(got.kvs()[0].value(), b"1");
}

#[tokio::test]
async fn a_clone_is_as_good() {
    let cluster = Cluster::one().await;
    let client = cluster.client().await;
    let writers: Vec<_> = (0..8)
        .map(|n| {
            let mut client = client.clone();
            tokio::spawn(async move {
                for m in 0..20 {
                    client.put(format!("key{n}-{m}"), "", None).await.unwrap();
                }
                let grant = LeaseGrantOptions::new().with_id(n + 1);
                client.lease_grant(60, Some(grant)).await.unwrap();
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let count = GetOptions::new().with_prefix().with_count_only();
    assert_eq!(client.kv_client().get("key", Some(count)).await.unwrap().count(), 160);
    assert_eq!(client.lease_client().leases().await.unwrap().leases().len(), 8);
}
