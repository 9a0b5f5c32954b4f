//! A sequence of KV requests, from their bytes to a store in memory. Each request is decoded,
//! described and checked. If the check accepts it, and it is not a lease grant, it is also written
//! as an entry of the log and applied.
//!
//! ```text
//!   kind (1) │ length (2) │ request │ kind │ length │ request │ ...
//! ```

use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::{Config, Era};
use clearlane_engine::MemoryEngine;
use clearlane_mvcc::{Store, StoreConfig};
use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::{
    InternalRaftRequest, LeaseGrantRequest, RangeRequest, TxnRequest,
};
use clearlane_proto::nested::{decode_raft_request, decode_txn};
use clearlane_replica::AppliedPosition;
use clearlane_replica::apply::{
    self, EvaluatedCompares, Limits, PartialResponse, ReadBudget, TxnReadMode, check, describe, txn,
};

use crate::input::Input;

const KINDS: usize = 6;
/// Maximum number of requests in an input. This limits the size of the store, and so the size of
/// the responses: a transaction may read the same range many times.
const REQUESTS_MAX: usize = 32;

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let mut member = Member::new();
    for _ in 0..REQUESTS_MAX {
        if input.is_empty() {
            break;
        }
        if let Some(request) = decode(input.choice(KINDS), input.string()) {
            member.handle(request);
        }
    }
}

fn decode(kind: usize, bytes: &[u8]) -> Option<InternalRaftRequest> {
    fn some<M: Message + Default>(bytes: Bytes) -> Option<Option<M>> {
        M::decode(bytes).ok().map(Some)
    }
    let bytes = Bytes::copy_from_slice(bytes);
    let mut request = InternalRaftRequest::default();
    match kind {
        0 => request.range = some(bytes)?,
        1 => request.put = some(bytes)?,
        2 => request.delete_range = some(bytes)?,
        3 => request.txn = Some(decode_txn(bytes).ok()?),
        4 => request.compaction = some(bytes)?,
        _ => request.lease_grant = some::<LeaseGrantRequest>(bytes)?,
    }
    Some(request)
}

/// The parts of a member that KV requests need. All leases with even IDs exist.
struct Member {
    store: Box<dyn Store<AppliedPosition>>,
    index: u64,
}

impl Member {
    fn new() -> Member {
        let config = StoreConfig::new(
            Arc::new(MemoryEngine::new()),
            Config::default(),
            AppliedPosition::pre_commit(),
            AppliedPosition::default(),
        );
        let (store, _) = clearlane_mvcc::open(Era::Clearlane, config).expect("an empty store");
        Member { store, index: 0 }
    }

    fn handle(&mut self, request: InternalRaftRequest) {
        let _ = describe::request(&request).to_string();
        if apply::check(&request, &Limits::default()).is_err() || request.lease_grant.is_some() {
            return;
        }
        match &request {
            InternalRaftRequest { range: Some(range), .. } => self.range(range),
            InternalRaftRequest { txn: Some(txn), .. } if txn::is_read_only(txn) => self.read(txn),
            _ => {}
        }
        let entry = Bytes::from(request.encode_to_vec());
        let entry = decode_raft_request(entry).expect("what was proposed can be applied");
        assert!(entry == request, "{entry:?} is applied, {request:?} was proposed");
        self.apply(&entry);
    }

    fn range(&self, request: &RangeRequest) {
        let _ = check::range_stream(request);
        let read = self.store.begin_read();
        let _ = apply::range(&*read, request).expect("memory can be read");
    }

    fn read(&self, request: &TxnRequest) {
        let read = self.store.begin_read();
        let _ = txn::read_only_txn(&*read, request).expect("memory can be read");
    }

    fn apply(&mut self, request: &InternalRaftRequest) {
        self.index += 1;
        let position = AppliedPosition { index: self.index, term: 1, ..AppliedPosition::default() };
        let compares = request.txn.as_ref().map(|txn| {
            let read = self.store.begin_read();
            EvaluatedCompares::evaluate(&*read, &txn.compare).expect("memory can be read")
        });
        let has_lease = |id| id % 2 == 0;
        let mode = TxnReadMode::Deferred(ReadBudget { records: 1, bytes: 16 });
        let store = &*self.store;
        let applied = apply::apply(store, &has_lease, request, position, mode, compares.as_ref());
        let applied = applied.expect("what was checked can be applied");
        if let Some(mut job) = applied.compaction {
            while !store.compact_step(&mut job, 100).expect("memory can be compacted") {}
        }
        if let Ok(response) = applied.result {
            let response = PartialResponse::new(response, applied.deferred_reads);
            let response = response.make_reads().expect("memory can be read");
            assert_eq!(response.encode_to_vec().len(), response.encoded_len());
        }
    }
}
