//! Replies of members in the form of the [history](crate::history).

use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::{ResponseHeader, response_op};
use clearlane_server::apply::{self, AppliedResponse as Answer};

use crate::history::{OperationOutcome, Record, Reply, Request};
use crate::machine::to_record;
use crate::proposals;

/// Serves a read now.
pub fn read(
    read: &dyn ReadTxn,
    key: Option<&str>,
    serializable: bool,
) -> clearlane_server::Result<OperationOutcome> {
    let found = apply::range(read, &proposals::range(key, serializable))?;
    Ok(found.map_or(OperationOutcome::Rejected, |found| {
        OperationOutcome::Completed(Reply {
            revision: revision(found.header.as_ref()),
            changed: false,
            records: found.kvs.iter().map(to_record).collect(),
        })
    }))
}

/// An answer that does not fit the request gives a reply that no checker accepts.
pub fn to_reply(request: &Request, answer: &Answer) -> Reply {
    match (request, answer) {
        (Request::Put { .. }, Answer::Put(put)) => Reply {
            revision: revision(put.header.as_ref()),
            changed: true,
            records: put.prev_kv.iter().map(to_record).collect(),
        },
        (Request::Delete { .. }, Answer::DeleteRange(deleted)) => Reply {
            revision: revision(deleted.header.as_ref()),
            changed: deleted.deleted > 0,
            records: deleted.prev_kvs.iter().map(to_record).collect(),
        },
        (Request::CompareAndSwap { .. }, Answer::Txn(txn)) => {
            let first = txn.responses.first().and_then(|op| op.response.as_ref());
            let records: Vec<Record> = match first {
                Some(response_op::Response::ResponseRange(range)) => {
                    range.kvs.iter().map(to_record).collect()
                }
                _ => Vec::new(),
            };
            Reply { revision: revision(txn.header.as_ref()), changed: txn.succeeded, records }
        }
        _ => Reply { revision: 0, changed: false, records: Vec::new() },
    }
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

fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}
