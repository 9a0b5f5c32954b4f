//! Tests how test servers start, keep their data over a restart, and stop when the values that own
//! them are dropped. The following command measures how long servers take to start:
//!
//! ```text
//! cargo test --release -p clearlane-test-server --test servers one_after -- --nocapture
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and reports"
)]

use std::time::{Duration, Instant};

use clearlane_client::{Client, Options};
use clearlane_test_server::{Error, TestCluster, TestServer};

#[tokio::test]
async fn a_server_keeps_its_data_and_address_over_a_restart() {
    let mut server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    let endpoint = server.endpoint();
    client.put("a", "1").await.unwrap();
    server.restart().await.unwrap();
    assert_eq!(server.endpoint(), endpoint);
    let found = client.get("a").await.unwrap();
    assert_eq!(found.value().unwrap(), "1");
}

#[tokio::test]
async fn servers_start_one_after_another() {
    for members in [1, 3] {
        let mut times = Vec::new();
        for _ in 0..10 {
            let begin = Instant::now();
            let cluster = TestCluster::start(members).await.unwrap();
            let client = cluster.client().await.unwrap();
            times.push(begin.elapsed());
            client.put("a", "1").await.unwrap();
        }
        times.sort();
        println!("{members} members and a client: {:?} (median)", times[times.len() / 2]);
    }
}

#[tokio::test]
async fn servers_know_nothing_of_each_other() {
    let (one, other) = (TestServer::start().await.unwrap(), TestServer::start().await.unwrap());
    one.client().await.unwrap().put("a", "1").await.unwrap();
    let there = other.client().await.unwrap().get("a").await.unwrap();
    assert_eq!(there.count, 0);
}

#[tokio::test]
async fn a_server_goes_with_its_value_and_so_does_its_directory() {
    let seen = std::sync::Mutex::new(None);
    let look = |start: &mut clearlane_test_server::MemberConfig| {
        *seen.lock().unwrap() = Some(start.data_dir.clone());
    };
    let server = TestServer::start_with(look).await.unwrap();
    let (endpoint, client) = (server.endpoint(), server.client().await.unwrap());
    client.put("a", "1").await.unwrap();
    let directory = seen.lock().unwrap().clone().unwrap();
    assert!(directory.exists());
    drop(server);
    assert!(!directory.exists());
    let options = Options::new().connect_timeout(Duration::from_millis(200));
    // The server closes its port shortly after its owner was dropped.
    while Client::connect([&endpoint], options.clone()).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_cluster_goes_on_with_two_of_three() {
    let mut cluster = TestCluster::start(3).await.unwrap();
    let client = cluster.client().await.unwrap();
    client.put("a", "1").await.unwrap();
    let leader = cluster.leader().await.unwrap();
    cluster.stop(leader).await.unwrap();
    assert!(!cluster.is_running(leader));
    let next = cluster.leader().await.unwrap();
    assert_ne!(next, leader);
    client.put("a", "2").await.unwrap();
    cluster.restart(leader).await.unwrap();
    let back = client.only(&cluster.endpoints()[leader]).unwrap();
    assert_eq!(back.get("a").await.unwrap().value().unwrap(), "2");
    assert!(matches!(cluster.stop(3).await, Err(Error::NoSuchMember(3))));
}
