//! Tests of keys and values.

use clearlane_client::{
    Client, Compare, Delete, Error, Get, Keys, OpReply, Options, Put, Txn,
    proto::etcdserverpb::range_request::{SortOrder, SortTarget},
    proto::mvccpb::KeyValue,
};
use clearlane_test_server::TestServer;

use crate::proxy::{Proxy, ProxyState};
use crate::stub::{KEYS, Stub};
use crate::with_timeout;

fn keys(kvs: &[KeyValue]) -> Vec<&str> {
    kvs.iter().map(|kv| std::str::from_utf8(&kv.key).unwrap()).collect()
}

#[tokio::test]
async fn what_is_put_is_found_until_it_is_deleted() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    let put = client.put("a", "1").await.unwrap();
    assert_eq!((put.revision(), put.prev_kv), (2, None));
    let put = client.put_with(Put::new("a", "2").prev_kv()).await.unwrap();
    assert_eq!(put.prev_kv.unwrap().value, "1");
    let found = client.get("a").await.unwrap();
    assert_eq!((found.revision(), found.count, found.value().unwrap()), (3, 1, &"2".into()));
    let gone = client.delete(Delete::prefix("a").prev_kv()).await.unwrap();
    assert_eq!((gone.deleted, gone.revision(), &gone.prev_kvs[0].value[..]), (1, 4, &b"2"[..]));
    assert!(client.get("a").await.unwrap().kvs.is_empty());
}

#[tokio::test]
async fn a_get_has_many_options() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    for (key, value) in [("b", "1"), ("c", "3"), ("a", "2"), ("d", "0")] {
        client.put(key, value).await.unwrap(); // The revisions are 2 to 5.
    }
    let get = async |get: Get| client.get(get).await.unwrap();
    let found = get(Get::new(Keys::all()).limit(2)).await;
    assert_eq!((keys(&found.kvs), found.more, found.count), (vec!["a", "b"], true, 4));
    assert_eq!(keys(&get(Get::new(Keys::range("b", "d"))).await.kvs), ["b", "c"]);
    assert_eq!(keys(&get(Get::new(Keys::starting_at("c"))).await.kvs), ["c", "d"]);
    assert_eq!(keys(&get(Get::prefix("").revision(3)).await.kvs), ["b", "c"]);
    let count = get(Get::prefix("").count_only().serializable()).await;
    assert_eq!((count.kvs.len(), count.count), (0, 4));
    let mut by_value = Get::prefix("");
    by_value.request.sort_target = SortTarget::Value.into();
    by_value.request.sort_order = SortOrder::Descend.into();
    assert_eq!(keys(&get(by_value.clone()).await.kvs), ["c", "a", "b", "d"]);
    assert!(matches!(client.get_stream(by_value).await, Err(Error::InvalidArgument(_))));
}

#[tokio::test]
async fn a_transaction_decides_and_may_hold_another() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    let acquire = |owner: &str| {
        Txn::new()
            .when(Compare::missing("lock"))
            .then(Put::new("lock", owner))
            .or_else(Get::from("lock"))
    };
    let first = client.txn(acquire("me")).await.unwrap();
    assert!(first.succeeded && matches!(first.results[0], OpReply::Put(_)));
    let second = client.txn(acquire("you")).await.unwrap();
    let OpReply::Get(found) = &second.results[0] else { panic!("{second:?}") };
    assert_eq!((second.succeeded, found.value().unwrap()), (false, &"me".into()));

    let inner = Txn::new()
        .when(Compare::value("lock").equal("me"))
        .when(Compare::version("lock").less(2))
        .when(Compare::mod_revision(Keys::prefix("lo")).greater(1))
        .when(Compare::lease("lock").equal(0))
        .when(Compare::value("lock").not_equal("you"))
        .then(Delete::from("lock"));
    let outer = Txn::new().when(Compare::exists("lock")).then(inner).then(Put::new("x", "1"));
    let done = client.txn(outer).await.unwrap();
    let OpReply::Txn(nested) = &done.results[0] else { panic!("{done:?}") };
    let OpReply::Delete(deleted) = &nested.results[0] else { panic!("{nested:?}") };
    assert_eq!((done.succeeded, nested.succeeded, deleted.deleted), (true, true, 1));
    assert_eq!(done.revision(), 3);
}

#[tokio::test]
async fn a_stream_brings_a_large_range_of_one_revision() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().await.unwrap();
    for hundred in 0..10 {
        let puts = (0..100).map(|number| Put::new(format!("k{:04}", hundred * 100 + number), "v"));
        client.txn(puts.fold(Txn::new(), Txn::then)).await.unwrap();
    }
    let mut stream = client.get_stream(Keys::prefix("k")).await.unwrap();
    assert_eq!(stream.revision(), 11);
    let mut came = 0;
    while let Some(record) = with_timeout(stream.next()).await {
        if came == 10 {
            // The stream still returns these records, because it reads an earlier revision.
            client.delete(Delete::prefix("k05")).await.unwrap();
        }
        assert_eq!(record.unwrap().key, format!("k{came:04}"));
        came += 1;
    }
    assert_eq!(came, 1000);
    assert!(stream.next().await.is_none());
    let mut some = client.get_stream(Get::prefix("k").limit(7)).await.unwrap();
    let mut came = 0;
    while let Some(record) = with_timeout(some.next()).await {
        record.unwrap();
        came += 1;
    }
    assert_eq!(came, 7);
}

#[tokio::test]
async fn a_server_without_pieces_is_asked_for_pages() {
    let stub = Stub::without_users();
    let client = Client::connect([stub.start().await], Options::new()).await.unwrap();
    for (get, keys) in [(Get::prefix("k"), KEYS), (Get::prefix("k").limit(1500), 1500)] {
        let mut stream = client.get_stream(get).await.unwrap();
        let mut came = 0;
        while let Some(record) = with_timeout(stream.next()).await {
            assert_eq!(record.unwrap().key, format!("k{came:04}"));
            came += 1;
        }
        assert_eq!(came, keys);
    }
}

#[tokio::test]
async fn a_stream_goes_on_elsewhere_at_the_same_revision() {
    let server = TestServer::start().await.unwrap();
    let direct = server.client().await.unwrap();
    for number in 0..60 {
        direct.put(format!("k{number:02}"), vec![7; 200_000]).await.unwrap();
    }
    let proxies = [Proxy::start(&server.endpoint()).await, Proxy::start(&server.endpoint()).await];
    let endpoints = proxies.each_ref().map(Proxy::endpoint);
    let client = Client::connect(endpoints, Options::new()).await.unwrap();
    let mut stream = client.get_stream(Keys::prefix("k")).await.unwrap();
    for number in 0..60 {
        if number == 20 || number == 40 {
            // The rest of the records exceeds the buffers between client and server, so the rest
            // has not arrived yet.
            direct.put("k59", "changed").await.unwrap();
            for proxy in &proxies {
                proxy.set(ProxyState::Cut);
                proxy.set(ProxyState::Open);
            }
        }
        let record = with_timeout(stream.next()).await.unwrap().unwrap();
        assert_eq!(record.key, format!("k{number:02}"));
        assert_eq!(record.value.len(), 200_000);
    }
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn errors_have_types() {
    let server = TestServer::start_with(|start| start.replica.quota_bytes = 1 << 16).await.unwrap();
    let client = server.client().await.unwrap();
    for value in ["1", "2", "3"] {
        client.put("a", value).await.unwrap();
    }
    client.compact(4).await.unwrap();
    let past = client.get(Get::from("a").revision(2)).await;
    assert!(matches!(past, Err(Error::Compacted { compact_revision: None })), "{past:?}");
    assert!(matches!(client.compact(2).await, Err(Error::Compacted { .. })));
    let future = client.get(Get::from("a").revision(99)).await;
    assert!(matches!(future, Err(Error::FutureRevision)), "{future:?}");
    let unleased = client.put_with(Put::new("a", "4").lease(7)).await;
    assert!(matches!(unleased, Err(Error::LeaseNotFound)), "{unleased:?}");
    let mut keeps_value = Put::new("nothing", "");
    keeps_value.request.ignore_value = true;
    let unkept = client.put_with(keeps_value).await;
    assert!(matches!(unkept, Err(Error::KeyNotFound)), "{unkept:?}");
    let nameless = client.put("", "x").await;
    assert!(matches!(nameless, Err(Error::InvalidArgument(_))), "{nameless:?}");
    // The first value exceeds the server's limit for a request. The second value also exceeds the
    // larger limit for a message, so the server rejects the message before it reads the request.
    for bytes in [1_600_000, 3 << 20] {
        let large = client.put("a", vec![7; bytes]).await;
        assert!(matches!(large, Err(Error::RequestTooLarge)), "{large:?}");
    }
    let full = loop {
        if let Err(error) = client.put("b", vec![7; 40_000]).await {
            break error;
        }
    };
    assert!(matches!(full, Error::NoSpace), "{full:?}");
    assert!(matches!(client.health().await, Err(Error::NoSpace)));
    let alarms = client.alarms().await.unwrap();
    client.delete("b").await.unwrap();
    assert_eq!(client.disarm(alarms[0]).await.unwrap(), alarms);
    assert!(client.alarms().await.unwrap().is_empty());
    client.health().await.unwrap();
}
