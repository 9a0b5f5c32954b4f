//! The model of requests and their results. It is as simple as possible.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::compare::TargetUnion;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::response_op::Response;
use clearlane_proto::etcdserverpb::{
    CompactionResponse, Compare, DeleteRangeRequest, DeleteRangeResponse, InternalRaftRequest,
    PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp,
    TxnRequest, TxnResponse,
};
use clearlane_proto::mvccpb::KeyValue;
use clearlane_replica::apply::{AppliedResponse, ApplyResult, RequestRejection};

type Map = BTreeMap<Bytes, KeyValue>;
type ModelResult<T> = Result<T, RequestRejection>;

/// Returns whether a lease exists.
pub(crate) fn has_lease(id: i64) -> bool {
    [1, 2].contains(&id)
}

fn is_in(key: &[u8], from: &[u8], range_end: &[u8]) -> bool {
    match range_end {
        [] => key == from,
        [0] => key >= from,
        end => key >= from && key < end,
    }
}

fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}

/// The maps by revision, and the first revision that may be read.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    maps: Vec<Map>,
    compacted: i64,
}

/// A transaction in progress, with the map that it changes.
struct ModelTxn<'m> {
    before: &'m Model,
    map: Map,
    has_changed: bool,
}

impl Model {
    pub(crate) fn new() -> Model {
        // No store has revision 0. Revision 1 is the revision of an empty store.
        Model { maps: vec![Map::new(), Map::new()], compacted: -1 }
    }

    pub(crate) fn revision(&self) -> i64 {
        self.maps.len() as i64 - 1
    }

    fn now(&self) -> &Map {
        &self.maps[self.maps.len() - 1]
    }

    pub(crate) fn apply(&mut self, request: &InternalRaftRequest) -> ApplyResult {
        if let Some(request) = &request.range {
            return self.range(request).map(AppliedResponse::Range);
        }
        if let Some(request) = &request.put {
            if request.lease != 0 && !has_lease(request.lease) {
                return Err(RequestRejection::LeaseNotFound);
            }
            return self.change(|draft| draft.put(request)).map(AppliedResponse::Put);
        }
        if let Some(request) = &request.delete_range {
            return self
                .change(|draft| Ok(draft.delete(request)))
                .map(AppliedResponse::DeleteRange);
        }
        if let Some(request) = &request.txn {
            return self.txn(request).map(AppliedResponse::Txn);
        }
        let at = request.compaction.as_ref().unwrap().revision;
        if at <= self.compacted {
            return Err(RequestRejection::Compacted);
        }
        if at > self.revision() {
            return Err(RequestRejection::FutureRevision);
        }
        self.compacted = at;
        Ok(AppliedResponse::Compact(CompactionResponse { header: header(self.revision()) }))
    }

    pub(crate) fn range(&self, request: &RangeRequest) -> ModelResult<RangeResponse> {
        ModelTxn { before: self, map: self.now().clone(), has_changed: false }.range(request)
    }

    pub(crate) fn txn(&mut self, request: &TxnRequest) -> ModelResult<TxnResponse> {
        self.change(|draft| {
            let mut response = draft.txn(request)?;
            response.header = header(draft.revision());
            Ok(response)
        })
    }

    fn change<T>(
        &mut self,
        work: impl FnOnce(&mut ModelTxn<'_>) -> ModelResult<T>,
    ) -> ModelResult<T> {
        let mut draft = ModelTxn { before: self, map: self.now().clone(), has_changed: false };
        let done = work(&mut draft)?;
        let ModelTxn { map, has_changed, .. } = draft;
        if has_changed {
            self.maps.push(map);
        }
        Ok(done)
    }
}

impl ModelTxn<'_> {
    fn revision(&self) -> i64 {
        self.before.revision() + i64::from(self.has_changed)
    }

    fn put(&mut self, request: &PutRequest) -> ModelResult<PutResponse> {
        let old = self.map.get(&request.key).cloned();
        if (request.ignore_value || request.ignore_lease) && old.is_none() {
            return Err(RequestRejection::KeyNotFound);
        }
        let kept = old.clone().unwrap_or_default();
        self.has_changed = true;
        let revision = self.revision();
        let record = KeyValue {
            key: request.key.clone(),
            create_revision: old.as_ref().map_or(revision, |old| old.create_revision),
            mod_revision: revision,
            version: kept.version + 1,
            value: if request.ignore_value { kept.value } else { request.value.clone() },
            lease: if request.ignore_lease { kept.lease } else { request.lease },
        };
        self.map.insert(request.key.clone(), record);
        Ok(PutResponse { header: header(revision), prev_kv: old.filter(|_| request.prev_kv) })
    }

    fn delete(&mut self, request: &DeleteRangeRequest) -> DeleteRangeResponse {
        let is_gone = |key: &Bytes| is_in(key, &request.key, &request.range_end);
        let gone: Vec<KeyValue> =
            self.map.values().filter(|record| is_gone(&record.key)).cloned().collect();
        self.map.retain(|key, _| !is_gone(key));
        self.has_changed |= !gone.is_empty();
        let deleted = gone.len() as i64;
        let prev_kvs = if request.prev_kv { gone } else { Vec::new() };
        DeleteRangeResponse { header: header(self.revision()), deleted, prev_kvs }
    }

    fn range(&self, request: &RangeRequest) -> ModelResult<RangeResponse> {
        let map = match request.revision {
            ..=0 => &self.map,
            at if at > self.revision() => return Err(RequestRejection::FutureRevision),
            at if at < self.before.compacted => return Err(RequestRejection::Compacted),
            at => self.before.maps.get(at as usize).unwrap_or(&self.map),
        };
        let mut kvs: Vec<KeyValue> = map
            .values()
            .filter(|record| is_in(&record.key, &request.key, &request.range_end))
            .cloned()
            .collect();
        let (count, header) = (kvs.len() as i64, header(self.revision()));
        if request.count_only {
            return Ok(RangeResponse { header, count, ..RangeResponse::default() });
        }
        let more = shape(&mut kvs, request);
        Ok(RangeResponse { header, kvs, more, count })
    }

    fn txn(&mut self, request: &TxnRequest) -> ModelResult<TxnResponse> {
        let succeeded = request.compare.iter().all(|it| holds(self.before.now(), it));
        let ops = if succeeded { &request.success } else { &request.failure };
        let responses = ops.iter().map(|op| self.op(op)).collect::<ModelResult<Vec<_>>>()?;
        Ok(TxnResponse { header: Some(ResponseHeader::default()), succeeded, responses })
    }

    fn op(&mut self, op: &RequestOp) -> ModelResult<ResponseOp> {
        let response = match op.request.as_ref().unwrap() {
            Request::RequestRange(request) => {
                // The requested revision is compared with the revision before the transaction. A
                // negative revision is also compared, although it means the newest revision.
                match request.revision {
                    0 => {}
                    at if at > self.before.revision() => {
                        return Err(RequestRejection::FutureRevision);
                    }
                    at if at < self.before.compacted => return Err(RequestRejection::Compacted),
                    _ => {}
                }
                Response::ResponseRange(self.range(request)?)
            }
            Request::RequestPut(request) => {
                if request.lease != 0 && !has_lease(request.lease) {
                    return Err(RequestRejection::LeaseNotFound);
                }
                Response::ResponsePut(self.put(request)?)
            }
            Request::RequestDeleteRange(request) => {
                Response::ResponseDeleteRange(self.delete(request))
            }
            Request::RequestTxn(request) => Response::ResponseTxn(self.txn(request)?),
        };
        Ok(ResponseOp { response: Some(response) })
    }
}

/// Filters and sorts `kvs`, and truncates it to the limit of the request. Clears the values if the
/// request wants only keys. Returns whether more records matched than the limit.
fn shape(kvs: &mut Vec<KeyValue>, request: &RangeRequest) -> bool {
    let bounds = [
        (request.min_mod_revision, request.max_mod_revision),
        (request.min_create_revision, request.max_create_revision),
    ];
    let limit = if request.limit > 0 { request.limit as usize } else { usize::MAX };
    let (order, target) = (request.sort_order, request.sort_target);
    // If a request has neither an order nor a filter, only the records within the limit, and one
    // more, are sorted by its target.
    if bounds == [(0, 0); 2] && order == 0 {
        kvs.truncate(limit.saturating_add(1));
    }
    kvs.retain(|record| {
        [record.mod_revision, record.create_revision]
            .iter()
            .zip(bounds)
            .all(|(it, (min, max))| (min == 0 || *it >= min) && (max == 0 || *it <= max))
    });
    kvs.sort_by(|a, b| {
        let numbers = |record: &KeyValue| match target {
            1 => record.version,
            2 => record.create_revision,
            3 => record.mod_revision,
            _ => 0,
        };
        let by_target = match target {
            0 => a.key.cmp(&b.key),
            4 => a.value.cmp(&b.value),
            _ => numbers(a).cmp(&numbers(b)),
        };
        let directed = if order == 2 { by_target.reverse() } else { by_target };
        directed.then(a.key.cmp(&b.key))
    });
    let more = kvs.len() > limit;
    kvs.truncate(limit);
    if request.keys_only {
        for record in kvs {
            record.value = Bytes::new();
            record.lease = if target == 4 { record.lease } else { 0 };
        }
    }
    more
}

fn holds(map: &Map, compare: &Compare) -> bool {
    let found: Vec<&KeyValue> = map
        .values()
        .filter(|record| is_in(&record.key, &compare.key, &compare.range_end))
        .collect();
    let missing = KeyValue::default();
    match (found.is_empty(), compare.target) {
        (true, 3) => false,
        (true, _) => holds_for(compare, &missing),
        (false, _) => found.into_iter().all(|record| holds_for(compare, record)),
    }
}

fn holds_for(compare: &Compare, record: &KeyValue) -> bool {
    use TargetUnion as Given;
    let (kind, number, value) = match compare.target_union.clone() {
        Some(Given::Version(number)) => (0, number, Bytes::new()),
        Some(Given::CreateRevision(number)) => (1, number, Bytes::new()),
        Some(Given::ModRevision(number)) => (2, number, Bytes::new()),
        Some(Given::Value(value)) => (3, 0, value),
        Some(Given::Lease(number)) => (4, number, Bytes::new()),
        None => (-1, 0, Bytes::new()),
    };
    let (number, value) = if kind == compare.target { (number, value) } else { (0, Bytes::new()) };
    let relation = match compare.target {
        0 => record.version.cmp(&number),
        1 => record.create_revision.cmp(&number),
        2 => record.mod_revision.cmp(&number),
        3 => record.value.cmp(&value),
        4 => record.lease.cmp(&number),
        _ => Ordering::Equal,
    };
    match compare.result {
        0 => relation == Ordering::Equal,
        1 => relation == Ordering::Greater,
        2 => relation == Ordering::Less,
        3 => relation != Ordering::Equal,
        _ => true,
    }
}

/// Checks a request as the server does before it is proposed, without reading the store.
impl Model {
    pub(crate) fn check(&self, request: &InternalRaftRequest, ops_max: usize) -> ModelResult<()> {
        let InternalRaftRequest { range, put, delete_range, txn, .. } = request;
        let requests = [
            range.clone().map(Request::RequestRange),
            put.clone().map(Request::RequestPut),
            delete_range.clone().map(Request::RequestDeleteRange),
            txn.clone().map(Request::RequestTxn),
        ];
        for request in requests.iter().flatten() {
            check_op(&Some(request.clone()), ops_max)?;
        }
        if let Some(txn) = txn {
            touched(&txn.success)?;
            touched(&txn.failure)?;
        }
        Ok(())
    }
}

fn check_op(request: &Option<Request>, ops_max: usize) -> ModelResult<()> {
    let needs = |key: &Bytes| if key.is_empty() { Err(RequestRejection::EmptyKey) } else { Ok(()) };
    match request {
        None => Err(RequestRejection::KeyNotFound),
        Some(Request::RequestRange(range)) => {
            needs(&range.key)?;
            match (0..3).contains(&range.sort_order) && (0..5).contains(&range.sort_target) {
                true => Ok(()),
                false => Err(RequestRejection::InvalidSortOption),
            }
        }
        Some(Request::RequestPut(put)) => {
            needs(&put.key)?;
            match (put.ignore_value, put.ignore_lease) {
                (true, _) if !put.value.is_empty() => Err(RequestRejection::ValueProvided),
                (_, true) if put.lease != 0 => Err(RequestRejection::LeaseProvided),
                _ => Ok(()),
            }
        }
        Some(Request::RequestDeleteRange(delete)) => needs(&delete.key),
        Some(Request::RequestTxn(txn)) => {
            let lens = [txn.compare.len(), txn.success.len(), txn.failure.len()];
            let longest = lens.into_iter().max().unwrap();
            if longest > ops_max {
                return Err(RequestRejection::TooManyOps);
            }
            txn.compare.iter().try_for_each(|compare| needs(&compare.key))?;
            let mut ops = txn.success.iter().chain(&txn.failure);
            ops.try_for_each(|op| check_op(&op.request, ops_max - longest))
        }
    }
}

/// The keys that operations put, and the ranges that they delete.
type KeySets = (Vec<Bytes>, Vec<(Bytes, Bytes)>);

fn touched(ops: &[RequestOp]) -> ModelResult<KeySets> {
    let (mut puts, mut deletes): KeySets = Default::default();
    let may_put = |(puts, deletes): (&[Bytes], &[(Bytes, Bytes)]), key: &Bytes| {
        // The range end `\0` means that the range has no end. This check takes it literally: a
        // range that ends before the key `\0` covers no key.
        let covers = |(from, end): &(Bytes, Bytes)| &end[..] != b"\0" && is_in(key, from, end);
        match puts.contains(key) || deletes.iter().any(covers) {
            true => Err(RequestRejection::DuplicateKey),
            false => Ok(()),
        }
    };
    let requests = || ops.iter().filter_map(|op| op.request.as_ref());
    for request in requests() {
        if let Request::RequestDeleteRange(delete) = request {
            deletes.push((delete.key.clone(), delete.range_end.clone()));
        }
    }
    for request in requests() {
        if let Request::RequestTxn(txn) = request {
            let (then, other) = (touched(&txn.success)?, touched(&txn.failure)?);
            for key in then.0.iter().chain(&other.0) {
                may_put((&puts, &deletes), key)?;
            }
            puts.extend(then.0.into_iter().chain(other.0));
            deletes.extend(then.1.into_iter().chain(other.1));
        }
    }
    for request in requests() {
        if let Request::RequestPut(put) = request {
            may_put((&puts, &deletes), &put.key)?;
            puts.push(put.key.clone());
        }
    }
    Ok((puts, deletes))
}
