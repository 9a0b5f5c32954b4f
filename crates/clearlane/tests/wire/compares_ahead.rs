//! Tests of compares that are evaluated before their transaction is proposed. See
//! `docs/write-path.md`.

use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{Compare, PutResponse, TxnRequest, TxnResponse};
use prost::Message;

use crate::client::{frame, with_server};
use crate::default_era::{BusyReadPool, put_keys};
use crate::deferred_reads::{PUT, TXN, call, decoded};
use crate::support::{op, put};

/// Number of keys in the store. If the compares of a transaction cover more than 1,024 keys, the
/// read pool evaluates them before the transaction is proposed.
const KEYS: usize = 1100;

/// Returns a transaction that puts the key `mark` if no key from `k` up to, but not including,
/// `range_end` has the value "new".
fn txn(range_end: &str) -> TxnRequest {
    let compare = Compare {
        result: CompareResult::NotEqual.into(),
        target: CompareTarget::Value.into(),
        key: "k".into(),
        range_end: range_end.to_owned().into(),
        target_union: Some(TargetUnion::Value("new".into())),
    };
    let success = vec![op(Request::RequestPut(put("mark", "v")))];
    TxnRequest { compare: vec![compare], success, ..TxnRequest::default() }
}

#[test]
fn puts_go_on_while_the_compares_of_a_transaction_wait_for_the_pool() {
    with_server(async |server| {
        let mut client = server.client().await;
        put_keys(&mut client, KEYS).await;
        let busy = BusyReadPool::of(server);
        let (answer, mut sends) = client.open(TXN, &[]);
        sends.send_data(frame(0, &txn("l").encode_to_vec()), true).unwrap();
        let waits = tokio::spawn(crate::client::reply(answer));
        for number in [1050, 2, 1050] {
            let key = format!("k{number:04}");
            let _: PutResponse = call(&mut client, PUT, &put(key, "new")).await;
        }
        // The apply loop evaluates the compare of a few keys itself.
        let few: TxnResponse = call(&mut client, TXN, &txn("k0900")).await;
        assert!(!few.succeeded);
        let few: TxnResponse = call(&mut client, TXN, &txn("k0002")).await;
        assert!(few.succeeded);
        assert!(!waits.is_finished(), "it is the pool's turn");
        busy.release().await;
        let response: TxnResponse = decoded(waits.await.unwrap());
        assert!(!response.succeeded);
        for number in [1050, 2] {
            let _: PutResponse = call(&mut client, PUT, &put(format!("k{number:04}"), "old")).await;
        }
        let response: TxnResponse = call(&mut client, TXN, &txn("l")).await;
        assert!(response.succeeded);
    });
}
