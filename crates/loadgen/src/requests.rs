//! The requests of a class, as the bytes that are sent.

use bytes::{BufMut, Bytes, BytesMut};
use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use http::HeaderValue;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::keys::{KeySpace, ValueGenerator};
use crate::response_scanner::ResponseShape;
use crate::workload::{Class, Operation};

/// An encoded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The path of the gRPC method.
    pub path: &'static str,
    /// The message behind its gRPC header: a compression flag of 0, and the length.
    pub body: Bytes,
    pub answer: ResponseShape,
    /// The number of keys that the answer must have, if it is known. Of a watch, which has no end,
    /// the number of events that are enough.
    pub keys: Option<u64>,
    /// Of the user.
    pub token: Option<HeaderValue>,
}

impl Call {
    pub(crate) fn new(path: &'static str, message: &impl Message, keys: Option<u64>) -> Call {
        Call { path, body: framed(message), answer: ResponseShape::Message, keys, token: None }
    }

    pub fn count(space: &KeySpace) -> RangeRequest {
        RangeRequest { count_only: true, ..range(space, 0, space.count) }
    }
}

#[derive(Clone, Debug)]
pub struct RequestGenerator {
    space: KeySpace,
    operation: Operation,
    values: Option<ValueGenerator>,
    /// Whether an answer with too few keys is an error.
    expects_all_keys: bool,
    rng: SmallRng,
}

impl RequestGenerator {
    pub fn new(
        class: &Class,
        space: &KeySpace,
        expects_all_keys: bool,
        seed: u64,
    ) -> RequestGenerator {
        let values = match class.operation {
            Operation::Put { value } | Operation::Txn { value, .. } => {
                Some(ValueGenerator::new(value, seed))
            }
            Operation::Range { .. } | Operation::Delete { .. } => None,
        };
        RequestGenerator {
            space: space.clone(),
            operation: class.operation,
            values,
            expects_all_keys,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    pub fn next_call(&mut self) -> Call {
        match self.operation {
            Operation::Range { keys, limit, serializable } => {
                let from = self.space.random_start(keys, &mut self.rng);
                let range = RangeRequest {
                    limit: limit.map_or(0, |limit| limit as i64),
                    serializable,
                    ..range(&self.space, from, keys)
                };
                let found = self.expects_all_keys.then_some(limit.unwrap_or(keys));
                Call::new("/etcdserverpb.KV/Range", &range, found)
            }
            Operation::Put { .. } => {
                let number = self.space.random_start(1, &mut self.rng);
                Call::new("/etcdserverpb.KV/Put", &self.put(number), None)
            }
            Operation::Delete { keys } => {
                let from = self.space.random_start(keys, &mut self.rng);
                let RangeRequest { key, range_end, .. } = range(&self.space, from, keys);
                let delete = DeleteRangeRequest { key, range_end, prev_kv: false };
                Call::new("/etcdserverpb.KV/DeleteRange", &delete, None)
            }
            Operation::Txn { keys, .. } => {
                let txn = self.txn(keys);
                Call::new("/etcdserverpb.KV/Txn", &txn, None)
            }
        }
    }

    fn put(&mut self, number: u64) -> PutRequest {
        let value = self.values.as_ref().map(|values| values.random_value(&mut self.rng));
        put(&self.space, number, value.unwrap_or_default())
    }

    /// If the first key exists, puts `keys` keys; else reads the first.
    fn txn(&mut self, keys: u64) -> TxnRequest {
        let from = self.space.random_start(keys, &mut self.rng);
        let is_there = Compare {
            key: self.space.key(from),
            target: CompareTarget::Version as i32,
            result: CompareResult::Greater as i32,
            target_union: Some(TargetUnion::Version(0)),
            ..Compare::default()
        };
        let puts = (from..from + keys).map(|number| Op::RequestPut(self.put(number)));
        let success = puts.map(|put| RequestOp { request: Some(put) }).collect();
        let read = Op::RequestRange(range(&self.space, from, 1));
        let failure = vec![RequestOp { request: Some(read) }];
        TxnRequest { compare: vec![is_there], success, failure }
    }
}

/// A message behind its gRPC header.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut body = BytesMut::with_capacity(length + 5);
    body.put_u8(0);
    // Bounded by what a workload may ask for, a few MiB.
    body.put_u32(length as u32);
    message.encode(&mut body).expect("a buffer of bytes grows");
    body.freeze()
}

pub(crate) fn put(space: &KeySpace, number: u64, value: Bytes) -> PutRequest {
    PutRequest { key: space.key(number), value, ..PutRequest::default() }
}

/// Without a range end for one key.
pub(crate) fn range(space: &KeySpace, from: u64, keys: u64) -> RangeRequest {
    let range_end = if keys == 1 { Bytes::new() } else { space.key(from + keys) };
    RangeRequest { key: space.key(from), range_end, ..RangeRequest::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Spacing;
    use crate::keys::Sizes;

    const SPACE: &str = "/load/";

    fn call(operation: Operation) -> Call {
        let value = Sizes::constant(4);
        let space = KeySpace { prefix: SPACE.to_owned(), count: 20, key_size: 9, value };
        let name = "some".to_owned();
        let (rate, spacing) = (1.0, Spacing::Constant);
        let class = Class { name, index: 0, operation, rate, spacing, connections: 1 };
        RequestGenerator::new(&class, &space, true, 11).next_call()
    }

    fn decoded<M: Message + Default>(call: &Call) -> M {
        let (prefix, message) = call.body.split_at(5);
        assert_eq!(prefix, [&[0], &(message.len() as u32).to_be_bytes()[..]].concat());
        M::decode(message).expect("what was encoded")
    }

    #[test]
    fn a_range_goes_to_the_key_behind_its_last_and_one_key_is_asked_for_alone() {
        let end: &[u8] = b"/load/020";
        for (keys, limit, found, range_end) in [(20, Some(7), 7, end), (1, None, 1, b"")] {
            let call = call(Operation::Range { keys, limit, serializable: limit.is_some() });
            let range: RangeRequest = decoded(&call);
            assert_eq!((call.path, call.keys), ("/etcdserverpb.KV/Range", Some(found)));
            assert_eq!((range.key.len(), &range.range_end[..]), (9, range_end));
            let is_limited = (limit.unwrap_or(0) as i64, limit.is_some());
            assert_eq!((range.limit, range.serializable), is_limited);
        }
        let delete: DeleteRangeRequest = decoded(&call(Operation::Delete { keys: 20 }));
        assert_eq!((&delete.key[..], &delete.range_end[..]), (&b"/load/000"[..], end));
    }

    #[test]
    fn puts_stay_in_the_space() {
        let put: PutRequest = decoded(&call(Operation::Put { value: Sizes { min: 2, max: 5 } }));
        assert!(put.key.starts_with(SPACE.as_bytes()) && (2..=5).contains(&put.value.len()));
    }

    #[test]
    fn a_txn_writes_different_keys() {
        let txn: TxnRequest = decoded(&call(Operation::Txn { keys: 3, value: Sizes::constant(2) }));
        let keys = txn.success.iter().filter_map(|op| match &op.request {
            Some(Op::RequestPut(put)) => Some(put.key.clone()),
            _ => None,
        });
        let keys = keys.collect::<Vec<_>>();
        assert!(keys.len() == 3 && keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        assert_eq!((txn.compare.len(), txn.failure.len()), (1, 1));
        assert_eq!(txn.compare[0].key, keys[0]);
    }
}
