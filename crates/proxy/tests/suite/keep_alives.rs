//! Keep-alives of many leases, at a member that renews the leases of a stream one after the other.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::LeaseKeepAliveRequest;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proxy::lease::pipeline::STREAMS_MAX;
use tonic::Code;
use tonic::transport::Channel;

use crate::member::{Member, TTL};
use crate::running::{RunningProxy, TIMEOUT, config, until};

/// Renews these leases over one stream. Returns the leases that were renewed.
async fn renew(channel: Channel, leases: Vec<i64>) -> Result<BTreeSet<i64>, tonic::Status> {
    let requests = tokio_stream::iter(leases.into_iter().map(|id| LeaseKeepAliveRequest { id }));
    let mut client = LeaseClient::new(channel);
    let mut answers = client.lease_keep_alive(requests).await?.into_inner();
    let mut renewed = BTreeSet::new();
    while let Some(answer) = answers.message().await? {
        assert_eq!(answer.ttl, TTL);
        assert!(renewed.insert(answer.id), "one answer for each request");
    }
    Ok(renewed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_leases_are_renewed_in_time() {
    const LEASES: i64 = 10_000;
    let member = Member::start().await;
    *member.state.renewal_time.lock() = Duration::from_millis(1);
    let proxy = RunningProxy::start(config(&member), None).await;
    let channel = proxy.connect().await;
    let begin = Instant::now();
    let clients = (0..10).map(|client| {
        let leases = (client * LEASES / 10..(client + 1) * LEASES / 10).collect();
        tokio::spawn(renew(channel.clone(), leases))
    });
    let mut renewed = BTreeSet::new();
    for client in clients.collect::<Vec<_>>() {
        renewed.extend(client.await.unwrap().unwrap());
    }
    assert_eq!(renewed, (0..LEASES).collect());
    // One after the other, they would take at least ten seconds.
    println!("{LEASES} leases: {:?}", begin.elapsed());
    let counts = &member.state.counts;
    let streams = counts.keep_alive_streams_max.load(Ordering::SeqCst);
    assert!((2..=STREAMS_MAX).contains(&streams), "{streams} streams");
    assert_eq!(counts.renewals.load(Ordering::SeqCst), LEASES as u64, "each lease once");
}

#[tokio::test]
async fn a_quick_member_needs_one_stream() {
    let member = Member::start().await;
    let proxy = RunningProxy::start(config(&member), None).await;
    let channel = proxy.connect().await;
    for _ in 0..20 {
        assert_eq!(renew(channel.clone(), (0..500).collect()).await.unwrap().len(), 500);
    }
    assert_eq!(member.state.counts.keep_alive_streams_max.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_rejected_renewal_concerns_its_own_lease() {
    let member = Member::start().await;
    *member.state.renewal_time.lock() = Duration::from_millis(1);
    member.state.rejected_leases.lock().extend([7, 70]);
    let proxy = RunningProxy::start(config(&member), None).await;
    let channel = proxy.connect().await;
    let clients: Vec<_> =
        (0..300).map(|lease| (lease, tokio::spawn(renew(channel.clone(), vec![lease])))).collect();
    for (lease, client) in clients {
        let renewed = tokio::time::timeout(TIMEOUT, client).await.unwrap().unwrap();
        match [7, 70].contains(&lease) {
            true => assert_eq!(renewed.unwrap_err().code(), Code::PermissionDenied, "{lease}"),
            false => assert_eq!(renewed.unwrap(), BTreeSet::from([lease])),
        }
    }
    // When no client is left, the streams end.
    let streams = &member.state.counts.keep_alive_streams;
    until("no stream is open", || streams.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn a_stream_without_answers_is_replaced() {
    let member = Member::start().await;
    *member.state.renewal_time.lock() = Duration::from_secs(3600);
    let proxy = RunningProxy::start(config(&member), None).await;
    let channel = proxy.connect().await;
    let begin = Instant::now();
    let error = renew(channel.clone(), vec![1]).await.unwrap_err();
    assert_eq!(error.message(), "etcdserver: request timed out");
    assert!(begin.elapsed() >= Duration::from_secs(5), "{:?}", begin.elapsed());
    // The stream still waits for the renewal of lease 1. The member would answer a new stream.
    *member.state.renewal_time.lock() = Duration::ZERO;
    while renew(channel.clone(), vec![2]).await.is_err() {
        assert!(begin.elapsed() < TIMEOUT, "the stream is never replaced");
    }
}

#[tokio::test]
async fn rejections_show_that_the_member_answers() {
    const LEASES: i64 = 50;
    let member = Member::start().await;
    *member.state.renewal_time.lock() = Duration::from_millis(140);
    member.state.rejected_leases.lock().extend(0..LEASES);
    let proxy = RunningProxy::start(config(&member), None).await;
    let channel = proxy.connect().await;
    let begin = Instant::now();
    let clients: Vec<_> =
        (0..LEASES).map(|lease| tokio::spawn(renew(channel.clone(), vec![lease]))).collect();
    for client in clients {
        // The last one waits longer than for a member that is silent.
        assert_eq!(client.await.unwrap().unwrap_err().code(), Code::PermissionDenied);
    }
    assert!(begin.elapsed() > Duration::from_secs(6), "{:?}", begin.elapsed());
}
