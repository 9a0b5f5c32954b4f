//! Transactions: compare, then one of two lists of operations, atomically.
//!
//! ```text
//!   when   version("lock") = 0        all compared with what is there now
//!   then   put lock = me              one revision, in this order
//!   else   get lock
//! ```
//!
//! A transaction may be a step of another. It cannot decide by what it has read itself: read before
//! it, decide, and compare that the key still has the `mod_revision` that was read.

use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::request_op::Request as Wanted;
use clearlane_proto::etcdserverpb::response_op::Response as Done;
use clearlane_proto::etcdserverpb::{
    Compare as Comparison, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};

use super::keys::Keys;
use super::{header, kv};
use crate::call::CallPolicy;
use crate::error::{Error, Result};
use crate::{Client, Delete, DeleteReply, Get, GetReply, Put, PutReply};

/// A condition of a transaction.
///
/// ```
/// use clearlane_client::{Compare, Keys};
///
/// let is_free = Compare::missing("lock");
/// let is_unchanged = Compare::mod_revision("config").equal(17);
/// let all_are_young = Compare::version(Keys::prefix("job/")).less(3);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Compare {
    comparison: Comparison,
}

/// A condition whose number or value is still to be given.
#[derive(Clone, Debug)]
pub struct CompareWith<V> {
    keys: Keys,
    target: CompareTarget,
    union: fn(V) -> TargetUnion,
}

impl Compare {
    /// The number of puts since the key was created; 0 if it does not exist.
    pub fn version(keys: impl Into<Keys>) -> CompareWith<i64> {
        let union = TargetUnion::Version;
        CompareWith { keys: keys.into(), target: CompareTarget::Version, union }
    }

    /// 0 if the key does not exist.
    pub fn create_revision(keys: impl Into<Keys>) -> CompareWith<i64> {
        let union = TargetUnion::CreateRevision;
        CompareWith { keys: keys.into(), target: CompareTarget::Create, union }
    }

    /// 0 if the key does not exist.
    pub fn mod_revision(keys: impl Into<Keys>) -> CompareWith<i64> {
        let union = TargetUnion::ModRevision;
        CompareWith { keys: keys.into(), target: CompareTarget::Mod, union }
    }

    /// 0 if the key has no lease.
    pub fn lease(keys: impl Into<Keys>) -> CompareWith<i64> {
        let union = TargetUnion::Lease;
        CompareWith { keys: keys.into(), target: CompareTarget::Lease, union }
    }

    /// Of a key that does not exist, no comparison of its value holds.
    pub fn value(keys: impl Into<Keys>) -> CompareWith<Vec<u8>> {
        let union = |value: Vec<u8>| TargetUnion::Value(value.into());
        CompareWith { keys: keys.into(), target: CompareTarget::Value, union }
    }

    pub fn exists(key: impl Into<Keys>) -> Compare {
        Compare::create_revision(key).greater(0)
    }

    pub fn missing(key: impl Into<Keys>) -> Compare {
        Compare::create_revision(key).equal(0)
    }
}

/// Values are compared in byte order.
impl<V> CompareWith<V> {
    fn compare(self, result: CompareResult, with: impl Into<V>) -> Compare {
        let Keys { key, range_end } = self.keys;
        let (result, target) = (result.into(), self.target.into());
        let target_union = Some((self.union)(with.into()));
        Compare { comparison: Comparison { result, target, key, range_end, target_union } }
    }

    pub fn equal(self, with: impl Into<V>) -> Compare {
        self.compare(CompareResult::Equal, with)
    }

    pub fn not_equal(self, with: impl Into<V>) -> Compare {
        self.compare(CompareResult::NotEqual, with)
    }

    pub fn greater(self, with: impl Into<V>) -> Compare {
        self.compare(CompareResult::Greater, with)
    }

    pub fn less(self, with: impl Into<V>) -> Compare {
        self.compare(CompareResult::Less, with)
    }
}

/// A step of a transaction: a [`Get`], a [`Put`], a [`Delete`], or a [`Txn`].
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    op: RequestOp,
}

macro_rules! op_from {
    ($kind:ident, $wanted:ident) => {
        impl From<$kind> for Op {
            fn from(from: $kind) -> Op {
                Op { op: RequestOp { request: Some(Wanted::$wanted(from.request)) } }
            }
        }
    };
}
op_from!(Get, RequestRange);
op_from!(Put, RequestPut);
op_from!(Delete, RequestDeleteRange);
op_from!(Txn, RequestTxn);

/// A transaction.
///
/// ```
/// use clearlane_client::{Compare, Get, Put, Txn};
///
/// let acquire = Txn::new()
///     .when(Compare::missing("lock"))
///     .then(Put::new("lock", "me"))
///     .or_else(Get::from("lock"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Txn {
    request: TxnRequest,
}

impl Txn {
    /// Without conditions and steps; it succeeds.
    pub fn new() -> Txn {
        Txn::default()
    }

    /// Adds a condition; all must hold.
    pub fn when(mut self, compare: Compare) -> Txn {
        self.request.compare.push(compare.comparison);
        self
    }

    /// Appends a step for when all conditions hold.
    pub fn then(mut self, op: impl Into<Op>) -> Txn {
        self.request.success.push(op.into().op);
        self
    }

    /// Appends a step for when a condition does not hold.
    pub fn or_else(mut self, op: impl Into<Op>) -> Txn {
        self.request.failure.push(op.into().op);
        self
    }

    fn only_reads(&self) -> bool {
        let is_read = |op: &RequestOp| matches!(op.request, Some(Wanted::RequestRange(_)));
        self.request.success.iter().chain(&self.request.failure).all(is_read)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct TxnReply {
    /// Its revision is that of the transaction, or the present one if it changed nothing.
    pub header: ResponseHeader,
    pub succeeded: bool,
    /// One for each step of the branch that was taken.
    pub results: Vec<OpReply>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum OpReply {
    Get(GetReply),
    Put(PutReply),
    Delete(DeleteReply),
    Txn(TxnReply),
}

impl TxnReply {
    /// The revision of this transaction, or the present one if it changed nothing.
    pub fn revision(&self) -> i64 {
        self.header.revision
    }

    fn from_response(reply: TxnResponse) -> Result<TxnReply> {
        let TxnResponse { header: head, succeeded, responses } = reply;
        let results = responses.into_iter().map(OpReply::from_response).collect::<Result<_>>()?;
        Ok(TxnReply { header: header(head), succeeded, results })
    }
}

impl OpReply {
    fn from_response(reply: ResponseOp) -> Result<OpReply> {
        Ok(match reply.response {
            Some(Done::ResponseRange(done)) => OpReply::Get(done.into()),
            Some(Done::ResponsePut(done)) => OpReply::Put(done.into()),
            Some(Done::ResponseDeleteRange(done)) => OpReply::Delete(done.into()),
            Some(Done::ResponseTxn(done)) => OpReply::Txn(TxnReply::from_response(done)?),
            None => return Err(Error::Unexpected("a step of a transaction without an answer")),
        })
    }
}

impl Client {
    pub async fn txn(&self, txn: Txn) -> Result<TxnReply> {
        let way = if txn.only_reads() { CallPolicy::READ } else { CallPolicy::WRITE };
        let send = async |channel, request| kv(channel).txn(request).await;
        TxnReply::from_response(self.call(way, txn.request, send).await?)
    }
}
