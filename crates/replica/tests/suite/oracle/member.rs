//! The parts of a member that the recordings need: a store, requests, and leases without a clock.
//!
//! A write is processed as if it went through a log: it is checked, encoded, decoded, and applied
//! as the next entry. A read is processed as in the server: it is checked and answered from a
//! snapshot.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_backend::Config;
use clearlane_backend::Era;
use clearlane_contention::Registry;
use clearlane_engine::{Engine, MemoryEngine};
use clearlane_lease::{Config as LeaseConfig, Lessor};
use clearlane_mvcc::{KeyLeases, Store, StoreConfig};
use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, InternalRaftRequest, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
    RangeRequest, RequestHeader, ResponseHeader, TxnRequest,
};
use clearlane_replica::AppliedPosition;
use clearlane_replica::apply::{
    self, AppliedResponse, Limits, PartialResponse, ReadBudget, RequestRejection, TxnReadMode,
    check, txn,
};
use prost_reflect::{DynamicMessage, MethodDescriptor, SerializeOptions};
use serde_json::Value;

/// The response, or the text of the rejection.
pub(crate) type CallResult = Result<Value, String>;

/// Maximum number of bytes in a request that etcd's server accepts.
const MESSAGE_MAX: usize = 2 << 20;

/// A member for one scenario.
pub(crate) struct ReplayMember {
    engine: Arc<dyn Engine>,
    era: Era,
    store: Box<dyn Store<AppliedPosition>>,
    leases: Arc<Lessor>,
    /// Number of applied entries.
    index: u64,
}

fn open(
    era: Era,
    engine: &Arc<dyn Engine>,
    leases: &Arc<Lessor>,
) -> Box<dyn Store<AppliedPosition>> {
    let ground = StoreConfig {
        engine: Arc::clone(engine),
        config: Config::default(),
        pre_commit: AppliedPosition::pre_commit(),
        consistent_index: AppliedPosition::read(&*engine.snapshot().unwrap()).unwrap(),
        leases: Arc::clone(leases) as Arc<dyn KeyLeases>,
    };
    let (store, opened) = clearlane_mvcc::open(era, ground).unwrap();
    assert!(opened.compaction.is_none(), "every compaction had come to its end");
    leases.restore(&*store.begin_read(), &opened.leases).unwrap();
    store
}

impl ReplayMember {
    pub(crate) fn new(era: Era) -> ReplayMember {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let config = LeaseConfig::new(Duration::from_secs(1));
        let leases = Arc::new(Lessor::new(config, &Registry::new()));
        let store = open(era, &engine, &leases);
        ReplayMember { engine, era, store, leases, index: 0 }
    }

    /// Stops in an orderly way, and restarts on the same data.
    pub(crate) fn restart(&mut self) {
        self.store.commit().unwrap();
        // An engine has one store at a time, so the old store is dropped first.
        let nowhere: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        self.store = open(self.era, &nowhere, &self.leases);
        self.store = open(self.era, &self.engine, &self.leases);
    }

    /// Asserts that the applied position covers every entry, including rejected ones.
    pub(crate) fn assert_progress(&self, place: &str) {
        self.store.commit().unwrap();
        let found = AppliedPosition::read(&*self.engine.snapshot().unwrap()).unwrap();
        assert_eq!(found.index, self.index, "{place}");
    }

    /// Returns the value of a key, which must exist.
    pub(crate) fn value(&self, key: &[u8]) -> Bytes {
        let request = RangeRequest { key: Bytes::copy_from_slice(key), ..RangeRequest::default() };
        let read = self.store.begin_read();
        apply::range(&*read, &request).unwrap().unwrap().kvs[0].value.clone()
    }

    /// Makes a call. Request and response are JSON.
    pub(crate) fn call(
        &mut self,
        call: &MethodDescriptor,
        json: &Value,
        place: &str,
    ) -> CallResult {
        let request = DynamicMessage::deserialize(call.input(), json)
            .unwrap_or_else(|error| panic!("{place}: {error}"));
        let bytes = Bytes::from(request.encode_to_vec());
        if bytes.len() > MESSAGE_MAX {
            // Such a request is not applied, because the server rejects it earlier.
            let (len, max) = (bytes.len(), MESSAGE_MAX);
            return Err(format!("grpc: received message larger than max ({len} vs. {max})"));
        }
        let reply = self.answer(call.full_name(), bytes).map_err(|refused| refused.to_string())?;
        let reply = DynamicMessage::decode(call.output(), &reply[..]).unwrap();
        let options = SerializeOptions::new().use_proto_field_name(true);
        Ok(reply.serialize_with_options(serde_json::value::Serializer, &options).unwrap())
    }

    /// Makes a call. Request and response are encoded messages.
    fn answer(&mut self, method: &str, bytes: Bytes) -> Result<Vec<u8>, RequestRejection> {
        let mut entry = InternalRaftRequest::default();
        match method {
            "etcdserverpb.KV.Range" => return self.range(&RangeRequest::decode(bytes).unwrap()),
            "etcdserverpb.KV.Txn" => {
                let request = TxnRequest::decode(bytes).unwrap();
                if txn::is_read_only(&request) {
                    return self.read_only_txn(&request);
                }
                entry.txn = Some(request);
            }
            "etcdserverpb.KV.Put" => entry.put = Some(Message::decode(bytes).unwrap()),
            "etcdserverpb.KV.DeleteRange" => {
                entry.delete_range = Some(Message::decode(bytes).unwrap());
            }
            "etcdserverpb.KV.Compact" => {
                entry.compaction = Some(CompactionRequest::decode(bytes).unwrap());
            }
            "etcdserverpb.Lease.LeaseGrant" => {
                entry.lease_grant = Some(Message::decode(bytes).unwrap());
            }
            "etcdserverpb.Lease.LeaseTimeToLive" => {
                return Ok(self.time_to_live(Message::decode(bytes).unwrap()));
            }
            other => panic!("no method {other}"),
        }
        self.write(entry)
    }

    fn range(&self, request: &RangeRequest) -> Result<Vec<u8>, RequestRejection> {
        check::range(request)?;
        let read = self.store.begin_read();
        Ok(apply::range(&*read, request).unwrap()?.encode_to_vec())
    }

    fn read_only_txn(&self, request: &TxnRequest) -> Result<Vec<u8>, RequestRejection> {
        check::txn(request, &Limits::default())?;
        let read = self.store.begin_read();
        Ok(txn::read_only_txn(&*read, request).unwrap()?.encode_to_vec())
    }

    /// Checks a request and applies it as the next entry, like a member that is alone in its
    /// cluster.
    fn write(&mut self, mut entry: InternalRaftRequest) -> Result<Vec<u8>, RequestRejection> {
        let header = RequestHeader { id: self.index + 1, ..RequestHeader::default() };
        entry.header = Some(header);
        apply::check(&entry, &Limits::default())?;
        self.index += 1;
        let entry = InternalRaftRequest::decode(entry.encode_to_vec().as_slice()).unwrap();
        let progress = AppliedPosition { index: self.index, term: 2, ..AppliedPosition::default() };
        let (store, leases) = (&*self.store, &*self.leases);
        let leased = apply::lease::apply(store, leases, &entry, progress.clone()).unwrap();
        let has_lease = |id| leases.contains(id);
        let applied = leased.unwrap_or_else(|| {
            // The budget is empty, so every read that can be deferred is deferred.
            let mode = TxnReadMode::Deferred(ReadBudget { records: 0, bytes: 0 });
            apply::apply(store, &has_lease, &entry, progress, mode, None).unwrap()
        });
        if let Ok(AppliedResponse::LeaseGrant(granted)) = &applied.result {
            leases.start_expiry(granted.id, Duration::ZERO);
        }
        assert_eq!(applied.txn_result.revision, self.store.begin_read().revision());
        if let Some(mut job) = applied.compaction {
            // While etcd's responses were recorded, etcd had enough time to finish the compaction,
            // even if the call did not wait for it.
            while !self.store.compact_step(&mut job, 2).unwrap() {}
        }
        let response = PartialResponse::new(applied.result?, applied.deferred_reads);
        Ok(response.make_reads().unwrap().encode_to_vec())
    }

    fn header(&self) -> Option<ResponseHeader> {
        let revision = self.store.begin_read().revision();
        Some(ResponseHeader { revision, ..ResponseHeader::default() })
    }

    /// Returns the granted TTL and the keys of a lease. The remaining time is not known here.
    fn time_to_live(&self, request: LeaseTimeToLiveRequest) -> Vec<u8> {
        LeaseTimeToLiveResponse {
            header: self.header(),
            id: request.id,
            granted_ttl: self.leases.time_to_live(request.id, Duration::ZERO).unwrap().granted,
            keys: self.leases.keys(request.id),
            ..Default::default()
        }
        .encode_to_vec()
    }
}
