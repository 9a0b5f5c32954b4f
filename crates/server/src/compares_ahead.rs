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

use clearlane_mvcc::{ReadTxn, Store};
use clearlane_proto::etcdserverpb::{Compare, TxnRequest};

use crate::applied_position::AppliedPosition;
use crate::apply::{EvaluatedCompares, count_compared_keys};
use crate::handle::Server;
use crate::read_executor::{PoolJob, ReadResult, ReadSize};
use crate::request_error::RequestError;
use crate::request_trace::RequestTrace;
use crate::task_labels::READ_TXN;

/// At how many keys the apply loop looks without help: in less time than another thread needs to
/// wake.
const APPLIED_KEYS_MAX: u64 = 1024;
/// Number of revisions that are left to the apply loop.
const REVISIONS_LEFT_MAX: u64 = 64;
/// How often changes are looked at. Each time takes a fraction of the time before, unless the
/// changes come faster than they can be looked at.
const CATCH_UPS_MAX: usize = 4;
/// At more changes than these all keys are looked at again.
const CATCH_UP_CHANGES_MAX: usize = 1 << 16;

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
        if keys <= APPLIED_KEYS_MAX {
            return Ok(None);
        }
        let (number, compares) = (trace.number, compares.to_vec());
        let evaluate = move || {
            let _as = READ_TXN.enter_numbered(number);
            // What cannot be read is met again when the entry is applied, and stops the member.
            Ok(evaluate(&*store, view, &compares).ok().map(Box::new))
        };
        self.run_in_pool(PoolJob::Read(ReadSize::AtMost(keys).kind()), trace, evaluate).await
    }
}

fn evaluate(
    store: &dyn Store<AppliedPosition>,
    view: Arc<dyn ReadTxn + Send + Sync>,
    compares: &[Compare],
) -> ReadResult<EvaluatedCompares> {
    let mut evaluated = EvaluatedCompares::evaluate(&*view, compares)?;
    drop(view);
    for _ in 0..CATCH_UPS_MAX {
        let Some(view) = store.begin_snapshot_read() else { break };
        if view.revision().abs_diff(evaluated.revision()) <= REVISIONS_LEFT_MAX {
            break;
        }
        evaluated = match evaluated.update(&*view, compares, CATCH_UP_CHANGES_MAX)? {
            Some(newer) => newer,
            None => EvaluatedCompares::evaluate(&*view, compares)?,
        };
    }
    Ok(evaluated)
}
