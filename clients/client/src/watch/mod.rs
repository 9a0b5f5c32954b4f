//! Watches: every event once and in order, despite failures of connections and members.
//!
//! Revisions are the same on all members. So a [`Watch`] resumes on another member, at the revision
//! after the last delivered one.
//!
//! * All events of a revision are delivered together. Fragments of a message are joined first. If
//!   the connection fails before the last fragment, all fragments are requested again.
//! * [`Client::watch`] returns once the server has reported at which revision the watch starts. So
//!   the watch sees everything that is written afterwards, even after a failure.
//! * A progress notice also moves forward the revision at which the watch would resume.
//!
//! A watch ends with [`Error::Compacted`] if its next revision was compacted, and with another
//! error if every member would reject it, for example because a permission is missing. Dropping a
//! watch cancels it on the server. If a member loses its leader, the watch does not end: the client
//! tries another member. See `docs/client.md`.

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

/// Maximum number of received batches that wait for a slow reader. If the queue is full, the
/// background task receives no further messages.
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
    /// The message that is sent, and sent again after a failure.
    pub request: WatchCreateRequest,
}

impl<K: Into<Keys>> From<K> for WatchKeys {
    fn from(keys: K) -> WatchKeys {
        WatchKeys::new(keys)
    }
}

impl WatchKeys {
    /// Creates a request that watches these keys.
    pub fn new(keys: impl Into<Keys>) -> WatchKeys {
        let Keys { key, range_end } = keys.into();
        // The server splits long messages, and the background task joins the fragments again.
        let fragment = true;
        WatchKeys { request: WatchCreateRequest { key, range_end, fragment, ..Default::default() } }
    }

    /// Creates a request that watches all keys that start with `prefix`.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> WatchKeys {
        WatchKeys::new(Keys::prefix(prefix))
    }

    /// Sets the first revision. It is inclusive, and may be in the past or in the future.
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

/// A change of one key.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A client wrote the key.
    Put {
        /// The new record.
        kv: KeyValue,
        /// The previous record, if it was requested and is not compacted.
        prev_kv: Option<KeyValue>,
    },
    /// A client deleted the key, or the key's lease ended.
    Delete {
        /// The key. Its `mod_revision` is the revision of the deletion.
        kv: KeyValue,
        /// The previous record, if it was requested and is not compacted.
        prev_kv: Option<KeyValue>,
    },
}

impl Event {
    /// Returns the record. For a deletion it has no value.
    pub fn kv(&self) -> &KeyValue {
        match self {
            Event::Put { kv, .. } | Event::Delete { kv, .. } => kv,
        }
    }

    /// Returns the previous record, if it was requested and is not compacted.
    pub fn prev_kv(&self) -> Option<&KeyValue> {
        match self {
            Event::Put { prev_kv, .. } | Event::Delete { prev_kv, .. } => prev_kv.as_ref(),
        }
    }

    /// Returns the revision of the change.
    pub fn revision(&self) -> i64 {
        self.kv().mod_revision
    }

    /// Returns true for a put, and false for a deletion.
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

/// Events that arrived together. All events of a revision are in one batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// All events up to this revision have been delivered, including the events of this batch.
    pub revision: i64,
    /// The events. Empty for a progress notice.
    pub events: Vec<Event>,
}

/// A watch. See the [module](self).
#[derive(Debug)]
pub struct Watch {
    start_revision: i64,
    /// The revision of the last received batch.
    batch_revision: i64,
    /// The revision of the batch before the last received one.
    previous_revision: i64,
    /// The rest of the last batch, which `next` returns event by event.
    buffered: VecDeque<Event>,
    batches: mpsc::Receiver<Result<Batch>>,
    progress_requests: mpsc::UnboundedSender<()>,
    /// The background task. It is aborted when the watch is dropped.
    _task: JoinSet<()>,
}

impl Watch {
    /// Waits for the next event, without a time limit. Returns `None` after it has returned an
    /// error, because an error ends the watch.
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

    /// Waits for the next events that arrive together, or for a progress notice. If
    /// [`next`](Watch::next) has returned only a part of a batch, returns the rest of that batch
    /// without waiting. Returns `None` after an error was returned.
    pub async fn next_batch(&mut self) -> Option<Result<Batch>> {
        if self.buffered.is_empty() {
            let batch = self.batches.recv().await?;
            return Some(batch.inspect(|batch| self.batch_revision = batch.revision));
        }
        // This is the rest of a batch that `next` has started.
        let events = self.buffered.drain(..).collect();
        Some(Ok(Batch { revision: self.batch_revision, events }))
    }

    /// Returns the first revision whose events this watch receives.
    pub fn start_revision(&self) -> i64 {
        self.start_revision
    }

    /// Returns the revision up to which all events have been returned.
    pub fn revision(&self) -> i64 {
        if self.buffered.is_empty() { self.batch_revision } else { self.previous_revision }
    }

    /// Requests a progress notice from the server: a batch without events, after all earlier
    /// events. A server may ignore the request.
    pub fn request_progress(&self) {
        // Sending fails only if the watch has ended. `next` and `next_batch` return the error that
        // ended the watch, unless one of them has already done so.
        let _ = self.progress_requests.send(());
    }
}

impl Client {
    /// Creates a watch. Returns when the server has created it: the watch receives everything that
    /// is written afterwards. Fails if creating the watch takes longer than the [request
    /// timeout](crate::Options::request_timeout).
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
        let late = |_| Error::TimedOut(format!("the watch was not created within {limit:?}"));
        if let Ok(revision) = timeout(limit, start).await.map_err(late)? {
            watch.start_revision = revision;
            watch.batch_revision = revision - 1;
            return Ok(watch);
        }
        // The watch has ended before it started. The queue has the error that ended it.
        match watch.batches.recv().await {
            Some(Err(error)) => Err(error),
            _ => Err(Error::Unexpected("the watch ended before it was created")),
        }
    }
}
