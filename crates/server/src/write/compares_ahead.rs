//! Evaluates the compares of a large transaction before it is proposed.
//!
//! Every later write waits while the apply loop evaluates compares: 20 to 300 ms for a million
//! keys. So the read pool evaluates them first, on a snapshot, and the apply loop [checks only the
//! keys that changed since that snapshot](clearlane_replica::apply::EvaluatedCompares).
//!
//! ```text
//!   network thread   more than 1,024 keys? ─┐                   ┌─▶ propose, with the result
//!   read pool                               └▶ evaluate, update ┘
//!   apply loop                                         check changed keys, decide
//! ```
//!
//! Thousands of puts may be applied while the evaluation runs. The pool therefore updates the
//! result up to four times, until at most 64 revisions are missing.
//!
//! The result never changes the outcome and is not in the log. In the following cases there is no
//! usable result, and the apply loop evaluates all keys:
//!
//! * the transaction compares no ranges, or at most 1,024 keys;
//! * the era is an old one, or the entry is applied by another member;
//! * the read pool takes longer than 2 s, or cannot read a record;
//! * the apply loop cannot update the result: there were more than 4,096 changes, or more changes
//!   than compared keys if the compares need no records, some of the changes were compacted, a raft
//!   snapshot has replaced the store, or the compare that failed no longer fails.
//!
//! etcd always evaluates all compares while it applies.

use std::sync::Arc;
use std::time::Duration;

use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::{Compare, TxnRequest};
use clearlane_replica::RequestError;
use clearlane_replica::apply::{EvaluatedCompares, count_compared_keys};
use tokio::time::timeout;

use crate::handle::Server;
use crate::observe::request_trace::RequestTrace;
use crate::observe::task_labels::READ_TXN;
use crate::read::executor::{PoolJob, ReadResult, ReadSize};

/// If a transaction compares at most this number of keys, the read pool is not used. The apply loop
/// evaluates them in a fraction of a millisecond, and no other thread must be woken.
const APPLIED_KEYS_MAX: u64 = 1024;
/// The pool stops updating the result when at most this number of revisions is missing. The apply
/// loop checks the changes of these revisions. After the last update, more revisions may be
/// missing.
const REVISIONS_LEFT_MAX: u64 = 64;
/// Maximum number of updates. Each update takes a fraction of the time of the previous one, unless
/// changes arrive faster than they can be checked.
const CATCH_UPS_MAX: usize = 4;
/// Maximum number of changes that an update checks. If the compares need no records, the number of
/// compared keys is also a limit. If there are more changes, the pool evaluates all keys again.
const CATCH_UP_CHANGES_MAX: usize = 1 << 16;

/// Longest wait for the read pool, which may be busy. After this time the transaction is proposed
/// without a result. It then still has most of its time-out left.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Returns whether the transaction compares a range, so that the number of keys is not known
/// beforehand.
pub(crate) fn may_be_long(request: &TxnRequest) -> bool {
    request.compare.iter().any(|compare| !compare.range_end.is_empty())
}

impl Server {
    /// Evaluates the compares in the read pool. Returns `None` if there is no result: for few keys,
    /// after [`WAIT_MAX`], if a record cannot be read, and in an old era, where such a read would
    /// hold the locks that writes need.
    pub(crate) async fn evaluate_compares(
        &self,
        compares: &[Compare],
        trace: &mut RequestTrace,
    ) -> Result<Option<Box<EvaluatedCompares>>, RequestError> {
        let store = self.threads().store();
        let Some(read_txn) = store.begin_snapshot_read() else { return Ok(None) };
        let keys = count_compared_keys(&*read_txn, compares)?;
        drop(read_txn);
        if keys <= APPLIED_KEYS_MAX {
            return Ok(None);
        }
        let (number, compares) = (trace.number, compares.to_vec());
        let evaluate = move || {
            let _as = READ_TXN.enter_numbered(number);
            // An error is ignored here. The apply loop finds the unreadable record again, and then
            // the member stops.
            let open_view = || store.begin_snapshot_read();
            Ok(evaluate(&open_view, &compares).unwrap_or_default().map(Box::new))
        };
        let kind = ReadSize::AtMost(keys).kind();
        let mut evaluated = *trace;
        let result = self.run_in_pool(PoolJob::Read(kind), &mut evaluated, evaluate);
        match timeout(WAIT_MAX, result).await {
            Ok(result) => {
                *trace = evaluated;
                result
            }
            // The apply loop evaluates the compares. The job was given up, so it ends at its next
            // yield point.
            Err(_) => Ok(None),
        }
    }
}

fn evaluate(
    open_view: &dyn Fn() -> Option<Arc<dyn ReadTxn + Send + Sync>>,
    compares: &[Compare],
) -> ReadResult<Option<EvaluatedCompares>> {
    let mut known: Option<EvaluatedCompares> = None;
    for _ in 0..=CATCH_UPS_MAX {
        let Some(read_txn) = open_view() else { return Ok(None) };
        let newer = match &known {
            Some(known) if read_txn.revision().abs_diff(known.revision()) <= REVISIONS_LEFT_MAX => {
                break;
            }
            Some(known) => known.update(&*read_txn, compares, CATCH_UP_CHANGES_MAX)?,
            None => None,
        };
        known = Some(match newer {
            Some(newer) => newer,
            None => EvaluatedCompares::evaluate(&*read_txn, compares)?,
        });
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::cell::Cell;

    use clearlane_backend::{Config, Era};
    use clearlane_engine::MemoryEngine;
    use clearlane_mvcc::{Store, StoreConfig};
    use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};

    use clearlane_replica::applied_position::AppliedPosition;

    use super::*;

    fn put(store: &dyn Store<AppliedPosition>, key: &str, value: &str) {
        let mut txn = store.begin_write().unwrap();
        txn.put(key.as_bytes(), value.as_bytes(), 0).unwrap();
        drop(txn.end(AppliedPosition::default()).unwrap());
    }

    /// Evaluates a compare while puts arrive: `puts[n]` is the number of puts immediately before
    /// read transaction n is opened. If `breaks` is true, the compare does not hold for the value
    /// of the last put. Returns the result of the compare, and the last revision of the store.
    fn evaluate_beside(puts: &[u64], breaks: bool) -> (EvaluatedCompares, i64) {
        let (applied, engine) = (AppliedPosition::default(), Arc::new(MemoryEngine::new()));
        let before = AppliedPosition::pre_commit();
        let config = StoreConfig::new(engine, Config::default(), before, applied);
        let (store, _) = clearlane_mvcc::open(Era::Clearlane, config).unwrap();
        let compare = Compare {
            result: CompareResult::NotEqual.into(),
            target: CompareTarget::Value.into(),
            key: "k".into(),
            range_end: "l".into(),
            target_union: Some(TargetUnion::Value("bad".into())),
        };
        put(&*store, "k", "good");
        let read_txns = Cell::new(0);
        let open_view = || {
            let number = read_txns.replace(read_txns.get() + 1);
            let count = puts.get(number).copied().unwrap_or_default();
            for at in 0..count {
                let is_last = number + 1 == puts.len() && at + 1 == count;
                let value = if is_last && breaks { "bad" } else { "good" };
                put(&*store, &format!("k{}", at % 10), value);
            }
            store.begin_snapshot_read()
        };
        let evaluated = evaluate(&open_view, &[compare]).unwrap().unwrap();
        (evaluated, store.begin_read().revision())
    }

    #[test]
    fn few_revisions_are_left_to_the_apply_loop() {
        let more = REVISIONS_LEFT_MAX + 1;
        for (puts, left) in [
            (vec![0], 0),
            (vec![0, 1000], 0),
            (vec![0, 1000, more, more], 0),
            (vec![0, 1000, 7], 7),
            // After four updates the transaction is proposed, however many revisions follow.
            (vec![0, more, more, more, more], 0),
        ] {
            for breaks in [false, true] {
                let (evaluated, revision) = evaluate_beside(&puts, breaks);
                assert_eq!(revision - evaluated.revision(), left, "{puts:?}");
                let is_seen = breaks && left == 0 && puts.iter().sum::<u64>() > 0;
                assert_eq!(evaluated.hold(), !is_seen, "{puts:?}");
            }
        }
    }
}
