//! Requests, events and responses of watching.

use std::ops::Range;
use std::sync::Arc;

use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use super::watcher_group::WatchedKeys;
use crate::interface::Change;
use crate::revision::RecordKind;

/// The ID of a watcher, unique in its stream.
pub type WatchId = i64;

/// The ID in responses that concern no watcher: rejections, and the progress of a whole stream.
pub const INVALID_WATCH_ID: WatchId = -1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    pub keys: WatchedKeys,
    /// The first revision to deliver. 0 means all changes after the request.
    pub start_revision: i64,
    /// The ID of the watcher. If 0, the stream chooses one.
    pub id: WatchId,
    pub no_put: bool,
    pub no_delete: bool,
    pub prev_kv: bool,
    /// If true, the watcher receives progress notices while it is synced: one after each interval
    /// without an event.
    pub progress_notify: bool,
    pub fragment: bool,
    /// If true, the user may not read these keys. No watcher is created, and the rejection is sent
    /// in order with the other responses.
    pub is_refused: bool,
}

impl WatchRequest {
    /// Creates a request for all changes of these keys after the request.
    pub fn new(keys: WatchedKeys) -> WatchRequest {
        WatchRequest {
            keys,
            start_revision: 0,
            id: 0,
            no_put: false,
            no_delete: false,
            prev_kv: false,
            progress_notify: false,
            fragment: false,
            is_refused: false,
        }
    }

    /// Returns why this watcher cannot be created, or `None` if it can. `is_taken` returns whether
    /// an ID is in use in the stream. The order of the checks is etcd's, so a request with two
    /// errors gets the same reason as in etcd.
    pub fn rejection(&self, is_taken: impl Fn(WatchId) -> bool) -> Option<WatchError> {
        if self.start_revision < 0 {
            return Some(WatchError::NegativeStartRevision);
        }
        if self.is_refused {
            return Some(WatchError::Refused);
        }
        if self.keys.is_empty() {
            return Some(WatchError::EmptyRange);
        }
        (self.id != 0 && is_taken(self.id)).then_some(WatchError::DuplicateId)
    }

    /// Returns the first revision whose events this watcher receives. `now` is the store's
    /// revision.
    pub(crate) fn first_revision(&self, now: i64) -> i64 {
        if self.start_revision == 0 { now + 1 } else { self.start_revision }
    }

    pub(crate) fn wants(&self, mark: RecordKind) -> bool {
        match mark {
            RecordKind::Put => !self.no_put,
            RecordKind::Tombstone => !self.no_delete,
        }
    }
}

/// Why a watcher was not created. The messages are etcd's, because clients compare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    #[error("mvcc: duplicate watch ID provided on the WatchStream")]
    DuplicateId,
    /// The range contains no key.
    #[error("mvcc: watcher range is empty")]
    EmptyRange,
    #[error("etcdserver: mvcc: required revision has been compacted")]
    NegativeStartRevision,
    /// See [`WatchRequest::is_refused`]. The server knows the reason and sends it to the client.
    #[error("etcdserver: permission denied")]
    Refused,
}

/// Chooses an ID for each watcher of a stream: the requested ID or, if none is requested, the next
/// ID that is not in use.
#[derive(Clone, Copy, Debug, Default)]
pub struct WatchIdAllocator {
    next: WatchId,
}

impl WatchIdAllocator {
    pub fn allocate(&mut self, asked: WatchId, is_taken: impl Fn(WatchId) -> bool) -> WatchId {
        if asked != 0 {
            return asked;
        }
        while is_taken(self.next) {
            self.next += 1;
        }
        self.next += 1;
        self.next - 1
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub change: Change,
    /// The previous record, for watchers that request it. `None` for all other watchers, and also
    /// if the key had no value before, or if a compaction has removed the record.
    pub prev_kv: Option<KeyValue>,
}

impl Event {
    pub(crate) fn new(change: Change) -> Event {
        Event { change, prev_kv: None }
    }

    pub(crate) fn kind(&self) -> RecordKind {
        match self.change {
            Change::Put(_) => RecordKind::Put,
            Change::Delete(_) => RecordKind::Tombstone,
        }
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.change.record().key
    }

    /// Returns the number of bytes that the event takes on the wire, as part of a response.
    pub fn wire_size(&self) -> usize {
        let field = |length: usize| 1 + prost::length_delimiter_len(length) + length;
        let record = self.change.record();
        let kind = if self.kind() == RecordKind::Put { 0 } else { 2 };
        let previous = self.prev_kv.as_ref().map_or(0, |record| field(record.encoded_len()));
        field(kind + field(record.encoded_len()) + previous)
    }

    /// Returns the approximate memory of the event, in bytes.
    pub fn size(&self) -> usize {
        change_size(&self.change) + self.prev_kv_size()
    }

    fn wire_bytes(&self) -> usize {
        let records = [Some(self.change.record()), self.prev_kv.as_ref()];
        records.iter().flatten().map(|record| record.key.len() + record.value.len() + 32).sum()
    }

    pub(crate) fn prev_kv_size(&self) -> usize {
        self.prev_kv.as_ref().map_or(0, size)
    }
}

/// Returns the approximate memory of a change, in bytes.
pub(crate) fn change_size(change: &Change) -> usize {
    size(change.record())
}

fn size(record: &KeyValue) -> usize {
    record.encoded_len() + RECORD_OVERHEAD
}

/// Memory of a record in addition to its bytes.
pub(crate) const RECORD_OVERHEAD: usize = 96;

#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    pub id: WatchId,
    /// For the events of a synced watcher, their revision. For [`ResponseKind::Progress`], the
    /// revision up to which all events were sent. 0 for [`ResponseKind::Compacted`]. For events
    /// that were read from the store, and for all other responses, the store's revision.
    pub revision: i64,
    pub kind: ResponseKind,
}

impl Response {
    /// Returns the approximate number of bytes that the events take on the wire.
    pub fn event_bytes(&self) -> usize {
        match &self.kind {
            ResponseKind::Events { events, .. } => events.iter().map(Event::wire_bytes).sum(),
            _ => 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum ResponseKind {
    /// The watcher was created. Its events follow.
    Created,
    Rejected(WatchError),
    /// The watcher was canceled: by the client, or by the server because the user may no longer
    /// read the keys.
    Canceled,
    /// The watcher ends: the next revision to deliver was compacted. The value is the compact
    /// revision.
    Compacted(i64),
    /// The events of one or more whole revisions.
    Events {
        /// The events, in the order of revisions, and of changes within a revision.
        events: Arc<[Event]>,
        /// If true, the client can reassemble events that are split into several messages.
        fragment: bool,
    },
    /// All events up to the response's revision were sent.
    Progress,
}

/// Splits events into fragments of at most `bytes_max` bytes on the wire. An event that is larger
/// is a fragment by itself. Returns the ranges of the events. Each fragment goes into a separate
/// message, for clients that allow it.
pub fn fragments(events: &[Event], bytes_max: usize) -> impl Iterator<Item = Range<usize>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let from = next;
        let mut left = bytes_max;
        while let Some(event) = events.get(next) {
            let size = event.wire_size();
            if size > left && next > from {
                break;
            }
            left = left.saturating_sub(size);
            next += 1;
        }
        (next > from).then_some(from..next)
    })
}

#[cfg(test)]
mod tests {
    use clearlane_proto::etcdserverpb::WatchResponse;
    use clearlane_proto::mvccpb;

    use super::*;

    fn event(value: usize) -> Event {
        let record = KeyValue { value: vec![1; value].into(), ..KeyValue::default() };
        Event::new(Change::Put(record))
    }

    fn fragments_of(sizes: &[usize]) -> Vec<Range<usize>> {
        let events: Vec<Event> = sizes.iter().map(|size| event(*size)).collect();
        fragments(&events, 1000).collect()
    }

    #[test]
    fn the_size_on_the_wire_is_that_of_the_message() {
        for (value, previous) in [(0, None), (100, None), (200, Some(20_000)), (70_000, Some(1))] {
            for deleted in [false, true] {
                let record = |value| event(value).change.record().clone();
                let kind = if deleted { Change::Delete } else { Change::Put };
                let change = kind(record(value));
                let event = Event { change, prev_kv: previous.map(record) };
                let message = mvccpb::Event {
                    r#type: i32::from(deleted),
                    kv: Some(record(value)),
                    prev_kv: event.prev_kv.clone(),
                };
                let response = WatchResponse { events: vec![message], ..WatchResponse::default() };
                assert_eq!(event.wire_size(), response.encoded_len());
            }
        }
    }

    #[test]
    fn fragments_are_as_long_as_they_may_be_and_never_empty() {
        assert_eq!(fragments_of(&[]), vec![]);
        assert_eq!(fragments_of(&[5000]), vec![0..1]);
        assert_eq!(fragments_of(&[400, 400, 400]), vec![0..2, 2..3]);
        assert_eq!(fragments_of(&[5000, 1, 1, 5000, 5000]), vec![0..1, 1..3, 3..4, 4..5]);
    }
}
