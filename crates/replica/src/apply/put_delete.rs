//! A put and a delete, as a request or as one operation of a transaction.
//!
//! A put with `ignore_value`, `ignore_lease` or `prev_kv` first reads the record; any other put
//! reads nothing. The old record goes into the response without copying: key and value are slices
//! of the bytes that were read.

use clearlane_mvcc::WriteTxn;
use clearlane_proto::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
};

use super::header;
use super::key_span::KeySpan;
use super::range::get_record;
use super::rejection::{ApplyError, RequestRejection};
use super::txn_reads::TxnReads;
use crate::applied_position::AppliedPosition;

pub(crate) fn keeps_previous(request: &PutRequest) -> bool {
    request.ignore_value || request.ignore_lease
}

/// Checks that the put's lease exists, if the put names a lease. As in etcd, the lease is checked
/// before the key.
pub(crate) fn check_lease(
    request: &PutRequest,
    has_lease: &dyn Fn(i64) -> bool,
) -> Result<(), RequestRejection> {
    if request.lease == 0 || has_lease(request.lease) {
        Ok(())
    } else {
        Err(RequestRejection::LeaseNotFound)
    }
}

/// Puts a key. After a rejection nothing has changed.
pub(crate) fn put(
    txn: &mut (dyn WriteTxn<AppliedPosition> + '_),
    request: &PutRequest,
) -> Result<PutResponse, ApplyError> {
    let previous = if keeps_previous(request) || request.prev_kv {
        get_record(txn, &request.key)?
    } else {
        None
    };
    let (mut value, mut lease) = (&request.value, request.lease);
    if keeps_previous(request) {
        let previous = previous.as_ref().ok_or(RequestRejection::KeyNotFound)?;
        if request.ignore_value {
            value = &previous.value;
        }
        if request.ignore_lease {
            lease = previous.lease;
        }
    }
    txn.put(&request.key, value, lease)?;
    let prev_kv = previous.filter(|_| request.prev_kv);
    Ok(PutResponse { header: Some(header(txn.revision())), prev_kv })
}

pub(crate) fn delete_range(
    txn: &mut (dyn WriteTxn<AppliedPosition> + '_),
    request: &DeleteRangeRequest,
    reads: &mut TxnReads,
) -> Result<DeleteRangeResponse, ApplyError> {
    let span = KeySpan::new(&request.key, &request.range_end);
    let prev_kvs = if request.prev_kv { reads.prev_kvs(txn, request)? } else { Vec::new() };
    let deleted = txn.delete_range(span.range())? as i64;
    Ok(DeleteRangeResponse { header: Some(header(txn.revision())), deleted, prev_kvs })
}
