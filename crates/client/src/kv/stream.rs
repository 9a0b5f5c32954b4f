//! A range of any size, piece by piece.
//!
//! One answer with a million records needs the memory for a million records, twice, and a message that
//! long. So the server (since etcd 3.7) sends a range in pieces, and the reader takes them as he goes.
//!
//! # One moment, whoever answers
//!
//! The revision is settled before the first piece. All pieces are of that revision, and if an endpoint
//! fails in the middle, another goes on from the key behind the last one that came:
//!
//! ```text
//!   server 1:   a b c d ╳               at revision 17
//!   server 2:           e f g h         from "d\0" on, at revision 17
//! ```
//!
//! A server that knows no pieces is asked for pages, one behind the other, with the same result.
//!
//! If a compaction overtakes the reader, he is told so: [`Error::Compacted`].

use std::collections::VecDeque;

use clearlane_proto::etcdserverpb::{RangeRequest, RangeStreamResponse};
use clearlane_proto::mvccpb::KeyValue;
use tokio::time::Instant;
use tokio_stream::Stream;
use tonic::{Code, Status, Streaming};

use super::{Get, kv};
use crate::Client;
use crate::call::Way;
use crate::error::{Error, Result, Verdict, told};
use crate::pause::Pause;

/// Of a page, where a server knows no pieces.
const PAGE: i64 = 1000;

/// The records of a range, as they come.
#[derive(Debug)]
pub struct RangeStream {
    client: Client,
    /// What is still to be read.
    rest: RangeRequest,
    /// So many more are wanted, if that was said.
    left: Option<i64>,
    from: Source,
    come: VecDeque<KeyValue>,
    pause: Pause,
    /// Since when nothing has come, if a stream has failed since.
    failing: Option<Instant>,
}

/// Where records come from.
#[derive(Debug)]
enum Source {
    /// Nowhere yet, or not any more.
    Nothing,
    Pieces(Box<Streaming<RangeStreamResponse>>),
    Pages,
    Ended,
}

impl RangeStream {
    /// All records are of this revision.
    pub fn revision(&self) -> i64 {
        self.rest.revision
    }

    /// The next record. `None` when there are no more, and behind an error.
    pub async fn next(&mut self) -> Option<Result<KeyValue>> {
        loop {
            if let Some(record) = self.come.pop_front() {
                return Some(Ok(record));
            }
            if let Err(error) = self.fetch().await {
                self.from = Source::Ended;
                return Some(Err(error));
            }
            if matches!(self.from, Source::Ended) && self.come.is_empty() {
                return None;
            }
        }
    }

    /// As a [`Stream`].
    pub fn into_stream(self) -> impl Stream<Item = Result<KeyValue>> + Send {
        futures_util::stream::unfold(self, async |mut range| {
            let next = range.next().await?;
            Some((next, range))
        })
    }

    /// One step towards the next records.
    async fn fetch(&mut self) -> Result<()> {
        if self.left == Some(0) {
            self.from = Source::Ended;
        }
        match &mut self.from {
            Source::Ended => {}
            Source::Nothing => {
                let request = RangeRequest { limit: self.left.unwrap_or(0), ..self.rest.clone() };
                let way = if request.serializable { Way::LOCAL } else { Way::READ };
                let send =
                    |channel, request| async move { kv(channel).range_stream(request).await };
                let pieces = self.client.call(way, request, send).await;
                self.from = match pieces {
                    Err(Error::Unsupported(_)) => Source::Pages,
                    pieces => Source::Pieces(Box::new(pieces?)),
                };
            }
            Source::Pieces(pieces) => match pieces.message().await {
                Ok(Some(piece)) => {
                    self.take(piece.range_response.unwrap_or_default().kvs);
                }
                Ok(None) => self.from = Source::Ended,
                Err(status) => self.broken(&status).await?,
            },
            Source::Pages => self.page().await?,
        }
        Ok(())
    }

    /// Nothing that came is asked for again.
    fn take(&mut self, records: Vec<KeyValue>) {
        self.failing = None;
        self.pause.reset();
        if let Some(last) = records.last() {
            let mut behind = last.key.to_vec();
            behind.push(0);
            self.rest.key = behind.into();
        }
        if let Some(left) = &mut self.left {
            *left = (*left - records.len() as i64).max(0);
        }
        self.come.extend(records);
    }

    /// What becomes of a stream that has ended with an error.
    async fn broken(&mut self, status: &Status) -> Result<()> {
        self.from = match Verdict::of(status) {
            _ if status.code() == Code::Unimplemented => Source::Pages,
            Verdict::Answer => return Err(Error::of(status)),
            // The next call finds somebody who answers, or a new token.
            _ => Source::Nothing,
        };
        let since = *self.failing.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.client.shared.options.request_timeout {
            return Err(Error::Unavailable(told(status)));
        }
        self.pause.wait().await;
        Ok(())
    }

    async fn page(&mut self) -> Result<()> {
        let limit = self.left.map_or(PAGE, |left| left.min(PAGE));
        let request = RangeRequest { limit, ..self.rest.clone() };
        let reply = self.client.get(Get { request }).await?;
        if !reply.more {
            self.from = Source::Ended;
        }
        self.take(reply.kvs);
        Ok(())
    }
}

impl Client {
    /// Reads a range of any size, in the order of keys. A single key, a count and a sorted range have
    /// no pieces: those are for [`get`](Client::get), and refused here.
    pub async fn get_stream(&self, what: impl Into<Get>) -> Result<RangeStream> {
        let request = what.into().request;
        let is_sorted = request.sort_target != 0 || request.sort_order > 1;
        if request.range_end.is_empty() || request.count_only || is_sorted {
            let words = "a stream is for ranges in the order of keys";
            return Err(Error::InvalidArgument(words.to_owned()));
        }
        let (limit, mut rest) = (request.limit, RangeRequest { limit: 0, ..request });
        if rest.revision <= 0 {
            // Of the same kind as what follows: a stale reader need not be fresh here.
            let now = Get::from(&rest.key[..]).count_only();
            let now = if rest.serializable { now.serializable() } else { now };
            rest.revision = self.get(now).await?.revision();
        }
        let left = (limit > 0).then_some(limit);
        let (from, come) = (Source::Nothing, VecDeque::new());
        let (client, pause) = (self.clone(), Pause::new());
        Ok(RangeStream { client, rest, left, from, come, pause, failing: None })
    }
}
