//! Keys and values: put, get, delete, compact, with every option.

use clearlane_compat_etcd_client::{Cluster, assert_refused};
use etcd_client::{
    Client, CompactionOptions, DeleteOptions, Error, GetOptions, GetResponse, LeaseGrantOptions,
    PutOptions, SortOrder, SortTarget,
};
use tokio_stream::StreamExt;
use tonic::Code;

/// Returns the keys of a response, separated by commas.
fn keys(answer: &GetResponse) -> String {
    let keys: Vec<_> = answer.kvs().iter().map(|kv| kv.key_str().unwrap()).collect();
    keys.join(",")
}

/// Starts a server with the keys `a`, `b`, `b1`, `b2` and `c`, which are put in another order, at
/// revisions 2 to 7.
async fn five_keys() -> (Cluster, Client) {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    for (key, value) in [("b", "1"), ("c", "2"), ("a", "5"), ("b2", "4"), ("b1", "3"), ("c", "9")] {
        client.put(key, value, None).await.unwrap();
    }
    (cluster, client)
}

#[tokio::test]
async fn what_was_put_is_got() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let mut put = client.put("key", "value", None).await.unwrap();
    assert!(put.prev_key().is_none());
    let header = put.take_header().unwrap();
    assert_eq!(header.revision(), 2);
    assert!(put.header().is_none());

    let mut got = client.get("key", None).await.unwrap();
    let same = got.header().unwrap();
    assert_eq!(same.cluster_id(), header.cluster_id());
    assert_eq!(same.member_id(), header.member_id());
    assert_eq!(same.raft_term(), header.raft_term());
    assert!(same.cluster_id() != 0 && same.member_id() != 0 && same.raft_term() >= 2);
    assert_eq!((got.count(), got.more()), (1, false));
    let kv = got.take_kvs().remove(0);
    assert_eq!((kv.key(), kv.value()), (&b"key"[..], &b"value"[..]));
    assert_eq!((kv.create_revision(), kv.mod_revision(), kv.version()), (2, 2, 1));
    assert_eq!(kv.lease(), 0);
    assert_eq!(kv.into_key_value(), (b"key".to_vec(), b"value".to_vec()));

    client.put("key", "", None).await.unwrap();
    let kv = client.get("key", None).await.unwrap().take_kvs().remove(0);
    assert_eq!((kv.create_revision(), kv.mod_revision(), kv.version()), (2, 3, 2));
    assert_eq!(kv.value(), b"");

    let nothing = client.get("other", None).await.unwrap();
    assert_eq!((nothing.count(), nothing.kvs().len()), (0, 0));
    assert_eq!(nothing.header().unwrap().revision(), 3);
}

#[tokio::test]
async fn keys_are_bytes() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let (key, value) = (vec![0, 0xff, b'/'], vec![0xfe, 0]);
    client.put(key.clone(), value.clone(), None).await.unwrap();
    let got = client.get(key.clone(), None).await.unwrap();
    assert_eq!((got.kvs()[0].key(), got.kvs()[0].value()), (&key[..], &value[..]));
    assert!(matches!(got.kvs()[0].key_str(), Err(Error::Utf8Error(_))));
    assert!(matches!(got.kvs()[0].value_str(), Err(Error::Utf8Error(_))));
}

#[tokio::test]
async fn a_put_says_what_was_there_before() {
    let cluster = Cluster::one().await;
    let mut kv = cluster.client().await.kv_client();
    let with = PutOptions::new().with_prev_key();
    let first = kv.put("key", "1", Some(with.clone())).await.unwrap();
    assert!(first.prev_key().is_none());
    let mut second = kv.put("key", "2", Some(with)).await.unwrap();
    assert_eq!(second.prev_key().unwrap().value_str().unwrap(), "1");
    assert_eq!(second.take_prev_key().unwrap().mod_revision(), 2);
}

#[tokio::test]
async fn a_put_can_keep_the_value() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let keep = Some(PutOptions::new().with_ignore_value());
    let missing = client.put("key", "", keep.clone()).await;
    assert_refused(missing, Code::InvalidArgument, "etcdserver: key not found");
    client.put("key", "1", None).await.unwrap();
    let both = client.put("key", "2", keep.clone()).await;
    assert_refused(both, Code::InvalidArgument, "etcdserver: value is provided");
    client.put("key", "", keep).await.unwrap();
    let got = client.get("key", None).await.unwrap();
    assert_eq!((got.kvs()[0].value(), got.kvs()[0].version()), (&b"1"[..], 2));
}

#[tokio::test]
async fn a_put_can_keep_the_lease() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let keep = PutOptions::new().with_ignore_lease();
    let missing = client.put("key", "1", Some(keep.clone())).await;
    assert_refused(missing, Code::InvalidArgument, "etcdserver: key not found");
    let leased = Some(PutOptions::new().with_lease(7));
    let unknown = client.put("key", "1", leased.clone()).await;
    assert_refused(unknown, Code::NotFound, "etcdserver: requested lease not found");
    let grant = LeaseGrantOptions::new().with_id(7);
    client.lease_grant(600, Some(grant)).await.unwrap();
    client.put("key", "1", leased).await.unwrap();
    client.put("key", "2", Some(keep.clone())).await.unwrap();
    let got = client.get("key", None).await.unwrap();
    assert_eq!((got.kvs()[0].lease(), got.kvs()[0].value()), (7, &b"2"[..]));
    let both = client.put("key", "3", Some(keep.with_lease(7))).await;
    assert_refused(both, Code::InvalidArgument, "etcdserver: lease is provided");
    client.put("key", "4", None).await.unwrap();
    assert_eq!(client.get("key", None).await.unwrap().kvs()[0].lease(), 0);
}

#[tokio::test]
async fn a_key_must_be_named() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let words = "etcdserver: key is not provided";
    assert_refused(client.put("", "1", None).await, Code::InvalidArgument, words);
    assert_refused(client.get("", None).await, Code::InvalidArgument, words);
    assert_refused(client.delete("", None).await, Code::InvalidArgument, words);
}

#[tokio::test]
async fn ranges_of_every_form() {
    let (_cluster, mut client) = five_keys().await;
    for (key, options, found) in [
        ("b", GetOptions::new(), "b"),
        ("b", GetOptions::new().with_range("b2"), "b,b1"),
        ("b", GetOptions::new().with_range("a"), ""),
        ("b1", GetOptions::new().with_from_key(), "b1,b2,c"),
        ("", GetOptions::new().with_from_key(), "a,b,b1,b2,c"),
        ("b", GetOptions::new().with_prefix(), "b,b1,b2"),
        ("", GetOptions::new().with_prefix(), "a,b,b1,b2,c"),
        ("b", GetOptions::new().with_all_keys(), "a,b,b1,b2,c"),
    ] {
        let got = client.get(key, Some(options.clone())).await.unwrap();
        assert_eq!(keys(&got), found, "{key} {options:?}");
        assert_eq!(got.count(), i64::try_from(got.kvs().len()).unwrap());
    }
}

#[tokio::test]
async fn a_limit_cuts_and_says_so() {
    let (_cluster, mut client) = five_keys().await;
    let options = GetOptions::new().with_prefix();
    for (limit, found, more) in [(2, "b,b1", true), (3, "b,b1,b2", false), (0, "b,b1,b2", false)] {
        let got = client.get("b", Some(options.clone().with_limit(limit))).await.unwrap();
        assert_eq!((&*keys(&got), got.more(), got.count()), (found, more, 3));
    }
}

#[tokio::test]
async fn sorted_by_every_field_in_every_order() {
    let (_cluster, mut client) = five_keys().await;
    for (target, ascending) in [
        (SortTarget::Key, "a,b,b1,b2,c"),
        (SortTarget::Create, "b,c,a,b2,b1"),
        (SortTarget::Mod, "b,a,b2,b1,c"),
        (SortTarget::Value, "b,b1,b2,a,c"),
    ] {
        let descending = ascending.split(',').rev().collect::<Vec<_>>().join(",");
        for (order, found) in [(SortOrder::Ascend, ascending), (SortOrder::Descend, &*descending)] {
            let options = GetOptions::new().with_all_keys().with_sort(target, order);
            let got = client.get("", Some(options.clone())).await.unwrap();
            assert_eq!(keys(&got), found, "{target:?} {order:?}");
            let first = client.get("", Some(options.with_limit(1))).await.unwrap();
            assert_eq!(keys(&first), found.split(',').next().unwrap());
            assert!(first.more());
        }
    }
    let options = GetOptions::new().with_all_keys();
    let newest = options.clone().with_sort(SortTarget::Version, SortOrder::Descend).with_limit(1);
    assert_eq!(keys(&client.get("", Some(newest)).await.unwrap()), "c");
    let unsorted = options.with_sort(SortTarget::Mod, SortOrder::None);
    assert_eq!(keys(&client.get("", Some(unsorted)).await.unwrap()), "b,a,b2,b1,c");
}

#[tokio::test]
async fn parts_of_what_is_there() {
    let (_cluster, mut client) = five_keys().await;
    let all = GetOptions::new().with_all_keys();
    let got = client.get("", Some(all.clone().with_keys_only())).await.unwrap();
    assert_eq!(keys(&got), "a,b,b1,b2,c");
    assert!(got.kvs().iter().all(|kv| kv.value().is_empty() && kv.mod_revision() > 1));
    let got = client.get("", Some(all.clone().with_count_only())).await.unwrap();
    assert_eq!((got.count(), got.kvs().len(), got.more()), (5, 0, false));
    for (options, found) in [
        (all.clone().with_min_mod_revision(5), "b1,b2,c"),
        (all.clone().with_max_mod_revision(4), "a,b"),
        (all.clone().with_min_create_revision(5), "b1,b2"),
        (all.clone().with_max_create_revision(3), "b,c"),
        (all.clone().with_min_mod_revision(4).with_max_mod_revision(5), "a,b2"),
    ] {
        let got = client.get("", Some(options.clone())).await.unwrap();
        assert_eq!((&*keys(&got), got.count()), (found, 5), "{options:?}");
    }
}

#[tokio::test]
async fn the_past_can_be_read() {
    let (_cluster, mut client) = five_keys().await;
    client.delete("b", None).await.unwrap();
    let all = GetOptions::new().with_all_keys();
    for (revision, found) in [(2, "b"), (4, "a,b,c"), (7, "a,b,b1,b2,c"), (8, "a,b1,b2,c")] {
        let options = all.clone().with_revision(revision);
        let got = client.get("", Some(options.clone())).await.unwrap();
        assert_eq!((&*keys(&got), got.header().unwrap().revision()), (found, 8));
        let got = client.get("", Some(options.with_serializable())).await.unwrap();
        assert_eq!(keys(&got), found);
    }
    let future = client.get("", Some(all.with_revision(9))).await;
    let words = "etcdserver: mvcc: required revision is a future revision";
    assert_refused(future, Code::OutOfRange, words);
}

#[tokio::test]
async fn a_range_as_a_stream_is_the_same_range() {
    let cluster = Cluster::one().await;
    let mut kv = cluster.client().await.kv_client();
    // The values do not fit into one message of a stream.
    for n in 0..40 {
        kv.put(format!("key{n:02}"), vec![b'v'; 100_000], None).await.unwrap();
    }
    let options = Some(GetOptions::new().with_prefix());
    let mut stream = kv.get_stream("key", options.clone()).await.unwrap();
    let mut found = Vec::new();
    let mut count = 0;
    while let Some(mut part) = stream.message().await.unwrap() {
        count = count.max(part.count());
        found.extend(part.take_kvs().into_iter().map(|kv| kv.into_key_value().0));
    }
    let wanted: Vec<_> = (0..40).map(|n| format!("key{n:02}").into_bytes()).collect();
    assert_eq!((found, count), (wanted, 40));

    // The same stream is read through Rust's `Stream` trait.
    let parts: Vec<_> = kv.get_stream("key", options).await.unwrap().collect().await;
    let sum: usize = parts.into_iter().map(|part| part.unwrap().kvs().len()).sum();
    assert_eq!(sum, 40);
    let mut nothing = kv.get_stream("other", None).await.unwrap();
    while let Some(part) = nothing.message().await.unwrap() {
        assert_eq!((part.kvs().len(), part.count()), (0, 0));
    }
}

#[tokio::test]
async fn deletes_of_every_form() {
    for (key, options, left) in [
        ("b", DeleteOptions::new(), "a,b1,b2,c"),
        ("b", DeleteOptions::new().with_range("b2"), "a,b2,c"),
        ("b1", DeleteOptions::new().with_from_key(), "a,b"),
        ("b", DeleteOptions::new().with_prefix(), "a,c"),
        ("b", DeleteOptions::new().with_all_keys(), ""),
    ] {
        let (_cluster, mut client) = five_keys().await;
        let deleted = client.delete(key, Some(options.clone())).await.unwrap();
        assert!(deleted.prev_kvs().is_empty());
        assert_eq!(deleted.header().unwrap().revision(), 8);
        let rest = client.get("", Some(GetOptions::new().with_all_keys())).await.unwrap();
        assert_eq!(keys(&rest), left, "{key} {options:?}");
        assert_eq!(deleted.deleted() + rest.count(), 5);
    }
}

#[tokio::test]
async fn a_delete_says_what_was_there_before() {
    let (_cluster, mut client) = five_keys().await;
    let options = DeleteOptions::new().with_prefix().with_prev_key();
    let mut deleted = client.delete("b", Some(options.clone())).await.unwrap();
    assert_eq!(deleted.deleted(), 3);
    let before = deleted.take_prev_kvs();
    let values: Vec<_> = before.iter().map(|kv| kv.value_str().unwrap()).collect();
    assert_eq!(values, ["1", "3", "4"]);
    // A delete that finds no key does not change the revision.
    let again = client.delete("b", Some(options)).await.unwrap();
    assert_eq!((again.deleted(), again.header().unwrap().revision()), (0, 8));
}

#[tokio::test]
async fn what_was_compacted_is_gone() {
    let (_cluster, mut client) = five_keys().await;
    let compacted = client.compact(4, None).await.unwrap();
    assert_eq!(compacted.header().unwrap().revision(), 7);
    let words = "etcdserver: mvcc: required revision has been compacted";
    for revision in [2, 3] {
        let old = client.get("b", Some(GetOptions::new().with_revision(revision))).await;
        assert_refused(old, Code::OutOfRange, words);
    }
    let kept = client.get("b", Some(GetOptions::new().with_revision(4))).await.unwrap();
    assert_eq!(kept.kvs()[0].value(), b"1");
    assert_refused(client.compact(4, None).await, Code::OutOfRange, words);
    let words = "etcdserver: mvcc: required revision is a future revision";
    assert_refused(client.compact(8, None).await, Code::OutOfRange, words);

    let physical = CompactionOptions::new().with_physical();
    client.kv_client().compact(7, Some(physical)).await.unwrap();
    let now = client.get("c", Some(GetOptions::new().with_revision(7))).await.unwrap();
    assert_eq!(now.kvs()[0].value(), b"9");
}

#[tokio::test]
async fn messages_of_any_size_if_the_client_allows_them() {
    let cluster = Cluster::one().await;
    let mut kv = cluster.client().await.kv_client();
    for n in 0..5 {
        kv.put(format!("big{n}"), vec![b'v'; 1 << 20], None).await.unwrap();
    }
    let options = Some(GetOptions::new().with_prefix());
    // The client rejects messages above four mebibytes unless its limit is raised.
    match kv.get("big", options.clone()).await {
        Err(Error::GRpcStatus(status)) => assert_eq!(status.code(), Code::OutOfRange),
        other => panic!("{:?}", other.map(|got| got.count())),
    }
    let mut large = kv.clone().max_decoding_message_size(64 << 20);
    let got = large.get("big", options).await.unwrap();
    assert_eq!(got.kvs().iter().map(|kv| kv.value().len()).sum::<usize>(), 5 << 20);

    let mut small = kv.clone().max_encoding_message_size(1000);
    small.put("small", vec![b'v'; 900], None).await.unwrap();
    assert!(small.put("small", vec![b'v'; 1001], None).await.is_err());
    assert_eq!(kv.get("small", None).await.unwrap().kvs()[0].value().len(), 900);
}

#[tokio::test]
async fn a_request_can_be_too_large() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    let large = client.put("big", vec![b'v'; 1_600_000], None).await;
    assert_refused(large, Code::InvalidArgument, "etcdserver: request is too large");
    assert_eq!(client.get("big", None).await.unwrap().count(), 0);
}
