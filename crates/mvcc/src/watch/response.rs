//! What goes into and what comes out of watching: requests, events, responses.

use std::ops::Range;
use std::sync::Arc;

use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use super::watcher_group::WatchedKeys;
use crate::interface::Change;
use crate::revision::RecordKind;

/// Unique in its stream.
pub type WatchId = i64;

/// For responses that are about no watcher: rejections, and the progress of a whole stream.
pub const INVALID_WATCH_ID: WatchId = -1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    pub keys: WatchedKeys,
    /// From which revision on; 0 is "what happens from now on".
    pub start_revision: i64,
    /// Which id it gets; 0 leaves the choice to the stream.
    pub id: WatchId,
    pub no_put: bool,
    pub no_delete: bool,
    pub prev_kv: bool,
    /// Progress is reported now and then, though nothing has happened.
    pub progress_notify: bool,
    pub fragment: bool,
    /// The user may not read these keys: there will be no watcher, and the refusal takes its turn
    /// among the responses.
    pub is_refused: bool,
}

impl WatchRequest {
    /// All changes of these keys from now on.
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

    /// Why there cannot be such a watcher in a stream where these ids are taken. The order is
    /// etcd's: a request that is wrong twice gets the reason that etcd gives.
    pub(crate) fn rejection(&self, is_taken: impl Fn(WatchId) -> bool) -> Option<WatchError> {
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

    /// The first revision of which it is to be told, at a store of this revision.
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

/// Why a watcher was not made. Displayed in etcd's words, for clients look at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    #[error("mvcc: duplicate watch ID provided on the WatchStream")]
    DuplicateId,
    /// No key can be in the range.
    #[error("mvcc: watcher range is empty")]
    EmptyRange,
    #[error("etcdserver: mvcc: required revision has been compacted")]
    NegativeStartRevision,
    /// See [`WatchRequest::is_refused`]. The server tells the client why.
    #[error("etcdserver: permission denied")]
    Refused,
}

/// The ids that a stream gives its watchers: counted up, and those skipped that are taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WatchIdAllocator {
    next: WatchId,
}

impl WatchIdAllocator {
    pub(crate) fn allocate(
        &mut self,
        asked: WatchId,
        is_taken: impl Fn(WatchId) -> bool,
    ) -> WatchId {
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
    /// The record before it, for watchers that asked for that: absent if the key was created, and
    /// if a compaction has taken it meanwhile.
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

    /// How long it is on the wire, as part of a response.
    pub fn wire_size(&self) -> usize {
        let field = |length: usize| 1 + prost::length_delimiter_len(length) + length;
        let record = self.change.record();
        let kind = if self.kind() == RecordKind::Put { 0 } else { 2 };
        let previous = self.prev_kv.as_ref().map_or(0, |record| field(record.encoded_len()));
        field(kind + field(record.encoded_len()) + previous)
    }

    /// About how much memory it keeps.
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

/// About how much memory a change keeps.
pub(crate) fn change_size(change: &Change) -> usize {
    size(change.record())
}

fn size(record: &KeyValue) -> usize {
    record.encoded_len() + RECORD_OVERHEAD
}

/// Memory of a record besides its bytes.
pub(crate) const RECORD_OVERHEAD: usize = 96;

#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    pub id: WatchId,
    /// The revision of the event for watchers that are up to date; else the store's.
    pub revision: i64,
    pub kind: ResponseKind,
}

impl Response {
    /// About how long its events are on the wire.
    pub fn event_bytes(&self) -> usize {
        match &self.kind {
            ResponseKind::Events { events, .. } => events.iter().map(Event::wire_bytes).sum(),
            _ => 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum ResponseKind {
    /// The watcher is there. Its events come after this.
    Created,
    Rejected(WatchError),
    /// At the client's request.
    Canceled,
    /// What was to be delivered next is compacted, up to this revision.
    Compacted(i64),
    /// One or more whole revisions.
    Events {
        /// In the order of revisions, and within a revision of the changes.
        events: Arc<[Event]>,
        /// Whether the client can put together what is cut.
        fragment: bool,
    },
    /// Everything up to this revision has been delivered.
    Progress,
}

/// Cuts events into fragments of at most `bytes_max` bytes on the wire, or of one event that is
/// greater: each goes into a message of its own, for clients that allow it.
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
