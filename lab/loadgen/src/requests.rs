//! Creates the requests of a class, encoded as the bytes that are sent.

use bytes::{BufMut, Bytes, BytesMut};
use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, RequestOp,
    SnapshotRequest, TxnRequest, WatchCreateRequest, WatchRequest,
};
use http::HeaderValue;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::keys::{KeyChooser, KeySpace, ValueGenerator};
use crate::response_scanner::ResponseShape;
use crate::users::User;
use crate::workload::{Class, Operation, Workload};
use crate::{Error, Result};

/// Paths of gRPC methods.
pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(crate) const RANGE_STREAM: &str = "/etcdserverpb.KV/RangeStream";
pub(crate) const SNAPSHOT: &str = "/etcdserverpb.Maintenance/Snapshot";
pub(crate) const PUT: &str = "/etcdserverpb.KV/Put";
pub(crate) const DELETE_RANGE: &str = "/etcdserverpb.KV/DeleteRange";
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(crate) const WATCH: &str = "/etcdserverpb.Watch/Watch";
pub(crate) const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub(crate) const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// An encoded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The path of the gRPC method.
    pub path: &'static str,
    /// The gRPC prefix and the encoded message. The prefix is a compression flag of 0 and the
    /// length.
    pub body: Bytes,
    pub answer: ResponseShape,
    /// The number of keys that the response must have; `None` if any number is right. The response
    /// of a watch has no end. So for a watch, this is the number of events that complete the call.
    pub keys: Option<u64>,
    /// The token of the user, if there is one.
    pub token: Option<HeaderValue>,
}

impl Call {
    pub(crate) fn new(path: &'static str, message: &impl Message, keys: Option<u64>) -> Call {
        Call { path, body: framed(message), answer: ResponseShape::Message, keys, token: None }
    }

    /// Creates a call whose response consists of several messages.
    pub(crate) fn stream(path: &'static str, message: &impl Message, keys: Option<u64>) -> Call {
        Call { answer: ResponseShape::Stream, ..Call::new(path, message, keys) }
    }

    /// Creates a watch that ends after `events` events. If `events` is `None`, it never ends.
    pub(crate) fn watch(create: WatchCreateRequest, events: Option<u64>) -> Call {
        let answer = ResponseShape::Watch;
        Call { answer, ..Call::new(WATCH, &watch_request(create), events) }
    }

    /// Creates a call that logs in with a password.
    pub(crate) fn login(user: &User) -> Call {
        Call::new(AUTHENTICATE, &user.authenticate_request(), None)
    }

    /// Creates a call that reads a snapshot.
    pub(crate) fn snapshot() -> Call {
        Call::stream(SNAPSHOT, &SnapshotRequest::default(), None)
    }
}

#[derive(Clone, Debug)]
pub struct RequestGenerator {
    space: KeySpace,
    operation: Operation,
    chooser: KeyChooser,
    values: Option<ValueGenerator>,
    /// The login of the user, for classes that authenticate. `None` if there is no user.
    login: Option<Call>,
    /// The revision of the store before the run.
    revision: i64,
    /// If true, a range response with a different number of keys than expected is an error.
    expects_all_keys: bool,
    rng: SmallRng,
}

impl RequestGenerator {
    /// Creates the generator of a class's requests. Fails if the class needs a user and there is
    /// none, or if a watch needs more past events than the store has revisions.
    pub fn new(
        class: &Class,
        workload: &Workload,
        (user, revision): (Option<&User>, i64),
        seed: u64,
    ) -> Result<RequestGenerator> {
        let (values, keys) = match class.operation {
            Operation::Put { value } => (Some(ValueGenerator::new(value, seed)), 1),
            Operation::Txn { value, keys } => (Some(ValueGenerator::new(value, seed)), keys),
            Operation::Range { keys, .. }
            | Operation::Count { keys, .. }
            | Operation::Delete { keys } => (None, keys),
            Operation::Watch { events } if events > 0 && revision <= events as i64 => {
                let name = &class.name;
                let what = format!("class {name}: the store has only {revision} revisions");
                return Err(Error::Server(format!(
                    "{what}, too few for a watch of {events} events"
                )));
            }
            Operation::Authenticate if user.is_none() => {
                let name = &class.name;
                let what = format!("class {name} logs in, so it needs --user NAME:PASSWORD");
                return Err(Error::Workload(what));
            }
            Operation::Watch { .. } | Operation::Lease { .. } | Operation::Authenticate => {
                (None, 1)
            }
        };
        Ok(RequestGenerator {
            space: workload.space.clone(),
            operation: class.operation,
            chooser: KeyChooser::new(class.distribution, &workload.space, keys),
            values,
            login: user.map(Call::login),
            revision,
            expects_all_keys: !workload.has_deletes(),
            rng: SmallRng::seed_from_u64(seed),
        })
    }

    pub fn next_call(&mut self) -> Call {
        match self.operation {
            Operation::Range { keys, limit, serializable } => {
                let limit_or_none = limit.unwrap_or(0) as i64;
                let range =
                    RangeRequest { limit: limit_or_none, serializable, ..self.next_range(keys) };
                let found = self.expects_all_keys.then_some(limit.unwrap_or(keys));
                Call::new(RANGE, &range, found)
            }
            Operation::Count { keys, serializable } => {
                let range = self.next_range(keys);
                let count = RangeRequest { count_only: true, serializable, ..range };
                Call::new(RANGE, &count, None)
            }
            Operation::Put { .. } => {
                let number = self.next_start();
                Call::new(PUT, &self.put(number), None)
            }
            Operation::Delete { keys } => {
                Call::new(DELETE_RANGE, &delete(self.next_range(keys)), None)
            }
            Operation::Txn { keys, .. } => {
                let txn = self.txn(keys);
                Call::new(TXN, &txn, None)
            }
            Operation::Watch { events } => self.watch(events),
            Operation::Lease { ttl } => {
                let grant = LeaseGrantRequest { ttl: ttl as i64, id: 0 };
                Call::new(LEASE_GRANT, &grant, None)
            }
            Operation::Authenticate => self.login.clone().expect("`new` checks it"),
        }
    }

    fn next_start(&mut self) -> u64 {
        self.chooser.next_start(&mut self.rng)
    }

    fn next_range(&mut self, keys: u64) -> RangeRequest {
        let from = self.next_start();
        range(&self.space, from, keys)
    }

    fn watch(&self, events: u64) -> Call {
        let create = WatchCreateRequest {
            key: Bytes::from_static(&[0]),
            range_end: Bytes::from_static(&[0]),
            start_revision: if events == 0 { 0 } else { self.revision + 1 - events as i64 },
            ..WatchCreateRequest::default()
        };
        Call::watch(create, Some(events))
    }

    fn put(&mut self, number: u64) -> PutRequest {
        let value = self.values.as_ref().map(|values| values.random_value(&mut self.rng));
        put(&self.space, number, value.unwrap_or_default())
    }

    /// If the first key exists, the transaction puts `keys` keys; otherwise it reads the first key.
    fn txn(&mut self, keys: u64) -> TxnRequest {
        let from = self.next_start();
        let first = range(&self.space, from, 1);
        let puts = (from..from + keys).map(|number| Op::RequestPut(self.put(number)));
        TxnRequest {
            compare: vec![compare_version(&first, CompareResult::Greater)],
            success: operations(puts),
            failure: operations([Op::RequestRange(first)]),
        }
    }
}

/// Encodes a message, with its gRPC prefix.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut body = BytesMut::with_capacity(length + 5);
    body.put_u8(0);
    // The length fits: the largest message is a transaction of about 256 MiB, in a closed loop.
    body.put_u32(length as u32);
    message.encode(&mut body).expect("a buffer of bytes grows");
    body.freeze()
}

/// Returns a request for the number of keys of a space.
pub(crate) fn count(space: &KeySpace) -> RangeRequest {
    RangeRequest { count_only: true, ..range(space, 0, space.count) }
}

/// Returns a request for a watch of all keys of a space, starting at a revision.
pub(crate) fn watch_all(space: &KeySpace, start_revision: i64) -> WatchCreateRequest {
    let RangeRequest { key, range_end, .. } = range(space, 0, space.count);
    WatchCreateRequest { key, range_end, start_revision, ..Default::default() }
}

pub(crate) fn watch_request(create: WatchCreateRequest) -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

/// Returns a request that deletes the keys of a range.
pub(crate) fn delete(RangeRequest { key, range_end, .. }: RangeRequest) -> DeleteRangeRequest {
    DeleteRangeRequest { key, range_end, prev_kv: false }
}

/// Wraps operations, so that they can be a branch of a transaction.
pub(crate) fn operations(operations: impl IntoIterator<Item = Op>) -> Vec<RequestOp> {
    operations.into_iter().map(|operation| RequestOp { request: Some(operation) }).collect()
}

/// Returns a compare of the versions of keys with 0. If `result` is `Greater`, the compare holds if
/// all of these keys exist.
pub(crate) fn compare_version(keys: &RangeRequest, result: CompareResult) -> Compare {
    Compare {
        key: keys.key.clone(),
        range_end: keys.range_end.clone(),
        target: CompareTarget::Version as i32,
        result: result as i32,
        target_union: Some(TargetUnion::Version(0)),
    }
}

pub(crate) fn put(space: &KeySpace, number: u64, value: Bytes) -> PutRequest {
    PutRequest { key: space.key(number), value, ..PutRequest::default() }
}

/// Returns a range of `keys` keys that starts at key number `from`. A range of one key has no range
/// end.
pub(crate) fn range(space: &KeySpace, from: u64, keys: u64) -> RangeRequest {
    let range_end = if keys == 1 { Bytes::new() } else { space.key(from + keys) };
    RangeRequest { key: space.key(from), range_end, ..RangeRequest::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Spacing;
    use crate::keys::{Distribution, Sizes};

    const SPACE: &str = "/load/";

    fn generator(operation: Operation) -> Result<RequestGenerator> {
        let value = Sizes::constant(4);
        let space = KeySpace { prefix: SPACE.to_owned(), count: 20, key_size: 9, value };
        let name = "some".to_owned();
        let (rate, spacing) = (1.0, Spacing::Constant);
        let distribution = Distribution::Uniform;
        let class =
            Class { name, index: 0, operation, rate, spacing, connections: 1, distribution };
        let workload = Workload { seconds: 1, space, classes: vec![class] };
        RequestGenerator::new(&workload.classes[0], &workload, (None, 100), 11)
    }

    fn call(operation: Operation) -> Call {
        generator(operation).expect("it needs no user").next_call()
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
    fn what_a_class_lacks_is_reported() {
        for (operation, expected) in [
            (Operation::Authenticate, "logs in, so it needs --user NAME:PASSWORD"),
            (
                Operation::Watch { events: 100 },
                "the store has only 100 revisions, too few for a watch of 100 events",
            ),
        ] {
            let error = generator(operation).map(drop).expect_err(expected).to_string();
            assert!(error.starts_with("class some") && error.ends_with(expected), "{error}");
        }
    }

    #[test]
    fn puts_stay_in_the_space_and_watches_start_before_the_run() {
        let put: PutRequest = decoded(&call(Operation::Put { value: Sizes { min: 2, max: 5 } }));
        assert!(put.key.starts_with(SPACE.as_bytes()) && (2..=5).contains(&put.value.len()));
        let watch: WatchRequest = decoded(&call(Operation::Watch { events: 30 }));
        let Some(RequestUnion::CreateRequest(create)) = watch.request_union else { panic!() };
        assert_eq!(create.start_revision, 71);
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
