//! A put and a delete, alone or as one operation of a transaction.
//!
//! A put that is to keep the old value or the old lease, or to tell them, reads the record first;
//! any other put reads nothing. The old record goes into the answer as it was read: key and value
//! are parts of the bytes that the store had.

use clearlane_mvcc::{RangeOptions, WriteTxn};
use clearlane_proto::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
};

use super::header;
use super::range::{Source, record};
use super::refused::{Refused, Stop};
use super::span::Span;
use crate::progress::Progress;

/// Whether a put keeps something of what is there.
pub(crate) fn keeps(request: &PutRequest) -> bool {
    request.ignore_value || request.ignore_lease
}

/// Whether the lease of a put exists. It is asked for before the key, alone and in a transaction.
pub(crate) fn permit_lease(
    request: &PutRequest,
    has_lease: &dyn Fn(i64) -> bool,
) -> Result<(), Refused> {
    match request.lease == 0 || has_lease(request.lease) {
        true => Ok(()),
        false => Err(Refused::LeaseNotFound),
    }
}

/// Puts, or refuses and has changed nothing.
pub(crate) fn put(
    txn: &mut (dyn WriteTxn<Progress> + '_),
    request: &PutRequest,
) -> Result<PutResponse, Stop> {
    let previous = match keeps(request) || request.prev_kv {
        true => record(txn, &request.key)?,
        false => None,
    };
    let (mut value, mut lease) = (&request.value, request.lease);
    if keeps(request) {
        let previous = previous.as_ref().ok_or(Refused::KeyNotFound)?;
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

/// Deletes. This cannot be refused.
pub(crate) fn delete_range(
    txn: &mut (dyn WriteTxn<Progress> + '_),
    request: &DeleteRangeRequest,
) -> Result<DeleteRangeResponse, Stop> {
    let span = Span::new(&request.key, &request.range_end);
    let prev_kvs = match request.prev_kv {
        true => Source::records(txn, span.range(), RangeOptions::default())?.records,
        false => Vec::new(),
    };
    let deleted = txn.delete_range(span.range())? as i64;
    Ok(DeleteRangeResponse { header: Some(header(txn.revision())), deleted, prev_kvs })
}
