//! Tests of many watchers, slow watchers, and watchers that disconnect: other watchers get their
//! events in time.

use std::time::Duration;

use clearlane_backend::Era;
use clearlane_mvcc::watch::WatchMetrics;
use clearlane_proto::etcdserverpb::WatchCreateRequest;
use tokio::task::JoinSet;

use crate::client::{of_key, of_letter};
use crate::support::{in_eras, in_every_era};

/// Number of watchers in each stream.
const TOGETHER: i64 = 10;

#[test]
fn a_thousand_watchers_of_one_key() {
    in_every_era(async |server| {
        let mut streams = Vec::new();
        let mut client = server.client().await;
        for _ in 0..100 {
            let mut stream = client.stream().await;
            for _ in 0..TOGETHER {
                stream.create(of_key("a"));
            }
            for id in 0..TOGETHER {
                assert_eq!(stream.next().await.watch_id, id);
            }
            streams.push(stream);
        }
        let figures = server.figures();
        assert_eq!((figures.streams, figures.watchers, figures.unsynced), (100, 1000, 0));
        let puts = 20;
        let mut readers = JoinSet::new();
        for mut stream in streams {
            readers.spawn(async move {
                let mut next = [2; TOGETHER as usize];
                while next.iter().any(|next| *next < 2 + puts) {
                    let response = stream.next().await;
                    let next = &mut next[response.watch_id as usize];
                    for event in response.events {
                        assert_eq!(event.kv.unwrap().mod_revision, *next);
                        *next += 1;
                    }
                }
            });
        }
        for _ in 0..puts {
            client.put("a", "1").await;
        }
        while let Some(done) = readers.join_next().await {
            done.unwrap();
        }
        server.until(|figures| *figures == WatchMetrics::default()).await;
    });
}

/// A stream that is not read keeps a bounded number of events. Another stream of the same key gets
/// its events promptly, and in the end the slow stream also gets all events.
#[test]
fn a_slow_reader_disturbs_no_other() {
    in_eras([Era::Clearlane, Era::V3_5], async |server| {
        let (mut client, mut other) = (server.client().await, server.client().await);
        let mut slow = client.watcher(of_key("a")).await;
        let mut prompt = other.watcher(of_key("a")).await;
        let mut last = 1;
        let value = vec![7; 100_000];
        // The socket and the channel hold some events. When both are full, the watcher becomes
        // unsynced.
        while server.figures().unsynced == 0 {
            last = other.put("a", value.clone()).await;
            prompt.revisions(last, last).await;
            assert!(last < 300, "it keeps too much");
        }
        for _ in 0..50 {
            last = other.put("a", value.clone()).await;
            prompt.revisions(last, last).await;
        }
        slow.revisions(2, last).await;
        server.until(|figures| figures.unsynced == 0).await;
    });
}

/// Clients drop their streams and connections without canceling their watchers. Afterwards no
/// stream and no watcher may be left.
#[test]
fn whoever_goes_without_a_word_leaves_nothing() {
    in_every_era(async |server| {
        let mut writer = server.client().await;
        for round in 0..20 {
            let mut client = server.client().await;
            let mut streams = Vec::new();
            for number in 0..10 {
                let stream = client.stream().await;
                let start_revision = i64::from(number % 3 == 0);
                stream.create(WatchCreateRequest { start_revision, ..of_letter(b'a') });
                stream.create(of_key("z"));
                streams.push(stream);
            }
            writer.put(&format!("a{round}"), "1").await;
            if round % 2 == 0 {
                // The first stream reads one response before it is dropped. All other responses are
                // dropped unread.
                streams[0].next().await;
            }
            drop(streams);
        }
        server.until(|figures| *figures == WatchMetrics::default()).await;
        writer.put("a", "1").await;
    });
}

/// A client reads a long history while others put keys. All puts must succeed, and the watcher must
/// get all events in order.
#[test]
fn a_long_past_is_told_while_others_write() {
    in_every_era(async |server| {
        let mut client = server.client().await;
        let history = 3000;
        let mut writers = JoinSet::new();
        for writer in 0..30 {
            let mut client = client.clone();
            writers.spawn(async move {
                for _ in 0..history / 30 {
                    client.put(&format!("a{writer}"), vec![1; 500]).await;
                }
            });
        }
        while let Some(done) = writers.join_next().await {
            done.unwrap();
        }
        let from_one = WatchCreateRequest { start_revision: 1, ..of_letter(b'a') };
        let mut stream = client.watcher(from_one).await;
        let reader = tokio::spawn(async move { stream.revisions(2, history + 101).await });
        for revision in 1..=100 {
            assert_eq!(client.put("a", "1").await, history + 1 + revision);
        }
        tokio::time::timeout(Duration::from_secs(60), reader).await.unwrap().unwrap();
    });
}
