//! Proxies that are each other's endpoint, and a chain of proxies.

use clearlane_proto::etcdserverpb::PutRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proxy::serve::{ProxyConfig, listen};
use clearlane_proxy::upstream::{MemberState, UpstreamConfig};
use tokio::time::timeout;
use tonic::Code;

use crate::log::Log;
use crate::member::Member;
use crate::running::{RunningProxy, TIMEOUT, config, until};

fn proxy_for(endpoint: String) -> ProxyConfig {
    let upstream = UpstreamConfig { endpoints: vec![endpoint], ..UpstreamConfig::default() };
    ProxyConfig { upstream, ..ProxyConfig::default() }
}

#[tokio::test]
async fn proxies_that_are_each_others_endpoint_notice_it() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let listeners = [(); 2].map(|()| listen("127.0.0.1:0".parse().unwrap()).unwrap());
    let [a, b] = [0, 1].map(|index| listeners[index].local_addr().unwrap());
    let [first, second] = listeners;
    let proxies = [
        RunningProxy::start_on(first, proxy_for(b.to_string()), None),
        RunningProxy::start_on(second, proxy_for(a.to_string()), None),
    ];
    until("a warning", || !log.lines_with("is one of its own endpoints").is_empty()).await;
    let put = PutRequest { key: "k".into(), ..PutRequest::default() };
    let mut client = KvClient::new(proxies[0].connect().await);
    let status = timeout(TIMEOUT, client.put(put)).await.unwrap().unwrap_err();
    // The call fails immediately if a connection was just opened, and otherwise after 3 s.
    let message = status.message();
    let is_loop = message.contains("is one of its own endpoints");
    assert!(is_loop || message.contains("no member of the cluster can be reached"), "{status:?}");
    assert!([Code::FailedPrecondition, Code::Unavailable].contains(&status.code()), "{status:?}");
}

#[tokio::test]
async fn a_chain_of_proxies_works() {
    let member = Member::start().await;
    let mut chain = vec![RunningProxy::start(config(&member), None).await];
    for _ in 0..3 {
        let next = chain[chain.len() - 1].address.to_string();
        chain.push(RunningProxy::start(proxy_for(next), None).await);
    }
    let last = &chain[chain.len() - 1];
    let upstream = &last.proxy.services().upstream;
    until("it is ready", || upstream.members()[0].state() == MemberState::Ready).await;
    let put = PutRequest { key: "k".into(), ..PutRequest::default() };
    timeout(TIMEOUT, KvClient::new(last.connect().await).put(put)).await.unwrap().unwrap();
    assert_eq!(member.count(|counts| &counts.puts), 1);
}
