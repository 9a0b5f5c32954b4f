//! The whole path of a read, on one screen.
//!
//! ```text
//!   client ── Range ──▶ range          is it a request at all?
//!                        ├─ fresh      linearizable: wait until this member has applied what was
//!                        │             acknowledged before the read came
//!                        ├─ read       open a view: one revision, its index and its records
//!                        └─ evaluate   keys → records → sorted, filtered, cut off
//! ```
//!
//! From the view on nobody waits for anybody: in the default era the view is one pointer, and it
//! shows the same state for as long as it is kept.

use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};

use crate::handle::Handle;
use crate::requests::{self, check, txn};
use crate::trouble::Trouble;

/// Reads a range.
pub async fn range(member: &Handle, request: &RangeRequest) -> Result<RangeResponse, Trouble> {
    check::range(request)?;
    if !request.serializable {
        member.fresh().await?;
    }
    let store = member.store();
    let mut response = requests::range(&*store.read(), request)??;
    member.stamp(&mut response.header);
    Ok(response)
}

/// Runs a transaction that only reads.
pub async fn read_txn(member: &Handle, request: &TxnRequest) -> Result<TxnResponse, Trouble> {
    if !is_serializable(request) {
        member.fresh().await?;
    }
    let store = member.store();
    let mut response = txn::read_txn(&*store.read(), request)??;
    member.stamp(&mut response.header);
    Ok(response)
}

/// Whether each of a transaction's ranges may be answered from what this member has.
fn is_serializable(request: &TxnRequest) -> bool {
    let mut ops = request.success.iter().chain(&request.failure);
    ops.all(|op| matches!(&op.request, Some(Request::RequestRange(range)) if range.serializable))
}
