//! Tests that each event is delivered once and in order.

use std::time::Duration;

use clearlane_client::proto::etcdserverpb::watch_create_request::FilterType;
use clearlane_client::{Client, Error, Event, Keys, Options, Put, Txn, Watch, WatchKeys};
use clearlane_test_server::TestServer;

use crate::proxy::{Proxy, ProxyState};
use crate::{wait_until, with_timeout};

async fn next(watch: &mut Watch) -> Event {
    with_timeout(watch.next()).await.unwrap().unwrap()
}

#[tokio::test]
async fn events_come_as_they_happen_and_say_what_was_before() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    let mut watch = client.watch(WatchKeys::prefix("a").prev_kv()).await.unwrap();
    assert_eq!(watch.start_revision(), 2);
    client.put("a1", "x").await.unwrap();
    client.put("b", "not watched").await.unwrap();
    client.put("a1", "y").await.unwrap();
    client.delete("a1").await.unwrap();
    let event = next(&mut watch).await;
    assert!(event.is_put() && event.prev_kv().is_none() && event.revision() == 2);
    let event = next(&mut watch).await;
    assert_eq!(
        (&event.kv().value[..], &event.prev_kv().unwrap().value[..]),
        (&b"y"[..], &b"x"[..])
    );
    assert_eq!(watch.revision(), 4);
    let event = next(&mut watch).await;
    assert!(!event.is_put() && event.prev_kv().unwrap().value == "y");
}

#[tokio::test]
async fn a_watch_from_the_past_brings_history_and_filters() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    for value in ["1", "2"] {
        client.put("a", value).await.unwrap();
        client.delete("a").await.unwrap();
    }
    for (filter, revisions) in [(FilterType::Nodelete, [2, 4]), (FilterType::Noput, [3, 5])] {
        let mut watch = WatchKeys::from("a").from_revision(2);
        watch.request.filters.push(filter.into());
        let mut watch = client.watch(watch).await.unwrap();
        let seen = [next(&mut watch).await.revision(), next(&mut watch).await.revision()];
        assert_eq!(seen, revisions);
    }
}

#[tokio::test]
async fn a_revision_comes_whole_however_long_it_is() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    // The puts of two revisions together exceed the maximum size of a message, 2 MiB.
    let put = |of: usize| Put::new(format!("k{of}"), vec![7; 200_000]);
    for _ in 0..4 {
        client.txn((0..7).map(put).fold(Txn::new(), Txn::then)).await.unwrap();
    }
    let mut watch = client.watch(WatchKeys::prefix("k").from_revision(2)).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 28 {
        let batch = with_timeout(watch.next_batch()).await.unwrap().unwrap();
        assert_eq!(batch.revision, batch.events.last().unwrap().revision());
        let of_last = |event: &&Event| event.revision() == batch.revision;
        assert_eq!(batch.events.iter().filter(of_last).count(), 7, "all of a revision");
        seen.extend(batch.events.iter().map(Event::revision));
    }
    assert_eq!(seen, [[2; 7], [3; 7], [4; 7], [5; 7]].concat());
}

#[tokio::test]
async fn progress_is_told_when_it_is_asked_for() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    let mut watch = client.watch("a").await.unwrap();
    client.put("b", "1").await.unwrap();
    let put = client.put("b", "2").await.unwrap();
    let progress = with_timeout(async {
        loop {
            watch.request_progress();
            // The server may ignore a progress request, so the client sends it again.
            let batch = tokio::time::timeout(Duration::from_millis(200), watch.next_batch()).await;
            if let Ok(batch) = batch {
                break batch.unwrap().unwrap();
            }
        }
    })
    .await;
    assert_eq!(
        (progress.events.len(), progress.revision, watch.revision()),
        (0, put.revision(), 3)
    );
}

#[tokio::test]
async fn a_watch_goes_on_after_its_server_was_away() {
    let mut server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    let mut watch = client.watch(Keys::all()).await.unwrap();
    client.put("a", "1").await.unwrap();
    assert_eq!(next(&mut watch).await.revision(), 2);
    client.put("a", "2").await.unwrap();
    server.restart().await.unwrap();
    // The first put may use a broken connection, and its outcome is then unknown. So the put is
    // tried again.
    while client.put("a", "3").await.is_err() {}
    assert_eq!(next(&mut watch).await.revision(), 3);
    assert_eq!(next(&mut watch).await.revision(), 4);
}

#[tokio::test]
async fn what_was_compacted_meanwhile_is_told_with_its_revision() {
    let server = TestServer::start().await.unwrap();
    let direct = server.client().await.unwrap();
    let proxy = Proxy::start(&server.endpoint()).await;
    let client = Client::connect([proxy.endpoint()], Options::new()).await.unwrap();
    let mut watch = client.watch("a").await.unwrap();
    let mut lucky = client.watch("a").await.unwrap();
    direct.put("a", "1").await.unwrap();
    assert_eq!(next(&mut watch).await.revision(), 2);
    assert_eq!(next(&mut lucky).await.revision(), 2);
    proxy.set(ProxyState::Cut);
    drop(lucky);
    for _ in 0..5 {
        direct.put("a", "2").await.unwrap();
    }
    direct.compact(6).await.unwrap();
    proxy.set(ProxyState::Open);
    let error = with_timeout(watch.next()).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Compacted { compact_revision: Some(6) }), "{error:?}");
    assert!(watch.next().await.is_none());
    let mut watch = client.watch(WatchKeys::from("a").from_revision(6)).await.unwrap();
    assert_eq!(next(&mut watch).await.revision(), 6);
}

#[tokio::test]
async fn a_cable_that_breaks_again_and_again_loses_nothing_and_repeats_nothing() {
    let server = TestServer::start().await.unwrap();
    let direct = server.client().await.unwrap();
    let proxy = Proxy::start(&server.endpoint()).await;
    let client = Client::connect([proxy.endpoint()], Options::new()).await.unwrap();
    let mut watch = client.watch(Keys::prefix("k")).await.unwrap();
    let mut expected = 2..;
    for round in 0..20 {
        for _ in 0..3 {
            direct.put("k", "v").await.unwrap();
        }
        // Each round writes three events. In some rounds the test reads all events before it cuts
        // the connection, in other rounds only some or none.
        let reads = [3, 0, 1, 5][round % 4];
        for revision in expected.by_ref().take(reads) {
            assert_eq!(next(&mut watch).await.revision(), revision);
        }
        proxy.set(ProxyState::Cut);
        proxy.set(ProxyState::Open);
    }
    for revision in expected.take_while(|revision| *revision <= 61) {
        assert_eq!(next(&mut watch).await.revision(), revision);
    }
}

/// Returns the number of watchers, from the server's metrics page.
async fn watchers(endpoint: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let address = endpoint.strip_prefix("http://").unwrap();
    let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
    let ask = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    connection.write_all(ask).await.unwrap();
    let mut page = String::new();
    connection.read_to_string(&mut page).await.unwrap();
    let line =
        page.lines().find_map(|line| line.strip_prefix("etcd_debugging_mvcc_watcher_total "));
    line.unwrap().to_owned()
}

#[tokio::test]
async fn dropping_a_watch_cancels_it_at_the_server() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    let one = client.watch("a").await.unwrap();
    let other = client.watch("b").await.unwrap();
    assert_eq!(watchers(&server.endpoint()).await, "2");
    drop((one, other));
    wait_until("no client watches", async || watchers(&server.endpoint()).await == "0").await;
}
