//! Converts replies of members to the form of the [history](crate::history).

use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::response_op;
use clearlane_proto::mvccpb::KeyValue;
use clearlane_replica::apply::{self, AppliedResponse as Answer};

use crate::history::{OperationOutcome, Reply, Request};
use crate::machine::to_record;
use crate::proposals;

/// Reads from the store's current state. The outcome is `Rejected` if the member rejects the range.
pub fn read(
    read: &dyn ReadTxn,
    key: Option<&str>,
    serializable: bool,
) -> clearlane_replica::Result<OperationOutcome> {
    let found = apply::range(read, &proposals::range(key, serializable))?;
    Ok(found.map_or(OperationOutcome::Rejected, |found| {
        OperationOutcome::Completed(Reply {
            records: found.kvs.iter().map(to_record).collect(),
            revision: found.header.map_or(0, |header| header.revision),
            changed: false,
        })
    }))
}

/// Converts a response. If the response does not fit the request, the reply has revision 0, which
/// no checker accepts.
pub fn to_reply(request: &Request, answer: &Answer) -> Reply {
    let (changed, records): (bool, &[KeyValue]) = match (request, answer) {
        (Request::Put { .. }, Answer::Put(put)) => (true, put.prev_kv.as_slice()),
        (Request::Delete { .. }, Answer::DeleteRange(deleted)) => {
            (deleted.deleted > 0, &deleted.prev_kvs)
        }
        (Request::CompareAndSwap { .. }, Answer::Txn(txn)) => {
            match txn.responses.first().and_then(|op| op.response.as_ref()) {
                Some(response_op::Response::ResponseRange(range)) => (txn.succeeded, &range.kvs),
                _ => (txn.succeeded, &[]),
            }
        }
        _ => return Reply { revision: 0, changed: false, records: Vec::new() },
    };
    let records = records.iter().map(to_record).collect();
    Reply { revision: revision_of(answer).unwrap_or(0), changed, records }
}

pub fn revision_of(answer: &Answer) -> Option<i64> {
    let header = match answer {
        Answer::Put(put) => put.header.as_ref(),
        Answer::DeleteRange(deleted) => deleted.header.as_ref(),
        Answer::Txn(txn) => txn.header.as_ref(),
        _ => None,
    };
    header.map(|header| header.revision)
}
