//! The five calls of KV, from the head of a request to the head of its answer.
//!
//! They come from connections, and from the JSON gateway, which has read the message another way.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use clearlane_member::requests::txn;
use clearlane_member::stages::{About, Stage};
use clearlane_member::{Handle, recording};
use clearlane_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RangeRequest,
};
use http::{HeaderMap, Response};
use hyper::body::Incoming;
use tonic::{Code, Status};

use super::unary::{Encoded, any_message, decode, decode_txn, message, read};
use super::{Answer, failed, gzip, range};
use crate::kv::Errand;
use crate::metrics::{Call, Method};

/// Beside the request itself, a message may have so many bytes more: etcd's.
const MESSAGE_OVERHEAD: usize = 512 << 10;

/// A range with more records is a long one in a recording: as many as the network threads read by themselves.
const SHORT: usize = 128;

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
pub(crate) struct Kinds([Method; Kind::ALL.len()]);

impl Kinds {
    pub(crate) fn new() -> Kinds {
        Kinds(Kind::ALL.map(|kind| Method::of(kind.path()).expect("an rpc of the API")))
    }

    /// Which of the five a path stands for, if it is one.
    pub(crate) fn of(&self, path: &str) -> Option<(Kind, Method)> {
        let kind = Kind::ALL.into_iter().find(|kind| kind.path() == path)?;
        Some((kind, self.0[kind as usize]))
    }
}

/// What there is to know of who asks, beside his request.
pub(crate) struct Asker {
    pub(crate) member: Handle,
    pub(crate) head: HeaderMap,
    pub(crate) caller: super::Caller,
    /// A call that takes longer is told of in the log, and a read that takes longer than the second.
    pub(crate) slow: (Duration, Duration),
}

/// Answers one of the five. One that is dropped was cancelled, and is counted as that.
pub(crate) async fn answer(
    kind: Kind,
    asker: Asker,
    counted: Call,
    body: Incoming,
) -> Response<Answer> {
    let is_packed = match gzip::is_used(&asker.head) {
        Ok(is_packed) => is_packed,
        Err(status) => return told(Err(status), counted),
    };
    let limit = message_max(&asker.member);
    let answer = match Errand::begin(&asker.member, &asker.head) {
        Err(status) => Err(status),
        Ok(errand) => match errand.in_time(read(body, limit, is_packed)).await {
            Err(status) | Ok(Err(status)) => Err(status),
            Ok(Ok(message)) => {
                counted.received(message.len());
                run(kind, errand, message, &asker).await
            }
        },
    };
    let answer = told(answer, counted);
    if is_packed { gzip::packed(answer) } else { answer }
}

/// How long a message may be that is received.
pub(crate) fn message_max(member: &Handle) -> usize {
    member.limits().request_bytes_max + MESSAGE_OVERHEAD
}

/// The same for a message that is here already.
pub(crate) async fn answer_message(
    kind: Kind,
    asker: Asker,
    counted: Call,
    message: Bytes,
) -> Response<Answer> {
    counted.received(message.len());
    let answer = match Errand::begin(&asker.member, &asker.head) {
        Err(status) => Err(status),
        Ok(errand) => run(kind, errand, message, &asker).await,
    };
    told(answer, counted)
}

/// The head of an answer, whose call ends here for those who count.
fn told(answer: Result<Response<Answer>, Status>, counted: Call) -> Response<Answer> {
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
            let said = Said::Range(request.key.clone(), request.range_end.clone(), request.limit);
            let found = errand.range(request).await;
            count = found.as_ref().map_or(0, |found| found.records());
            let answer = found.and_then(|found| range::answer(asker, errand.until_ns(), found));
            (answer, said)
        }
        Kind::Put => {
            let request: PutRequest = decode(bytes)?;
            let said = Said::Put(request.key.clone(), request.value.len());
            (errand.put(request).await.map(message).map(Encoded::Now), said)
        }
        Kind::DeleteRange => {
            let request: DeleteRangeRequest = decode(bytes)?;
            let said = Said::Delete(request.key.clone(), request.range_end.clone());
            let deleted = errand.delete_range(request).await;
            let answer = deleted.and_then(|response| any_message(&asker.member, response));
            (answer, said)
        }
        Kind::Txn => {
            let request = decode_txn(bytes)?;
            let (success, failure) = (request.success.len(), request.failure.len());
            let is_read = txn::is_read_only(&request);
            let said = Said::Txn(request.compare.len(), success, failure, is_read);
            let done = errand.txn(request).await;
            let answer = done.and_then(|response| any_message(&asker.member, response));
            (answer, said)
        }
        Kind::Compact => {
            let request: CompactionRequest = decode(bytes)?;
            let said = Said::Compact(request.revision);
            (errand.compact(request).await.map(message).map(Encoded::Now), said)
        }
    };
    let took = errand.card;
    let answer = match answer {
        Ok(answer) => answer.ready(&errand).await,
        Err(status) => Err(status),
    };
    errand.card.stamp(Stage::Sending);
    let (class, reads) = said.class(count);
    asker.member.node().recording().request(class, reads, errand.card);
    let (whole, read) = (errand.card.end(asker.slow.0), took.end(asker.slow.1));
    if whole.is_none() && read.is_none() {
        return answer;
    }
    let about = About {
        call: kind.path(),
        remote: &asker.caller.to_string(),
        request: &said,
        response_count: count as i64,
        response_size: answer.as_ref().map_or(0, |answer| answer.body().message_len()),
    };
    if let (Some(prefix), Some(story)) = (said.reads(), read) {
        let error = answer.as_ref().err().map_or("", Status::message);
        story.tell_of_read(prefix, &about, asker.slow.1, error);
        asker.member.node().figures().slow_applies.fetch_add(1, Relaxed);
    }
    if let Some(story) = whole {
        story.tell(&about);
    }
    answer
}

/// What a client has said, in short, in case it is to be told. Values are left out.
enum Said {
    Range(Bytes, Bytes, i64),
    Delete(Bytes, Bytes),
    Put(Bytes, usize),
    /// And whether it only reads.
    Txn(usize, usize, usize, bool),
    Compact(i64),
}

impl Said {
    /// What the request is called in a recording, which knows how long its answer is.
    fn class(&self, count: usize) -> (&'static str, recording::Kind) {
        use recording::Kind::{Read, Write};
        match self {
            Said::Range(_, end, _) if end.is_empty() => ("get", Read),
            Said::Range(..) if count <= SHORT => ("range", Read),
            Said::Range(..) => ("long range", Read),
            Said::Txn(_, _, _, true) => ("read txn", Read),
            Said::Txn(..) => ("txn", Write),
            Said::Put(..) => ("put", Write),
            Said::Delete(..) => ("delete", Write),
            Said::Compact(_) => ("compact", Write),
        }
    }

    /// How etcd begins the line about a slow read, if it is one.
    fn reads(&self) -> Option<&'static str> {
        match self {
            Said::Range(..) => Some("read-only range "),
            Said::Txn(_, _, _, true) => Some("read-only txn "),
            _ => None,
        }
    }
}

/// A range of keys.
fn keys(key: &[u8], end: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "key:\"{}\"", key.escape_ascii())?;
    match end.is_empty() {
        true => Ok(()),
        false => write!(f, " range_end:\"{}\"", end.escape_ascii()),
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Said::Range(key, end, limit) => {
                keys(key, end, f)?;
                if *limit == 0 { Ok(()) } else { write!(f, " limit:{limit}") }
            }
            Said::Delete(key, end) => keys(key, end, f),
            Said::Put(key, size) => {
                write!(f, "key:\"{}\" value_size:{size}", key.escape_ascii())
            }
            Said::Txn(compares, success, failure, _) => {
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
