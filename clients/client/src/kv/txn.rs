//! Transactions: a transaction evaluates conditions, and then executes one of two lists of
//! operations. Both steps together are atomic.
//!
//! ```text
//!   when   version("lock") = 0        all conditions, on the current state
//!   then   put lock = me              one revision, in this order
//!   else   get lock
//! ```
//!
//! A transaction may be a step of another transaction. It cannot base a decision on its own reads.
//! Instead, read a key first, decide, and add the condition that the key still has the
//! `mod_revision` that was read.

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

/// A condition of a transaction. A condition about a range holds if it holds for each key in the
/// range. A range without keys is treated as one key that does not exist.
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

/// A condition that still needs a number or a value to compare with.
#[derive(Clone, Debug)]
pub struct CompareWith<V> {
    keys: Keys,
    target: CompareTarget,
    union: fn(V) -> TargetUnion,
}

impl Compare {
    /// Compares the number of puts of the key since its creation, including the put that created
    /// it. The number is 0 if the key does not exist.
    pub fn version(keys: impl Into<Keys>) -> CompareWith<i64> {
        let union = TargetUnion::Version;
        CompareWith { keys: keys.into(), target: CompareTarget::Version, union }
    }

    /// Compares the revision at which the key was created. The revision is 0 if the key does not
    /// exist.
    pub fn create_revision(keys: impl Into<Keys>) -> CompareWith<i64> {
        let union = TargetUnion::CreateRevision;
        CompareWith { keys: keys.into(), target: CompareTarget::Create, union }
    }

    /// Compares the revision of the last change of the key. The revision is 0 if the key does not
    /// exist.
    pub fn mod_revision(keys: impl Into<Keys>) -> CompareWith<i64> {
        let union = TargetUnion::ModRevision;
        CompareWith { keys: keys.into(), target: CompareTarget::Mod, union }
    }

    /// Compares the ID of the key's lease. The ID is 0 if the key has no lease.
    pub fn lease(keys: impl Into<Keys>) -> CompareWith<i64> {
        let union = TargetUnion::Lease;
        CompareWith { keys: keys.into(), target: CompareTarget::Lease, union }
    }

    /// Compares the value of the key. The condition does not hold if the key does not exist.
    pub fn value(keys: impl Into<Keys>) -> CompareWith<Vec<u8>> {
        let union = |value: Vec<u8>| TargetUnion::Value(value.into());
        CompareWith { keys: keys.into(), target: CompareTarget::Value, union }
    }

    /// Holds if the key exists.
    pub fn exists(key: impl Into<Keys>) -> Compare {
        Compare::create_revision(key).greater(0)
    }

    /// Holds if the key does not exist.
    pub fn missing(key: impl Into<Keys>) -> Compare {
        Compare::create_revision(key).equal(0)
    }
}

/// The methods that complete a condition. Values are compared in byte order.
impl<V> CompareWith<V> {
    fn compare(self, result: CompareResult, with: impl Into<V>) -> Compare {
        let Keys { key, range_end } = self.keys;
        let (result, target) = (result.into(), self.target.into());
        let target_union = Some((self.union)(with.into()));
        Compare { comparison: Comparison { result, target, key, range_end, target_union } }
    }

    /// Holds if the property equals `with`.
    pub fn equal(self, with: impl Into<V>) -> Compare {
        self.compare(CompareResult::Equal, with)
    }

    /// Holds if the property differs from `with`.
    pub fn not_equal(self, with: impl Into<V>) -> Compare {
        self.compare(CompareResult::NotEqual, with)
    }

    /// Holds if the property is greater than `with`.
    pub fn greater(self, with: impl Into<V>) -> Compare {
        self.compare(CompareResult::Greater, with)
    }

    /// Holds if the property is less than `with`.
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
    /// Creates a transaction without conditions and steps. Such a transaction succeeds.
    pub fn new() -> Txn {
        Txn::default()
    }

    /// Adds a condition. The transaction succeeds if all its conditions hold.
    pub fn when(mut self, compare: Compare) -> Txn {
        self.request.compare.push(compare.comparison);
        self
    }

    /// Appends a step that is executed if all conditions hold.
    pub fn then(mut self, op: impl Into<Op>) -> Txn {
        self.request.success.push(op.into().op);
        self
    }

    /// Appends a step that is executed if at least one condition does not hold.
    pub fn or_else(mut self, op: impl Into<Op>) -> Txn {
        self.request.failure.push(op.into().op);
        self
    }

    fn only_reads(&self) -> bool {
        let is_read = |op: &RequestOp| matches!(op.request, Some(Wanted::RequestRange(_)));
        self.request.success.iter().chain(&self.request.failure).all(is_read)
    }
}

/// The reply to a [`Txn`].
#[derive(Clone, Debug, PartialEq)]
pub struct TxnReply {
    /// The header. Its revision is the revision of the transaction, or the current one if nothing
    /// was changed. The header of a nested transaction is empty.
    pub header: ResponseHeader,
    /// If true, all conditions held.
    pub succeeded: bool,
    /// One result for each step of the executed branch.
    pub results: Vec<OpReply>,
}

/// The reply to one step of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub enum OpReply {
    /// The step was a [`Get`].
    Get(GetReply),
    /// The step was a [`Put`].
    Put(PutReply),
    /// The step was a [`Delete`].
    Delete(DeleteReply),
    /// The step was a nested [`Txn`].
    Txn(TxnReply),
}

impl TxnReply {
    /// Returns the revision of this transaction, or the current one if nothing was changed. Returns
    /// 0 for a nested transaction.
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
            None => return Err(Error::Unexpected("a step of the transaction has no result")),
        })
    }
}

impl Client {
    /// Evaluates the conditions and executes one of the two branches, as one change.
    pub async fn txn(&self, txn: Txn) -> Result<TxnReply> {
        let way = if txn.only_reads() { CallPolicy::READ } else { CallPolicy::WRITE };
        let send = async |channel, request| kv(channel).txn(request).await;
        TxnReply::from_response(self.call(way, txn.request, send).await?)
    }
}
