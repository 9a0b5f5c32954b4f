//! Tests random requests against a plain model, which has a complete map of records for every
//! revision.
//!
//! The model runs a transaction differently from the real code. It runs the operations on a copy of
//! the map. At the first operation that is not possible, the transaction fails, and the model
//! discards the copy. The real code detects such operations before it runs the transaction. The
//! results must be equal: complete responses are compared, and after each entry also the contents
//! of the store.
//!
//! A response with deferred reads is completed some entries later, possibly after a compaction. Its
//! reads must not see any of these entries. Compares are evaluated some entries before their
//! transaction.

mod model;
mod strategies;

use std::collections::VecDeque;
use std::sync::Arc;

use clearlane_backend::{Config, Era};
use clearlane_engine::{Engine, MemoryEngine};
use clearlane_mvcc::{Store, StoreConfig};
use clearlane_proto::etcdserverpb::{InternalRaftRequest, RangeRequest};
use clearlane_replica::AppliedPosition;
use clearlane_replica::apply::{
    self, AppliedResponse, EvaluatedCompares, Limits, PartialResponse, ReadBudget, TxnReadMode,
    check, txn,
};
use clearlane_server::read::streamed_response::DeferredReader;
use model::{Model, has_lease};
use proptest::prelude::*;

const LIMITS: Limits = Limits { txn_ops_max: 6, request_bytes_max: 1 << 20 };

struct StoreAndModel {
    engine: Arc<dyn Engine>,
    store: Box<dyn Store<AppliedPosition>>,
    model: Model,
    index: u64,
    read_mode: TxnReadMode,
    /// Number of entries to apply before a response is completed.
    delay: usize,
    /// Maximum number of bytes of a response that are read before the response is sent. All other
    /// records are read while it is being sent.
    inline_bytes: u64,
    /// Partial responses, each with the expected response.
    partial: VecDeque<(PartialResponse, AppliedResponse)>,
}

impl StoreAndModel {
    fn new(era: Era, read_mode: TxnReadMode, delay: usize) -> StoreAndModel {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let ground = StoreConfig::new(
            Arc::clone(&engine),
            Config::default(),
            AppliedPosition::pre_commit(),
            AppliedPosition::default(),
        );
        let (store, _) = clearlane_mvcc::open(era, ground).unwrap();
        let (model, partial) = (Model::new(), VecDeque::new());
        let inline_bytes = 0;
        StoreAndModel { engine, store, model, index: 0, read_mode, delay, inline_bytes, partial }
    }

    /// Runs requests. The compares of a transaction are evaluated `ahead` requests before it is
    /// applied.
    fn run(&mut self, requests: &[InternalRaftRequest], ahead: usize) {
        let mut compares: Vec<_> = requests.iter().map(|_| None).collect();
        for (number, request) in requests.iter().enumerate() {
            if let Some(later) = requests.get(number + ahead)
                && let Some(txn) = &later.txn
            {
                let read = self.store.begin_read();
                let known = EvaluatedCompares::evaluate(&*read, &txn.compare).unwrap();
                compares[number + ahead] = Some(known);
            }
            self.step(request, compares[number].as_ref());
        }
        self.make_deferred_reads(0);
    }

    fn step(&mut self, request: &InternalRaftRequest, compares: Option<&EvaluatedCompares>) {
        let checked = apply::check(request, &LIMITS);
        assert_eq!(checked, self.model.check(request, LIMITS.txn_ops_max), "{request:?}");
        if checked.is_ok() {
            self.read_beside(request);
            self.apply(request, compares);
        }
    }

    /// Performs the reads in a request for which no log entry is needed, and compares the results
    /// with the model.
    fn read_beside(&self, request: &InternalRaftRequest) {
        let read = self.store.begin_read();
        if let Some(range) = &request.range {
            let ours = apply::range(&*read, range).unwrap();
            assert_eq!(ours, self.model.range(range), "{request:?}");
        }
        if let Some(request) = request.txn.as_ref().filter(|request| txn::is_read_only(request)) {
            let ours = txn::read_only_txn(&*read, request).unwrap();
            assert_eq!(ours, self.model.clone().txn(request), "{request:?}");
        }
    }

    fn apply(&mut self, request: &InternalRaftRequest, compares: Option<&EvaluatedCompares>) {
        self.index += 1;
        let progress = AppliedPosition { index: self.index, term: 1, ..AppliedPosition::default() };
        let applied =
            apply::apply(&*self.store, &has_lease, request, progress, self.read_mode, compares)
                .unwrap();
        match (applied.result, self.model.apply(request)) {
            (Ok(response), Ok(expected)) => {
                let partial = PartialResponse::new(response, applied.deferred_reads);
                self.partial.push_back((partial, expected));
            }
            (refused, expected) => assert_eq!(refused, expected, "{request:?}"),
        }
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
        self.make_deferred_reads(self.delay);
    }

    /// Returns whether the newest response has deferred reads.
    fn has_deferred_reads(&self) -> bool {
        let newest = self.partial.back().cloned();
        newest.is_some_and(|(newest, _)| newest.into_whole().is_err())
    }

    /// Performs the deferred reads of all responses except the last `newest` ones, and compares the
    /// responses with the expected ones.
    fn make_deferred_reads(&mut self, newest: usize) {
        while self.partial.len() > newest {
            let (partial, expected) = self.partial.pop_front().unwrap();
            let about = format!("{partial:?}");
            let streamed = DeferredReader::new(partial.clone(), self.inline_bytes).finish();
            let response = partial.make_reads().unwrap();
            assert_eq!(streamed.unwrap().into_message().unwrap(), response, "{about}");
            if self.read_mode != TxnReadMode::Skipped {
                assert_eq!(response, expected, "{about}");
                assert_eq!(response.encode_to_vec(), expected.encode_to_vec(), "{about}");
            }
        }
    }
}

fn read_mode() -> impl Strategy<Value = TxnReadMode> {
    let select = prop::sample::select::<usize>;
    let budget = (select(vec![0, 1, 3, 100]), select(vec![0, 40, 9999]));
    prop_oneof![
        2 => Just(TxnReadMode::Inline),
        6 => budget.prop_map(|(records, bytes)| TxnReadMode::Deferred(ReadBudget { records, bytes })),
        1 => Just(TxnReadMode::Skipped),
    ]
}

proptest! {
    #[test]
    fn requests_do_what_the_model_does(
        requests in prop::collection::vec(strategies::request(), 1..30),
        era in prop::sample::select(Era::DISTINCT_STORES.to_vec()),
        read_mode in read_mode(),
        delay in 0..5_usize,
        ahead in 0..6_usize,
    ) {
        StoreAndModel::new(era, read_mode, delay).run(&requests, ahead);
    }

    #[test]
    fn deferred_reads_find_what_the_transaction_has_shown(
        requests in prop::collection::vec(strategies::writing_request(), 1..40),
        read_mode in read_mode(),
        delay in 0..8_usize,
        inline_bytes in prop::sample::select(vec![0, 40, 200, u64::MAX]),
    ) {
        let mut world = StoreAndModel::new(Era::Clearlane, read_mode, delay);
        world.inline_bytes = inline_bytes;
        world.run(&requests, delay);
    }
}

#[test]
fn the_histories_reach_both_ends_of_each_question() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let histories = prop::collection::vec(strategies::request(), 400);
    let budget = ReadBudget { records: 0, bytes: 0 };
    let mut world = StoreAndModel::new(Era::Clearlane, TxnReadMode::Deferred(budget), 3);
    let mut deferred = 0;
    let mut outcomes = std::collections::BTreeSet::new();
    for _ in 0..5 {
        for request in histories.new_tree(&mut runner).unwrap().current() {
            let outcome =
                apply::check(&request, &LIMITS).and_then(|()| world.model.clone().apply(&request));
            outcomes.insert(outcome.map_or_else(|refused| refused.to_string(), |_| "done".into()));
            world.step(&request, None);
            deferred += usize::from(world.has_deferred_reads());
        }
    }
    // The requests produce every outcome that the model can produce. The model does not reject
    // large requests.
    assert_eq!(outcomes.len(), 11, "{outcomes:?}");
    assert!(deferred > 50, "{deferred}");
    assert_eq!(check::range(&RangeRequest::default()), Err(apply::RequestRejection::EmptyKey));
}
