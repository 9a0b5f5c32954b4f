//! Clients with a key prefix: to them, the keys below the prefix look like all keys.

use clearlane_compat_etcd_client::Cluster;
use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, GetOptions, KvClientPrefix, LeaseClientPrefix,
    LeaseGrantOptions, LeaseTimeToLiveOptions, PutOptions, Txn, TxnOp, TxnOpResponse,
};

async fn inside() -> (Cluster, Client, KvClientPrefix) {
    let cluster = Cluster::one().await;
    let client = cluster.client().await;
    let inside = KvClientPrefix::new(client.kv_client(), b"part/".to_vec());
    (cluster, client, inside)
}

#[tokio::test]
async fn names_are_shorter_inside() {
    let (_cluster, mut client, mut inside) = inside().await;
    client.put("key", "outside", None).await.unwrap();
    inside.put("key", "1", None).await.unwrap();
    let previous = Some(PutOptions::new().with_prev_key());
    let put = inside.put("key", "2", previous).await.unwrap();
    assert_eq!(put.prev_key().unwrap().key(), b"key");
    assert_eq!(inside.get("key", None).await.unwrap().kvs()[0].key(), b"key");
    assert_eq!(client.get("part/key", None).await.unwrap().kvs()[0].value(), b"2");
    assert_eq!(client.get("key", None).await.unwrap().kvs()[0].value(), b"outside");

    inside.put("key2", "3", None).await.unwrap();
    for options in [
        GetOptions::new().with_prefix(),
        GetOptions::new().with_range("kez"),
        GetOptions::new().with_limit(9).with_range("z"),
    ] {
        let got = inside.get("k", Some(options)).await.unwrap();
        let keys: Vec<_> = got.kvs().iter().map(|kv| kv.key_str().unwrap()).collect();
        assert_eq!(keys, ["key", "key2"]);
    }
    let options = DeleteOptions::new().with_prefix().with_prev_key();
    let deleted = inside.delete("k", Some(options)).await.unwrap();
    assert_eq!((deleted.deleted(), deleted.prev_kvs()[1].key()), (2, &b"key2"[..]));
    let ranged = DeleteOptions::new().with_range("z");
    assert_eq!(inside.delete("a", Some(ranged)).await.unwrap().deleted(), 0);
    assert_eq!(client.get("key", None).await.unwrap().count(), 1);
}

#[tokio::test]
async fn transactions_stay_inside() {
    let (_cluster, mut client, mut inside) = inside().await;
    client.put("key", "outside", None).await.unwrap();
    inside.put("key", "1", None).await.unwrap();
    let deepest = Txn::new().and_then([TxnOp::put("deep", "4", None), TxnOp::get("deep", None)]);
    let answer = inside
        .txn(
            Txn::new()
                .when([Compare::value("key", CompareOp::Equal, "1").with_prefix()])
                .and_then([
                    TxnOp::put("key", "2", Some(PutOptions::new().with_prev_key())),
                    TxnOp::get("k", Some(GetOptions::new().with_prefix())),
                    TxnOp::delete("none", None),
                    TxnOp::txn(deepest),
                ])
                .or_else([TxnOp::delete("k", Some(DeleteOptions::new().with_prefix()))]),
        )
        .await
        .unwrap();
    assert!(answer.succeeded());
    let answers = answer.op_responses();
    let [TxnOpResponse::Put(put), TxnOpResponse::Get(got), _, TxnOpResponse::Txn(deep)] =
        &answers[..]
    else {
        panic!("{answer:?}")
    };
    assert_eq!(put.prev_key().unwrap().key(), b"key");
    assert_eq!(got.kvs()[0].key(), b"key");
    let deep = deep.op_responses();
    assert!(matches!(&deep[1], TxnOpResponse::Get(got) if got.kvs()[0].key() == b"deep"));
    assert_eq!(client.get("part/deep", None).await.unwrap().count(), 1);
    assert_eq!(client.get("key", None).await.unwrap().kvs()[0].value(), b"outside");
}

#[tokio::test]
async fn leases_tell_the_shorter_names() {
    let (_cluster, mut client, mut inside) = inside().await;
    client.lease_grant(600, Some(LeaseGrantOptions::new().with_id(7))).await.unwrap();
    let leased = PutOptions::new().with_lease(7);
    inside.put("key", "", Some(leased)).await.unwrap();
    let mut leases = LeaseClientPrefix::new(client.lease_client(), b"part/".to_vec());
    let options = Some(LeaseTimeToLiveOptions::new().with_keys());
    let answer = leases.time_to_live(7, options).await.unwrap();
    assert_eq!((answer.keys(), answer.granted_ttl()), (&[b"key".to_vec()][..], 600));
}
