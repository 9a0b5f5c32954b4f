//! The responses of a write's operations, including operations of nested transactions.
//!
//! Operations are numbered in execution order. A nested transaction itself has no number.

use clearlane_proto::etcdserverpb::response_op::Response;
use clearlane_proto::etcdserverpb::{DeleteRangeResponse, RangeResponse, TxnResponse};
use clearlane_proto::mvccpb::KeyValue;

use super::AppliedResponse;

/// A message with the responses of operations.
pub trait OperationResponses {
    fn visit_operations(&mut self, visit: &mut dyn FnMut(OperationResponse<'_>));
}

#[derive(Debug)]
pub enum OperationResponse<'m> {
    Range(&'m mut RangeResponse),
    DeleteRange(&'m mut DeleteRangeResponse),
    /// An operation without a list of records.
    Other,
}

impl<'m> OperationResponse<'m> {
    pub fn records(self) -> Option<&'m mut Vec<KeyValue>> {
        match self {
            OperationResponse::Range(response) => Some(&mut response.kvs),
            OperationResponse::DeleteRange(response) => Some(&mut response.prev_kvs),
            OperationResponse::Other => None,
        }
    }

    /// Stores the result of a read: the response of a range, or the records that a delete has
    /// removed. Returns false for any other operation.
    pub(super) fn set_range(self, found: RangeResponse) -> bool {
        match self {
            OperationResponse::Range(response) => *response = found,
            OperationResponse::DeleteRange(response) => response.prev_kvs = found.kvs,
            OperationResponse::Other => return false,
        }
        true
    }
}

impl OperationResponses for TxnResponse {
    fn visit_operations(&mut self, visit: &mut dyn FnMut(OperationResponse<'_>)) {
        for response in self.responses.iter_mut().filter_map(|op| op.response.as_mut()) {
            match response {
                Response::ResponseTxn(nested) => nested.visit_operations(visit),
                Response::ResponseRange(range) => visit(OperationResponse::Range(range)),
                Response::ResponseDeleteRange(delete) => delete.visit_operations(visit),
                Response::ResponsePut(_) => visit(OperationResponse::Other),
            }
        }
    }
}

impl OperationResponses for DeleteRangeResponse {
    fn visit_operations(&mut self, visit: &mut dyn FnMut(OperationResponse<'_>)) {
        visit(OperationResponse::DeleteRange(self));
    }
}

impl OperationResponses for AppliedResponse {
    fn visit_operations(&mut self, visit: &mut dyn FnMut(OperationResponse<'_>)) {
        match self {
            AppliedResponse::Txn(response) => response.visit_operations(visit),
            AppliedResponse::DeleteRange(response) => response.visit_operations(visit),
            _ => {}
        }
    }
}
