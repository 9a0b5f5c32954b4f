//! The requests of a class, as the bytes that are sent.

use bytes::{BufMut, Bytes, BytesMut};
use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    AuthenticateRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest, WatchCreateRequest, WatchRequest,
};
use http::HeaderValue;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::keys::{KeyChooser, KeySpace, ValueGenerator};
use crate::response_scanner::ResponseShape;
use crate::users::User;
use crate::workload::{Class, Operation, Workload};
use crate::{Error, Result};

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
    chooser: KeyChooser,
    values: Option<ValueGenerator>,
    /// That is logged in.
    login: Option<AuthenticateRequest>,
    /// Of the store before the run.
    revision: i64,
    /// Whether an answer with too few keys is an error.
    expects_all_keys: bool,
    rng: SmallRng,
}

impl RequestGenerator {
    /// An error if the class needs a user and there is none, or more events than there are.
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
                let what = format!("class {name}: there are {revision} revisions");
                return Err(Error::Server(format!("{what}, and a watch of {events} events")));
            }
            Operation::Authenticate if user.is_none() => {
                let name = &class.name;
                let what = format!("class {name} logs in: --user NAME:PASSWORD says whom");
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
            login: user.map(User::authenticate_request),
            revision,
            expects_all_keys: !workload.has_deletes(),
            rng: SmallRng::seed_from_u64(seed),
        })
    }

    pub fn next_call(&mut self) -> Call {
        match self.operation {
            Operation::Range { keys, limit, serializable } => {
                let from = self.next_start();
                let range = RangeRequest {
                    limit: limit.map_or(0, |limit| limit as i64),
                    serializable,
                    ..range(&self.space, from, keys)
                };
                let found = self.expects_all_keys.then_some(limit.unwrap_or(keys));
                Call::new("/etcdserverpb.KV/Range", &range, found)
            }
            Operation::Count { keys, serializable } => {
                let from = self.next_start();
                let range = range(&self.space, from, keys);
                let count = RangeRequest { count_only: true, serializable, ..range };
                Call::new("/etcdserverpb.KV/Range", &count, None)
            }
            Operation::Put { .. } => {
                let number = self.next_start();
                Call::new("/etcdserverpb.KV/Put", &self.put(number), None)
            }
            Operation::Delete { keys } => {
                let from = self.next_start();
                let RangeRequest { key, range_end, .. } = range(&self.space, from, keys);
                let delete = DeleteRangeRequest { key, range_end, prev_kv: false };
                Call::new("/etcdserverpb.KV/DeleteRange", &delete, None)
            }
            Operation::Txn { keys, .. } => {
                let txn = self.txn(keys);
                Call::new("/etcdserverpb.KV/Txn", &txn, None)
            }
            Operation::Watch { events } => self.watch(events),
            Operation::Lease { ttl } => {
                let grant = LeaseGrantRequest { ttl: ttl as i64, id: 0 };
                Call::new("/etcdserverpb.Lease/LeaseGrant", &grant, None)
            }
            Operation::Authenticate => {
                let login = self.login.clone().unwrap_or_default();
                Call::new("/etcdserverpb.Auth/Authenticate", &login, None)
            }
        }
    }

    fn next_start(&mut self) -> u64 {
        self.chooser.next_start(&mut self.rng)
    }

    fn watch(&self, events: u64) -> Call {
        let create = WatchCreateRequest {
            key: Bytes::from_static(&[0]),
            range_end: Bytes::from_static(&[0]),
            start_revision: if events == 0 { 0 } else { self.revision + 1 - events as i64 },
            ..WatchCreateRequest::default()
        };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let call = Call::new("/etcdserverpb.Watch/Watch", &request, Some(events));
        Call { answer: ResponseShape::Watch, ..call }
    }

    fn put(&mut self, number: u64) -> PutRequest {
        let value = self.values.as_ref().map(|values| values.random_value(&mut self.rng));
        put(&self.space, number, value.unwrap_or_default())
    }

    /// If the first key exists, puts `keys` keys; else reads the first.
    fn txn(&mut self, keys: u64) -> TxnRequest {
        let from = self.next_start();
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
    use crate::keys::{Distribution, Sizes};

    const SPACE: &str = "/load/";

    fn call(operation: Operation) -> Call {
        let value = Sizes::constant(4);
        let space = KeySpace { prefix: SPACE.to_owned(), count: 20, key_size: 9, value };
        let name = "some".to_owned();
        let (rate, spacing) = (1.0, Spacing::Constant);
        let distribution = Distribution::Uniform;
        let class =
            Class { name, index: 0, operation, rate, spacing, connections: 1, distribution };
        let workload = Workload { seconds: 1, space, classes: vec![class] };
        let generator = RequestGenerator::new(&workload.classes[0], &workload, (None, 100), 11);
        generator.expect("it needs no user").next_call()
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
    fn a_watch_begins_so_many_events_before_the_run() {
        let watch: WatchRequest = decoded(&call(Operation::Watch { events: 30 }));
        let Some(RequestUnion::CreateRequest(create)) = watch.request_union else {
            panic!("it creates a watch")
        };
        assert_eq!(create.start_revision, 71);
    }

    #[test]
    fn what_a_class_lacks_is_told() {
        let value = Sizes::constant(4);
        let space = KeySpace { prefix: SPACE.to_owned(), count: 20, key_size: 9, value };
        let told = |operation| {
            let (name, rate, spacing) = ("some".to_owned(), 1.0, Spacing::Constant);
            let distribution = Distribution::Uniform;
            let class =
                Class { name, index: 0, operation, rate, spacing, connections: 1, distribution };
            let workload =
                Workload { seconds: 1, space: space.clone(), classes: vec![class.clone()] };
            let made = RequestGenerator::new(&class, &workload, (None, 100), 1);
            made.map(drop).expect_err("something is missing").to_string()
        };
        let login = "class some logs in: --user NAME:PASSWORD says whom";
        assert_eq!(told(Operation::Authenticate), login);
        let watch = "class some: there are 100 revisions, and a watch of 100 events";
        assert_eq!(told(Operation::Watch { events: 100 }), watch);
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
