//! Watches: every event once and in order, across failures of connections and members.
//!
//! Revisions are the same at all members, so a [`Watch`] resumes elsewhere at the revision behind
//! the last one that it handed on.
//!
//! * Events of a revision are handed on together. Fragments of a message are put together first; if
//!   the connection breaks in the middle, all of them are asked for again.
//! * [`Client::watch`] returns once the server has said at which revision the watch begins: what is
//!   written afterwards is seen, also after a failure.
//! * A progress notice moves the revision forward, too.
//!
//! A watch ends with [`Error::Compacted`] if its next revision was compacted, and when permission
//! is missing. Dropping it cancels it at the server. A member that loses its leader does not end
//! it: the client tries another. See `docs/client.md`.

mod task;

use std::collections::VecDeque;

use clearlane_proto::etcdserverpb::WatchCreateRequest;
use clearlane_proto::mvccpb::{self, KeyValue, event::EventType};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::task::WatchTask;
use crate::Client;
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::kv::Keys;

/// Batches that wait for a slow reader; the rest stays at the server.
const BATCH_QUEUE_CAPACITY: usize = 16;

/// A watch request; its rarer options are fields of `request`, such as the server's own progress
/// notices, and filters.
///
/// ```
/// use clearlane_client::WatchKeys;
/// use clearlane_client::proto::etcdserverpb::watch_create_request::FilterType;
///
/// let all_since = WatchKeys::prefix("").from_revision(17);
/// let mut deletions = WatchKeys::prefix("session/").prev_kv();
/// deletions.request.filters.push(FilterType::Noput.into());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WatchKeys {
    pub request: WatchCreateRequest,
}

impl<K: Into<Keys>> From<K> for WatchKeys {
    fn from(keys: K) -> WatchKeys {
        WatchKeys::new(keys)
    }
}

impl WatchKeys {
    pub fn new(keys: impl Into<Keys>) -> WatchKeys {
        let Keys { key, range_end } = keys.into();
        // The server splits long messages; the task joins them again.
        let fragment = true;
        WatchKeys { request: WatchCreateRequest { key, range_end, fragment, ..Default::default() } }
    }

    pub fn prefix(prefix: impl Into<Vec<u8>>) -> WatchKeys {
        WatchKeys::new(Keys::prefix(prefix))
    }

    /// Inclusive; in the past or in the future.
    pub fn from_revision(mut self, revision: i64) -> WatchKeys {
        self.request.start_revision = revision;
        self
    }

    /// Adds the previous record to each event, unless it was compacted.
    pub fn prev_kv(mut self) -> WatchKeys {
        self.request.prev_kv = true;
        self
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Put {
        kv: KeyValue,
        /// If it was asked for.
        prev_kv: Option<KeyValue>,
    },
    /// By a client or with its lease.
    Delete {
        /// The key, and as `mod_revision` the revision of the deletion.
        kv: KeyValue,
        /// If it was asked for.
        prev_kv: Option<KeyValue>,
    },
}

impl Event {
    /// Without a value for a deletion.
    pub fn kv(&self) -> &KeyValue {
        match self {
            Event::Put { kv, .. } | Event::Delete { kv, .. } => kv,
        }
    }

    pub fn prev_kv(&self) -> Option<&KeyValue> {
        match self {
            Event::Put { prev_kv, .. } | Event::Delete { prev_kv, .. } => prev_kv.as_ref(),
        }
    }

    pub fn revision(&self) -> i64 {
        self.kv().mod_revision
    }

    pub fn is_put(&self) -> bool {
        matches!(self, Event::Put { .. })
    }
}

impl From<mvccpb::Event> for Event {
    fn from(event: mvccpb::Event) -> Event {
        let kind = event.r#type();
        let (kv, prev_kv) = (event.kv.unwrap_or_default(), event.prev_kv);
        match kind {
            EventType::Put => Event::Put { kv, prev_kv },
            EventType::Delete => Event::Delete { kv, prev_kv },
        }
    }
}

/// Events that came together. All events of a revision are in one batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Everything up to this revision has been seen, with this batch.
    pub revision: i64,
    /// Empty for a progress notice.
    pub events: Vec<Event>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Watch {
    start_revision: i64,
    /// The revision of the last batch, and of the one before.
    batch_revision: i64,
    previous_revision: i64,
    /// The rest of the last batch, which `next` returns event by event.
    buffered: VecDeque<Event>,
    batches: mpsc::Receiver<Result<Batch>>,
    progress_requests: mpsc::UnboundedSender<()>,
    /// Aborted when it is dropped.
    _task: JoinSet<()>,
}

impl Watch {
    /// Waits without a limit. `None` after an error, which is the last item.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        loop {
            if let Some(event) = self.buffered.pop_front() {
                return Some(Ok(event));
            }
            match self.batches.recv().await? {
                Ok(Batch { revision, events }) => {
                    self.previous_revision = std::mem::replace(&mut self.batch_revision, revision);
                    self.buffered = events.into();
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The next events that came together, or a progress notice.
    pub async fn next_batch(&mut self) -> Option<Result<Batch>> {
        if self.buffered.is_empty() {
            let batch = self.batches.recv().await?;
            return Some(batch.inspect(|batch| self.batch_revision = batch.revision));
        }
        // The rest of a batch that `next` has begun.
        let events = self.buffered.drain(..).collect();
        Some(Ok(Batch { revision: self.batch_revision, events }))
    }

    /// The first revision whose events this watch has.
    pub fn start_revision(&self) -> i64 {
        self.start_revision
    }

    /// All events up to this revision have been returned.
    pub fn revision(&self) -> i64 {
        if self.buffered.is_empty() { self.batch_revision } else { self.previous_revision }
    }

    /// Asks the server for a progress notice: a batch without events, once all earlier events have
    /// come. A server may give no answer.
    pub fn request_progress(&self) {
        // A watch that has ended has returned its error.
        let _ = self.progress_requests.send(());
    }
}

impl Client {
    /// Returns when the server has created the watch: it has what is written afterwards.
    pub async fn watch(&self, what: impl Into<WatchKeys>) -> Result<Watch> {
        let (batch_sender, batches) = mpsc::channel(BATCH_QUEUE_CAPACITY);
        let (progress_sender, progress_requests) = mpsc::unbounded_channel();
        let (start_sender, start) = oneshot::channel();
        let task = WatchTask {
            client: self.clone(),
            create: what.into().request,
            batches: batch_sender,
            progress_requests,
            started: Some(start_sender),
            fragments: Vec::new(),
            backoff: Backoff::new(),
            token_was_rejected: false,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        let mut watch = Watch {
            start_revision: 0,
            batch_revision: 0,
            previous_revision: 0,
            buffered: VecDeque::new(),
            batches,
            progress_requests: progress_sender,
            _task: tasks,
        };
        let limit = self.options_and_token.options.request_timeout;
        let late = |_| Error::TimedOut(format!("a watch has not begun in {limit:?}"));
        if let Ok(revision) = timeout(limit, start).await.map_err(late)? {
            watch.start_revision = revision;
            watch.batch_revision = revision - 1;
            return Ok(watch);
        }
        // It has ended before it began; the queue has the error.
        match watch.batches.recv().await {
            Some(Err(error)) => Err(error),
            _ => Err(Error::Unexpected("a watch that has not begun")),
        }
    }
}
