//! One watch of a client.

use std::sync::Arc;

use clearlane_mvcc::watch::WatchedKeys;
use clearlane_proto::etcdserverpb::WatchCreateRequest;
use clearlane_proto::etcdserverpb::watch_create_request::FilterType;
use clearlane_proto::mvccpb::Event;
use clearlane_proto::mvccpb::event::EventType;

use crate::cache::contents::{CachedEvent, RevisionEvents};
use crate::cache::range::watched_keys;
use crate::cache::scope::{Scope, ScopeWatcher};

/// Where the events come from.
#[derive(Debug)]
pub(super) enum Source {
    /// The scope's queue, or the scope's history while the watcher is lagging.
    Scope { scope: Arc<Scope>, handle: Arc<ScopeWatcher>, is_lagging: bool },
    /// A watch upstream with this ID.
    Direct { upstream_id: i64 },
}

#[derive(Debug)]
pub(super) struct Watcher {
    /// The client's ID of the watch.
    pub(super) id: i64,
    pub(super) keys: WatchedKeys,
    pub(super) create: WatchCreateRequest,
    /// All events below this revision were sent. 0 if the watch starts at the time of its creation
    /// and its creation was not answered.
    pub(super) next: i64,
    /// True if the client was told that the watch is created.
    pub(super) is_created: bool,
    /// True if a response was sent since the last progress notice was due.
    pub(super) is_active: bool,
    pub(super) source: Source,
}

impl Watcher {
    pub(super) fn keys_of(create: &WatchCreateRequest) -> WatchedKeys {
        watched_keys(&create.key, &create.range_end)
    }

    pub(super) fn is_direct(&self) -> bool {
        matches!(self.source, Source::Direct { .. })
    }

    /// Returns the request that continues the watch upstream.
    pub(super) fn continuation(&self) -> WatchCreateRequest {
        WatchCreateRequest { start_revision: self.next, ..self.create.clone() }
    }

    /// Returns the picked events that the client wants.
    pub(super) fn wanted(&self, events: &RevisionEvents, picks: &[u32]) -> Vec<Event> {
        let events = picks.iter().filter_map(|pick| events.events.get(*pick as usize));
        events.filter(|event| self.wants(event.kind)).map(|event| self.message(event)).collect()
    }

    fn wants(&self, kind: EventType) -> bool {
        let unwanted = match kind {
            EventType::Put => FilterType::Noput,
            EventType::Delete => FilterType::Nodelete,
        };
        !self.create.filters.contains(&(unwanted as i32))
    }

    fn message(&self, event: &CachedEvent) -> Event {
        let previous = event.previous.as_ref().filter(|_| self.create.prev_kv);
        Event {
            r#type: event.kind as i32,
            // Keys and values are shared, not copied.
            kv: Some((*event.current).clone()),
            prev_kv: previous.map(|record| (**record).clone()),
        }
    }
}
