//! Random requests against a plain model: a whole map of records for every revision.
//!
//! The model goes about a transaction in the other way: it works on a copy of the map, refuses
//! wherever it comes to something that cannot be done, and throws the copy away. What the real one
//! finds out beforehand must be the same. Replies are compared as a whole, and behind each entry so
//! is the store.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod model;
mod strategies;

use std::sync::Arc;

use clearlane_backend::{Config, Era};
use clearlane_engine::{Engine, MemoryEngine};
use clearlane_mvcc::{Store, StoreConfig};
use clearlane_proto::etcdserverpb::{InternalRaftRequest, RangeRequest};
use clearlane_server::AppliedPosition;
use clearlane_server::apply::{self, Limits, check, txn};
use model::{Model, has_lease};
use proptest::prelude::*;

const LIMITS: Limits = Limits { txn_ops_max: 6, request_bytes_max: 1 << 20 };

struct StoreAndModel {
    engine: Arc<dyn Engine>,
    store: Box<dyn Store<AppliedPosition>>,
    model: Model,
    index: u64,
}

impl StoreAndModel {
    fn new(era: Era) -> StoreAndModel {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let ground = StoreConfig::new(
            Arc::clone(&engine),
            Config::default(),
            AppliedPosition::pre_commit(),
            AppliedPosition::default(),
        );
        let (store, _) = clearlane_mvcc::open(era, ground).unwrap();
        StoreAndModel { engine, store, model: Model::new(), index: 0 }
    }

    fn step(&mut self, request: &InternalRaftRequest) {
        let checked = apply::check(request, &LIMITS);
        assert_eq!(checked, self.model.check(request, LIMITS.txn_ops_max), "{request:?}");
        if checked.is_ok() {
            self.read_beside(request);
            self.apply(request);
        }
    }

    /// What can be answered without the log.
    fn read_beside(&self, request: &InternalRaftRequest) {
        let read = self.store.begin_read();
        if let Some(range) = &request.range {
            let ours = apply::range(&*read, range).unwrap();
            assert_eq!(ours, self.model.range(range), "{request:?}");
        }
        if let Some(request) = request.txn.as_ref().filter(|request| txn::is_read_only(request)) {
            let ours = txn::read_txn(&*read, request).unwrap();
            assert_eq!(ours, self.model.clone().txn(request), "{request:?}");
        }
    }

    fn apply(&mut self, request: &InternalRaftRequest) {
        self.index += 1;
        let progress = AppliedPosition { index: self.index, term: 1, ..AppliedPosition::default() };
        let applied = apply::apply(&*self.store, &has_lease, request, progress).unwrap();
        assert_eq!(applied.result, self.model.apply(request), "{request:?}");
        assert_eq!(applied.txn_result.revision, self.model.revision());
        if let Some(mut job) = applied.compaction {
            while !self.store.compact_step(&mut job, 100).unwrap() {}
        }
        self.store.commit().unwrap();
        let durable = AppliedPosition::read(&*self.engine.snapshot().unwrap()).unwrap();
        assert_eq!(durable.index, self.index, "{request:?}");
        let all =
            RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() };
        assert_eq!(apply::range(&*self.store.begin_read(), &all).unwrap(), self.model.range(&all));
    }
}

proptest! {
    #[test]
    fn requests_do_what_the_model_does(
        requests in prop::collection::vec(strategies::request(), 1..30),
        era in prop::sample::select(Era::DISTINCT_STORES.to_vec()),
    ) {
        let mut world = StoreAndModel::new(era);
        requests.iter().for_each(|request| world.step(request));
    }
}

#[test]
fn the_histories_reach_both_ends_of_each_question() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let histories = prop::collection::vec(strategies::request(), 400);
    let mut world = StoreAndModel::new(Era::Clearlane);
    let mut told = std::collections::BTreeSet::new();
    for _ in 0..5 {
        for request in histories.new_tree(&mut runner).unwrap().current() {
            let outcome =
                apply::check(&request, &LIMITS).and_then(|()| world.model.clone().apply(&request));
            told.insert(outcome.map_or_else(|refused| refused.to_string(), |_| "done".into()));
            world.step(&request);
        }
    }
    // All but a request that is too large.
    assert_eq!(told.len(), 11, "{told:?}");
    assert_eq!(check::range(&RangeRequest::default()), Err(apply::RequestRejection::EmptyKey));
}
