//! Watches: their events, the order of the events, and how a watch ends.

use clearlane_compat_etcd_client::{Cluster, next, soon};
use etcd_client::{
    Client, EventType, Txn, TxnOp, WatchFilterType, WatchOptions, WatchResponse, WatchStream,
};
use tokio_stream::StreamExt;

/// Returns the events of a message in short form: `+key=value` for a put, `-key` for a delete.
fn told(message: &WatchResponse) -> Vec<String> {
    let told = message.events().iter().map(|event| {
        let kv = event.kv().unwrap();
        match event.event_type() {
            EventType::Put => format!("+{}={}", kv.key_str().unwrap(), kv.value_str().unwrap()),
            EventType::Delete => format!("-{}", kv.key_str().unwrap()),
        }
    });
    told.collect()
}

/// Reads messages until `count` events have arrived.
async fn events(stream: &mut WatchStream, count: usize) -> Vec<String> {
    let mut come = Vec::new();
    while come.len() < count {
        let message = next(stream).await;
        assert!(!message.canceled(), "{message:?}");
        come.extend(told(&message));
    }
    come
}

/// Starts a watch and reads the message that confirms it.
async fn watching(client: &mut Client, key: &str, options: WatchOptions) -> WatchStream {
    let mut stream = client.watch(key, Some(options)).await.unwrap();
    let created = next(&mut stream).await;
    assert!(created.created() && !created.canceled() && created.events().is_empty());
    stream
}

#[tokio::test]
async fn what_happens_is_told() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let mut stream = client.watch("key", None).await.unwrap();
    let created = next(&mut stream).await;
    assert_eq!((created.created(), created.watch_id()), (true, 0));
    assert_eq!(created.header().unwrap().revision(), 1);

    client.put("other", "0", None).await.unwrap();
    client.put("key", "1", None).await.unwrap();
    let mut message = next(&mut stream).await;
    assert_eq!((message.created(), message.canceled(), message.watch_id()), (false, false, 0));
    assert_eq!((message.compact_revision(), message.cancel_reason()), (0, ""));
    assert_eq!(told(&message), ["+key=1"]);
    let kv = message.events()[0].kv().unwrap();
    assert_eq!((kv.create_revision(), kv.mod_revision(), kv.version()), (3, 3, 1));
    assert!(message.events()[0].prev_kv().is_none());
    assert_eq!(message.take_header().unwrap().revision(), 3);

    client.delete("key", None).await.unwrap();
    let message = next(&mut stream).await;
    assert_eq!(told(&message), ["-key"]);
    let kv = message.events()[0].kv().unwrap();
    assert_eq!((kv.mod_revision(), kv.create_revision(), kv.version()), (4, 0, 0));
}

#[tokio::test]
async fn ranges_of_every_form() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    for key in ["a", "b", "b1", "b2", "c"] {
        client.put(key, "", None).await.unwrap();
    }
    let old = WatchOptions::new().with_start_revision(2);
    for (key, options, found) in [
        ("b", old.clone(), "b"),
        ("b", old.clone().with_range("b2"), "b b1"),
        ("b1", old.clone().with_from_key(), "b1 b2 c"),
        ("b", old.clone().with_prefix(), "b b1 b2"),
        ("", old.clone().with_prefix(), "a b b1 b2 c"),
        ("x", old.clone().with_all_keys(), "a b b1 b2 c"),
    ] {
        let mut stream = watching(&mut client, key, options.clone()).await;
        let wanted: Vec<_> = found.split_whitespace().map(|key| format!("+{key}=")).collect();
        assert_eq!(events(&mut stream, wanted.len()).await, wanted, "{key} {options:?}");
    }
}

#[tokio::test]
async fn from_the_past_into_the_present() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    for n in 0..100 {
        client.put("key", n.to_string(), None).await.unwrap();
    }
    let old = WatchOptions::new().with_start_revision(12);
    let mut stream = watching(&mut client, "key", old).await;
    for n in 100..150 {
        client.put("key", n.to_string(), None).await.unwrap();
    }
    let wanted: Vec<_> = (10..150).map(|n| format!("+key={n}")).collect();
    assert_eq!(events(&mut stream, wanted.len()).await, wanted);
}

#[tokio::test]
async fn from_the_future_on() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let later = WatchOptions::new().with_start_revision(4);
    let mut stream = watching(&mut client, "key", later).await;
    for n in 2..6 {
        client.put("key", n.to_string(), None).await.unwrap();
    }
    assert_eq!(events(&mut stream, 2).await, ["+key=4", "+key=5"]);
}

#[tokio::test]
async fn a_transaction_comes_whole() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    client.put("key2", "", None).await.unwrap();
    let mut stream = watching(&mut client, "key", WatchOptions::new().with_prefix()).await;
    let ops =
        [TxnOp::put("key1", "1", None), TxnOp::delete("key2", None), TxnOp::put("x", "", None)];
    client.txn(Txn::new().and_then(ops)).await.unwrap();
    let message = next(&mut stream).await;
    assert_eq!(told(&message), ["+key1=1", "-key2"]);
    assert!(message.events().iter().all(|event| event.kv().unwrap().mod_revision() == 3));
}

#[tokio::test]
async fn what_is_filtered_does_not_come() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    for (filters, wanted) in [
        (vec![WatchFilterType::NoPut], ["-key", "-key"]),
        (vec![WatchFilterType::NoDelete], ["+key=1", "+key=2"]),
    ] {
        let options = WatchOptions::new().with_filters(filters);
        let mut stream = watching(&mut client, "key", options).await;
        for value in ["1", "2"] {
            client.put("key", value, None).await.unwrap();
            client.delete("key", None).await.unwrap();
        }
        assert_eq!(events(&mut stream, 2).await, wanted);
    }
}

#[tokio::test]
async fn what_was_there_before_comes_along() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let options = WatchOptions::new().with_prev_key();
    let mut stream = watching(&mut client, "key", options.clone()).await;
    client.put("key", "1", None).await.unwrap();
    client.put("key", "2", None).await.unwrap();
    client.delete("key", None).await.unwrap();
    let mut past = watching(&mut client, "key", options.with_start_revision(2)).await;
    for stream in [&mut stream, &mut past] {
        let mut before = Vec::new();
        while before.len() < 3 {
            for event in next(stream).await.events() {
                before.push(event.prev_kv().map(|kv| kv.value_str().unwrap().to_owned()));
            }
        }
        assert_eq!(before, [None, Some("1".to_owned()), Some("2".to_owned())]);
    }
}

#[tokio::test]
async fn the_compacted_past_cannot_be_watched() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    for n in 2..8 {
        client.put("key", n.to_string(), None).await.unwrap();
    }
    client.compact(5, None).await.unwrap();
    let old = WatchOptions::new().with_start_revision(3);
    let mut stream = client.watch("key", Some(old)).await.unwrap();
    assert!(next(&mut stream).await.created());
    let message = next(&mut stream).await;
    assert!(message.canceled() && message.events().is_empty());
    assert_eq!(message.compact_revision(), 5);
    // The stream remains usable for another watch.
    let kept = WatchOptions::new().with_start_revision(6);
    stream.watch("key", Some(kept)).await.unwrap();
    assert!(next(&mut stream).await.created());
    assert_eq!(events(&mut stream, 2).await, ["+key=6", "+key=7"]);
}

#[tokio::test]
async fn several_on_one_stream() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let mut stream = watching(&mut client, "a", WatchOptions::new()).await;
    let named = WatchOptions::new().with_watch_id(70);
    stream.watch("b", Some(named)).await.unwrap();
    let created = next(&mut stream).await;
    assert_eq!((created.created(), created.watch_id()), (true, 70));
    stream.watch("c", None).await.unwrap();
    let third = next(&mut stream).await;
    assert!(third.created() && third.watch_id() != 0 && third.watch_id() != 70);

    for key in ["c", "b", "a"] {
        client.put(key, "1", None).await.unwrap();
    }
    let mut come = Vec::new();
    for _ in 0..3 {
        let message = next(&mut stream).await;
        come.push((told(&message).remove(0), message.watch_id()));
    }
    come.sort();
    let wanted = [("+a=1", 0), ("+b=1", 70), ("+c=1", third.watch_id())];
    assert_eq!(come, wanted.map(|(event, id)| (event.to_owned(), id)));

    // This watch ID is already in use.
    stream.watch("d", Some(WatchOptions::new().with_watch_id(70))).await.unwrap();
    let refused = next(&mut stream).await;
    assert!(refused.canceled() && refused.created(), "{refused:?}");
    assert_eq!(refused.watch_id(), -1);
    assert_eq!(refused.cancel_reason(), "mvcc: duplicate watch ID provided on the WatchStream");
}

#[tokio::test]
async fn a_cancelled_watch_is_silent() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let mut stream = watching(&mut client, "a", WatchOptions::new()).await;
    stream.watch("b", Some(WatchOptions::new().with_watch_id(5))).await.unwrap();
    assert!(next(&mut stream).await.created());
    stream.cancel(0).await.unwrap();
    let message = next(&mut stream).await;
    assert_eq!((message.canceled(), message.watch_id()), (true, 0));
    assert_eq!(message.compact_revision(), 0);
    client.put("a", "1", None).await.unwrap();
    client.put("b", "1", None).await.unwrap();
    let message = next(&mut stream).await;
    assert_eq!((message.watch_id(), told(&message)), (5, vec!["+b=1".to_owned()]));
    // The ID of a cancelled watch can be used again.
    stream.watch("a", Some(WatchOptions::new().with_watch_id(9))).await.unwrap();
    assert_eq!(next(&mut stream).await.watch_id(), 9);
}

#[tokio::test]
async fn progress_on_request() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let mut stream = watching(&mut client, "key", WatchOptions::new()).await;
    for _ in 0..5 {
        client.put("other", "", None).await.unwrap();
    }
    stream.request_progress().await.unwrap();
    let message = next(&mut stream).await;
    assert_eq!((message.watch_id(), message.events().len()), (-1, 0));
    assert_eq!(message.header().unwrap().revision(), 6);
    assert!(!message.created() && !message.canceled());
}

#[tokio::test]
async fn progress_from_time_to_time() {
    let cluster = Cluster::of(1, &["--watch-progress-notify-interval", "200ms"]).await;
    let mut client = cluster.client().await;
    let options = WatchOptions::new().with_progress_notify();
    let mut stream = watching(&mut client, "key", options).await;
    client.put("other", "", None).await.unwrap();
    loop {
        let message = next(&mut stream).await;
        assert_eq!((message.watch_id(), message.events().len()), (0, 0));
        if message.header().unwrap().revision() == 2 {
            break;
        }
    }
}

#[tokio::test]
async fn large_ones_come_in_fragments_or_whole() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    for n in 0..6 {
        client.put(format!("key{n}"), vec![b'v'; 1 << 20], None).await.unwrap();
    }
    let old = WatchOptions::new().with_prefix().with_start_revision(2);
    let fragments = Some(old.clone().with_fragment());
    let mut pieces = client.watch("key", fragments).await.unwrap();
    let mut large = client.watch_client().max_decoding_message_size(64 << 20);
    let mut whole = large.watch("key", Some(old)).await.unwrap();
    for stream in [&mut pieces, &mut whole] {
        assert!(next(stream).await.created());
        let mut keys = Vec::new();
        while keys.len() < 6 {
            for event in next(stream).await.events() {
                let kv = event.kv().unwrap();
                assert_eq!(kv.value().len(), 1 << 20);
                keys.push(kv.key_str().unwrap().to_owned());
            }
        }
        assert_eq!(keys, ["key0", "key1", "key2", "key3", "key4", "key5"]);
    }
}

#[tokio::test]
async fn both_halves_apart() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let stream = watching(&mut client, "a", WatchOptions::new()).await;
    let (mut sender, mut receiver) = stream.split();
    sender.watch("b", Some(WatchOptions::new().with_watch_id(3))).await.unwrap();
    let message = async |receiver: &mut etcd_client::WatchResponseStream| {
        soon("a message", receiver.message()).await.unwrap().unwrap()
    };
    assert!(message(&mut receiver).await.created());
    sender.request_progress().await.unwrap();
    assert_eq!(message(&mut receiver).await.watch_id(), -1);
    sender.cancel(3).await.unwrap();
    assert!(message(&mut receiver).await.canceled());
    // A client that has closed its request stream still receives events.
    drop(sender);
    client.put("b", "1", None).await.unwrap();
    client.put("a", "1", None).await.unwrap();
    let item = soon("an item", receiver.next()).await.unwrap().unwrap();
    assert_eq!(told(&item), ["+a=1"]);
}

#[tokio::test]
async fn many_watchers_hear_the_same() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        streams.push(watching(&mut client, "key", WatchOptions::new()).await);
    }
    for n in 0..10 {
        client.put("key", n.to_string(), None).await.unwrap();
    }
    let wanted: Vec<_> = (0..10).map(|n| format!("+key={n}")).collect();
    for stream in &mut streams {
        assert_eq!(events(stream, 10).await, wanted);
    }
}
