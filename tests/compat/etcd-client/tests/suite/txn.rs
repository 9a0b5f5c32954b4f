//! Transactions: every comparison, every operation, and nested transactions.

use clearlane_compat_etcd_client::{Cluster, assert_refused};
use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, GetOptions, LeaseGrantOptions, PutOptions, Txn,
    TxnOp, TxnOpResponse, TxnResponse,
};
use tonic::Code;

/// Starts a server with `key` = `m`, put at revisions 2 and 3 (so its version is 2), with lease 7.
async fn one_key() -> (Cluster, Client) {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    client.lease_grant(600, Some(LeaseGrantOptions::new().with_id(7))).await.unwrap();
    let leased = PutOptions::new().with_lease(7);
    client.put("key", "l", Some(leased.clone())).await.unwrap();
    client.put("key", "m", Some(leased)).await.unwrap();
    (cluster, client)
}

async fn holds(client: &mut Client, compares: impl Into<Vec<Compare>>) -> bool {
    client.txn(Txn::new().when(compares)).await.unwrap().succeeded()
}

/// Summarizes a response: the values that were read, and the numbers of deleted keys.
fn told(answer: &TxnResponse) -> Vec<String> {
    let told = |op| match op {
        TxnOpResponse::Put(put) => format!("put at {}", put.header().unwrap().revision()),
        TxnOpResponse::Get(got) => {
            got.kvs().iter().map(|kv| kv.value_str().unwrap()).collect::<Vec<_>>().join(",")
        }
        TxnOpResponse::Delete(deleted) => format!("{} deleted", deleted.deleted()),
        TxnOpResponse::Txn(txn) => format!("{} {:?}", txn.succeeded(), told(&txn)),
    };
    answer.op_responses().into_iter().map(told).collect()
}

#[tokio::test]
async fn every_comparison() {
    let (_cluster, mut client) = one_key().await;
    type Make = fn(CompareOp, i64) -> Compare;
    let of_number: [(Make, i64); 4] = [
        (|op, n| Compare::version("key", op, n), 2),
        (|op, n| Compare::create_revision("key", op, n), 2),
        (|op, n| Compare::mod_revision("key", op, n), 3),
        (|op, n| Compare::lease("key", op, n), 7),
    ];
    for (compare, is) in of_number {
        for (op, truths) in [
            (CompareOp::Equal, [false, true, false]),
            (CompareOp::NotEqual, [true, false, true]),
            (CompareOp::Greater, [true, false, false]),
            (CompareOp::Less, [false, false, true]),
        ] {
            for (other, truth) in [is - 1, is, is + 1].into_iter().zip(truths) {
                assert_eq!(holds(&mut client, [compare(op, other)]).await, truth, "{op:?} {other}");
            }
        }
    }
    for (op, truths) in [
        (CompareOp::Equal, [false, true, false]),
        (CompareOp::NotEqual, [true, false, true]),
        (CompareOp::Greater, [true, false, false]),
        (CompareOp::Less, [false, false, true]),
    ] {
        for (other, truth) in ["l", "m", "n"].into_iter().zip(truths) {
            let compare = Compare::value("key", op, other);
            assert_eq!(holds(&mut client, [compare]).await, truth, "{op:?} {other}");
        }
    }
}

#[tokio::test]
async fn a_missing_key_is_zero_and_has_no_value() {
    let (_cluster, mut client) = one_key().await;
    for (compare, truth) in [
        (Compare::version("other", CompareOp::Equal, 0), true),
        (Compare::create_revision("other", CompareOp::Equal, 0), true),
        (Compare::mod_revision("other", CompareOp::Less, 1), true),
        (Compare::lease("other", CompareOp::Equal, 0), true),
        (Compare::version("other", CompareOp::Greater, 0), false),
        (Compare::value("other", CompareOp::Equal, ""), false),
        (Compare::value("other", CompareOp::NotEqual, "x"), false),
    ] {
        assert_eq!(holds(&mut client, [compare.clone()]).await, truth, "{compare:?}");
    }
}

#[tokio::test]
async fn a_comparison_of_a_range_means_every_key() {
    let (_cluster, mut client) = one_key().await;
    client.put("key2", "m", None).await.unwrap();
    let same = |value| Compare::value("key", CompareOp::Equal, value);
    assert!(holds(&mut client, [same("m").with_prefix()]).await);
    assert!(holds(&mut client, [same("m").with_range("kez")]).await);
    client.put("key2", "n", None).await.unwrap();
    assert!(!holds(&mut client, [same("m").with_prefix()]).await);
    assert!(holds(&mut client, [same("m").with_range("key2")]).await);
    // Several comparisons must all be true. An empty list is true.
    let newer = Compare::mod_revision("key2", CompareOp::Greater, 3);
    assert!(holds(&mut client, [same("m"), newer.clone()]).await);
    assert!(!holds(&mut client, [same("n"), newer]).await);
    assert!(holds(&mut client, []).await);
}

#[tokio::test]
async fn one_branch_is_done_at_one_revision() {
    let (_cluster, mut client) = one_key().await;
    let branches = |value| {
        Txn::new()
            .when([Compare::value("key", CompareOp::Equal, value)])
            .and_then([TxnOp::put("a", "1", None), TxnOp::put("b", "2", None)])
            .or_else([TxnOp::get("key", None)])
    };
    let no = client.txn(branches("x")).await.unwrap();
    assert_eq!((no.succeeded(), told(&no)), (false, vec!["m".to_owned()]));
    assert_eq!(no.header().unwrap().revision(), 3);
    let yes = client.txn(branches("m")).await.unwrap();
    assert!(yes.succeeded());
    assert_eq!(told(&yes), ["put at 4", "put at 4"]);
    for key in ["a", "b"] {
        assert_eq!(client.get(key, None).await.unwrap().kvs()[0].mod_revision(), 4);
    }
}

#[tokio::test]
async fn operations_see_those_before_them() {
    let (_cluster, mut client) = one_key().await;
    let all = || Some(GetOptions::new().with_all_keys());
    let previous = PutOptions::new().with_prev_key();
    let mut answer = client
        .txn(Txn::new().and_then([
            TxnOp::put("key", "2", Some(previous)),
            TxnOp::get("key", None),
            TxnOp::put("other", "3", None),
            TxnOp::get("", all()),
            TxnOp::get("key", Some(GetOptions::new().with_revision(2))),
        ]))
        .await
        .unwrap();
    assert!(answer.succeeded());
    assert_eq!(told(&answer), ["put at 4", "2", "put at 4", "2,3", "l"]);
    let TxnOpResponse::Put(put) = &answer.op_responses()[0] else { panic!("{answer:?}") };
    assert_eq!(put.prev_key().unwrap().value(), b"m");
    assert_eq!(answer.take_header().unwrap().revision(), 4);

    let deletes = DeleteOptions::new().with_prefix().with_prev_key();
    let answer = client
        .txn(Txn::new().and_then([
            TxnOp::delete("k", Some(deletes)),
            TxnOp::get("", all()),
            TxnOp::put("new", "4", None),
        ]))
        .await
        .unwrap();
    assert_eq!(told(&answer), ["1 deleted", "3", "put at 5"]);
    let TxnOpResponse::Delete(deleted) = &answer.op_responses()[0] else { panic!("{answer:?}") };
    assert_eq!(deleted.prev_kvs()[0].value(), b"2");
    let kvs = client.get("new", None).await.unwrap().take_kvs();
    assert_eq!((kvs[0].mod_revision(), kvs[0].version()), (5, 1));
}

#[tokio::test]
async fn transactions_nest() {
    let (_cluster, mut client) = one_key().await;
    let inner = Txn::new()
        .when([Compare::value("key", CompareOp::Equal, "2")])
        .and_then([TxnOp::get("key", None), TxnOp::put("inner", "3", None)])
        .or_else([TxnOp::put("wrong", "4", None)]);
    let outer = Txn::new()
        .when([Compare::value("key", CompareOp::Equal, "m")])
        .and_then([TxnOp::put("key", "2", None), TxnOp::txn(inner)]);
    let answer = client.txn(outer).await.unwrap();
    // All comparisons see the state before the whole transaction.
    assert_eq!(told(&answer), ["put at 4", "false [\"put at 4\"]"]);
    assert_eq!(client.get("wrong", None).await.unwrap().count(), 1);
}

#[tokio::test]
async fn reading_is_no_change() {
    let (_cluster, mut client) = one_key().await;
    let reading = Txn::new().and_then([TxnOp::get("key", None), TxnOp::delete("other", None)]);
    let answer = client.txn(reading).await.unwrap();
    assert_eq!(told(&answer), ["m", "0 deleted"]);
    assert_eq!(answer.header().unwrap().revision(), 3);
    let nothing = client.txn(Txn::new()).await.unwrap();
    assert_eq!((nothing.succeeded(), nothing.op_responses().len()), (true, 0));
    let future = GetOptions::new().with_revision(9);
    let refused = client.txn(Txn::new().and_then([TxnOp::get("key", Some(future))])).await;
    let words = "etcdserver: mvcc: required revision is a future revision";
    assert_refused(refused, Code::OutOfRange, words);
}

#[tokio::test]
async fn what_cannot_be_done_is_not_begun() {
    let (_cluster, mut client) = one_key().await;
    let many: Vec<_> = (0..129).map(|n| TxnOp::put(format!("many{n}"), "", None)).collect();
    let refused = client.txn(Txn::new().and_then(many.clone())).await;
    let words = "etcdserver: too many operations in txn request";
    assert_refused(refused, Code::InvalidArgument, words);
    let allowed = client.txn(Txn::new().and_then(&many[..128])).await.unwrap();
    assert_eq!(allowed.op_responses().len(), 128);

    let leased = PutOptions::new().with_lease(8);
    let unknown =
        Txn::new().and_then([TxnOp::put("a", "", None), TxnOp::put("b", "", Some(leased))]);
    let refused = client.txn(unknown).await;
    assert_refused(refused, Code::NotFound, "etcdserver: requested lease not found");
    let words = "etcdserver: duplicate key given in txn request";
    let all_of_a = DeleteOptions::new().with_prefix();
    for again in [TxnOp::put("a", "", None), TxnOp::delete("a", Some(all_of_a))] {
        let twice = Txn::new().and_then([TxnOp::put("a", "", None), again]);
        assert_refused(client.txn(twice).await, Code::InvalidArgument, words);
    }
    let unnamed = Txn::new().when([Compare::version("", CompareOp::Equal, 0)]);
    let words = "etcdserver: key is not provided";
    assert_refused(client.txn(unnamed).await, Code::InvalidArgument, words);
    assert_eq!(client.get("a", None).await.unwrap().count(), 0);
}

#[tokio::test]
async fn of_many_who_add_one_each_counts() {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    client.put("sum", "0", None).await.unwrap();
    let add = |mut client: Client| async move {
        for _ in 0..20 {
            loop {
                let kv = client.get("sum", None).await.unwrap().take_kvs().remove(0);
                let sum: u32 = kv.value_str().unwrap().parse().unwrap();
                let unchanged = Compare::mod_revision("sum", CompareOp::Equal, kv.mod_revision());
                let put = TxnOp::put("sum", (sum + 1).to_string(), None);
                let txn = Txn::new().when([unchanged]).and_then([put]);
                if client.txn(txn).await.unwrap().succeeded() {
                    break;
                }
            }
        }
    };
    let adders: Vec<_> = (0..5).map(|_| tokio::spawn(add(client.clone()))).collect();
    for adder in adders {
        adder.await.unwrap();
    }
    assert_eq!(client.get("sum", None).await.unwrap().kvs()[0].value(), b"100");
}
