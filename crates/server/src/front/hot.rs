//! The five calls of KV, from the head of a request to the head of its answer.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use clearlane_member::Handle;
use clearlane_member::stages::{About, Stage};
use clearlane_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest,
};
use http::{HeaderMap, Response};
use hyper::body::Incoming;
use tonic::{Code, Status};

use super::unary::{decode, message, read};
use super::{Answer, failed, range};
use crate::kv::Errand;
use crate::metrics::{Call, Method};

/// Beside the request itself, a message may have so many bytes more: etcd's.
const MESSAGE_OVERHEAD: usize = 512 << 10;

/// One of the five.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Range,
    Put,
    DeleteRange,
    Txn,
    Compact,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Range, Kind::Put, Kind::DeleteRange, Kind::Txn, Kind::Compact];

    fn path(self) -> &'static str {
        match self {
            Kind::Range => "/etcdserverpb.KV/Range",
            Kind::Put => "/etcdserverpb.KV/Put",
            Kind::DeleteRange => "/etcdserverpb.KV/DeleteRange",
            Kind::Txn => "/etcdserverpb.KV/Txn",
            Kind::Compact => "/etcdserverpb.KV/Compact",
        }
    }
}

/// The five, as they are counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kinds([Method; Kind::ALL.len()]);

impl Kinds {
    pub(super) fn new() -> Kinds {
        Kinds(Kind::ALL.map(|kind| Method::of(kind.path()).expect("an rpc of the API")))
    }

    /// Which of the five a path stands for, if it is one.
    pub(super) fn of(&self, path: &str) -> Option<(Kind, Method)> {
        let kind = Kind::ALL.into_iter().find(|kind| kind.path() == path)?;
        Some((kind, self.0[kind as usize]))
    }
}

/// What there is to know of who asks, beside his request.
pub(crate) struct Asker {
    pub(super) member: Handle,
    pub(super) head: HeaderMap,
    pub(super) remote: super::Remote,
    /// A call that takes longer is told of in the log.
    pub(super) slow: Duration,
}

/// Answers one of the five. One that is dropped was cancelled, and is counted as that.
pub(crate) async fn answer(
    kind: Kind,
    asker: Asker,
    counted: Call,
    body: Incoming,
) -> Response<Answer> {
    let limit = asker.member.limits().request_bytes_max + MESSAGE_OVERHEAD;
    let answer = match Errand::begin(&asker.member, &asker.head) {
        Err(status) => Err(status),
        Ok(errand) => match read(body, limit).await {
            Err(status) => Err(status),
            Ok(message) => {
                counted.received(message.len());
                run(kind, errand, message, &asker).await
            }
        },
    };
    let answer = answer.unwrap_or_else(|status| failed(&status));
    // Also an answer may say that it went wrong: what was found is too large for it.
    let status = Status::from_header_map(answer.headers());
    if status.is_none() {
        counted.sent(answer.body().message_len());
    }
    counted.end(status.map_or(Code::Ok, |status| status.code()));
    answer
}

async fn run(
    kind: Kind,
    mut errand: Errand,
    bytes: Bytes,
    asker: &Asker,
) -> Result<Response<Answer>, Status> {
    let mut count = 0;
    let (answer, said) = match kind {
        Kind::Range => {
            let request: RangeRequest = decode(bytes)?;
            let said = Said::Keys(request.key.clone(), request.range_end.clone(), request.limit);
            let found = errand.range(request).await;
            count = found.as_ref().map_or(0, |found| found.records());
            (found.map(range::answer), said)
        }
        Kind::Put => {
            let request: PutRequest = decode(bytes)?;
            let said = Said::Put(request.key.clone(), request.value.len());
            (errand.put(request).await.map(message), said)
        }
        Kind::DeleteRange => {
            let request: DeleteRangeRequest = decode(bytes)?;
            let said = Said::Keys(request.key.clone(), request.range_end.clone(), 0);
            (errand.delete_range(request).await.map(message), said)
        }
        Kind::Txn => {
            let request: TxnRequest = decode(bytes)?;
            let (success, failure) = (request.success.len(), request.failure.len());
            let said = Said::Txn(request.compare.len(), success, failure);
            (errand.txn(request).await.map(message), said)
        }
        Kind::Compact => {
            let request: CompactionRequest = decode(bytes)?;
            let said = Said::Compact(request.revision);
            (errand.compact(request).await.map(message), said)
        }
    };
    errand.card.stamp(Stage::Sending);
    if let Some(story) = errand.card.end(asker.slow) {
        let size = answer.as_ref().map_or(0, |answer| answer.body().message_len());
        story.tell(&About {
            call: kind.path(),
            remote: &asker.remote.to_string(),
            request: &said,
            response_count: count as i64,
            response_size: size,
        });
    }
    answer
}

/// What a client has said, in short, in case it is to be told. Values are left out.
enum Said {
    Keys(Bytes, Bytes, i64),
    Put(Bytes, usize),
    Txn(usize, usize, usize),
    Compact(i64),
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Said::Keys(key, end, limit) => {
                write!(f, "key:\"{}\"", key.escape_ascii())?;
                if !end.is_empty() {
                    write!(f, " range_end:\"{}\"", end.escape_ascii())?;
                }
                if *limit != 0 {
                    write!(f, " limit:{limit}")?;
                }
                Ok(())
            }
            Said::Put(key, size) => {
                write!(f, "key:\"{}\" value_size:{size}", key.escape_ascii())
            }
            Said::Txn(compares, success, failure) => {
                write!(f, "compare:{compares} success:{success} failure:{failure}")
            }
            Said::Compact(revision) => write!(f, "revision:{revision}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<F, A, B, C, D>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// It is allocated for each call, and moved about before it runs.
    #[test]
    fn a_call_under_way_is_small() {
        let size = size_of_future(answer);
        assert!(size <= 3072, "{size} bytes");
    }
}
