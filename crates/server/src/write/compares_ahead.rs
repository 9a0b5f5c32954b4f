//! Compares over many keys are evaluated before their transaction is proposed, in the read pool:
//! the apply loop, where all later writes wait, [looks at what has changed
//! since](crate::apply::EvaluatedCompares).
//!
//! ```text
//!   net thread   count the keys ─┐                           ┌─▶ propose, with the result
//!   read pool                    └▶ evaluate ─▶ catch up ────┘
//!   apply loop                                                    the changes since ─▶ decide
//! ```
//!
//! An evaluation may take as long as thousands of puts. So the pool looks at the changes behind it,
//! too, until few are left.

use std::sync::Arc;
use std::time::Duration;

use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::{Compare, TxnRequest};
use tokio::time::timeout;

use crate::apply::{EvaluatedCompares, count_compared_keys};
use crate::handle::Server;
use crate::read_executor::{PoolJob, ReadResult, ReadSize};
use crate::request_error::RequestError;
use crate::request_trace::RequestTrace;
use crate::task_labels::READ_TXN;

/// At how many keys the apply loop looks by itself: a fraction of a millisecond, and no thread has
/// to be woken for it.
const APPLIED_KEYS_MAX: u64 = 1024;
/// Number of revisions that are left to the apply loop.
const REVISIONS_LEFT_MAX: u64 = 64;
/// How often changes are looked at. Each time takes a fraction of the time before, unless the
/// changes come faster than they can be looked at.
const CATCH_UPS_MAX: usize = 4;
/// At more changes than these all keys are looked at again.
const CATCH_UP_CHANGES_MAX: usize = 1 << 16;

/// The pool may have much to do. A request without a result is proposed then: a fraction of the
/// time that it has behind that.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Whether the number of keys is not known beforehand.
pub(crate) fn may_be_long(request: &TxnRequest) -> bool {
    request.compare.iter().any(|compare| !compare.range_end.is_empty())
}

impl Server {
    /// `None` if the apply loop may evaluate them as quickly, and in an old era, where such a read
    /// would hold the locks that writes need.
    pub(crate) async fn evaluate_compares(
        &self,
        compares: &[Compare],
        trace: &mut RequestTrace,
    ) -> Result<Option<Box<EvaluatedCompares>>, RequestError> {
        let store = self.threads().store();
        let Some(view) = store.begin_snapshot_read() else { return Ok(None) };
        let keys = count_compared_keys(&*view, compares)?;
        drop(view);
        if keys <= APPLIED_KEYS_MAX {
            return Ok(None);
        }
        let (number, compares) = (trace.number, compares.to_vec());
        let evaluate = move || {
            let _as = READ_TXN.enter_numbered(number);
            // What cannot be read is met again when the entry is applied, and stops the member.
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
            // The apply loop evaluates them. The job leaves at its next yield point.
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
        let Some(view) = open_view() else { return Ok(None) };
        let newer = match &known {
            Some(known) if view.revision().abs_diff(known.revision()) <= REVISIONS_LEFT_MAX => {
                break;
            }
            Some(known) => known.update(&*view, compares, CATCH_UP_CHANGES_MAX)?,
            None => None,
        };
        known = Some(match newer {
            Some(newer) => newer,
            None => EvaluatedCompares::evaluate(&*view, compares)?,
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

    use super::*;
    use crate::applied_position::AppliedPosition;

    fn put(store: &dyn Store<AppliedPosition>, key: &str, value: &str) {
        let mut txn = store.begin_write().unwrap();
        txn.put(key.as_bytes(), value.as_bytes(), 0).unwrap();
        drop(txn.end(AppliedPosition::default()).unwrap());
    }

    /// Before each view as many puts as are given; with the last of them a value that breaks the
    /// compare, or not.
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
        let views = Cell::new(0);
        let open_view = || {
            let number = views.replace(views.get() + 1);
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
            // Then it is proposed, whatever comes.
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
