//! To be told.
#![allow(missing_docs, missing_debug_implementations, reason = "tmp")]
use crate::Progress;
use clearlane_mvcc::*;
use clearlane_proto::etcdserverpb::*;
pub type Answer = std::result::Result<Reply, Refused>;
#[derive(Debug, Clone)]
pub enum Refused {
    X,
}
#[derive(Debug, Clone)]
pub enum Reply {
    Put(PutResponse),
    Range(RangeResponse),
}
#[derive(Debug)]
pub struct Applied {
    pub answer: Answer,
    pub ended: Ended,
    pub compaction: Option<CompactionJob>,
}
pub fn check(_: &InternalRaftRequest) {}
pub fn apply(
    store: &dyn Store<Progress>,
    request: &InternalRaftRequest,
    progress: Progress,
) -> crate::Result<Applied> {
    let mut txn = store.write()?;
    if let Some(put) = &request.put {
        txn.put(&put.key, &put.value, 0)?;
    }
    let ended = txn.end(progress)?;
    Ok(Applied { answer: Ok(Reply::Put(PutResponse::default())), ended, compaction: None })
}
