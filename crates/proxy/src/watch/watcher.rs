//! One watch of a client: what was sent, and where the next events come from.

use std::sync::Arc;

use clearlane_mvcc::watch::WatchedKeys;
use clearlane_proto::etcdserverpb::watch_create_request::FilterType;
use clearlane_proto::etcdserverpb::{ResponseHeader, WatchCreateRequest, WatchResponse};
use clearlane_proto::mvccpb::Event;
use clearlane_proto::mvccpb::event::EventType;

use crate::cache::contents::{CachedEvent, RevisionEvents};
use crate::cache::range::watched_keys;
use crate::cache::scope::{CatchUp, Scope, ScopeWatcher};
use crate::watch::queue::SessionQueue;

/// Maximum number of bytes of events that a watch reads from the history at a time.
pub const CATCH_UP_BYTES: usize = 1 << 20;

/// The events of a revision, and the places of the events that match the watch.
pub type Found = (Arc<RevisionEvents>, Vec<u32>);

/// Where the events come from.
#[derive(Debug)]
pub enum Source {
    /// The scope's queue, or the scope's history while the watcher is lagging.
    Scope { scope: Arc<Scope>, handle: Arc<ScopeWatcher>, is_lagging: bool },
    /// A watch upstream with this ID. `is_answered` is true if the member has created it.
    Direct { upstream_id: i64, is_answered: bool },
}

impl Source {
    /// A watch whose creation upstream was requested. IDs start at 1.
    pub fn direct(upstream_id: i64) -> Source {
        Source::Direct { upstream_id, is_answered: false }
    }
}

#[derive(Debug)]
pub struct Watcher {
    /// The client's ID of the watch.
    pub id: i64,
    pub keys: WatchedKeys,
    pub create: WatchCreateRequest,
    /// All events below this revision were sent. 0 if the watch starts at the time of its creation
    /// and its creation was not answered.
    pub next: i64,
    /// True if a response has told the client that the watch exists.
    pub is_created: bool,
    /// True if the client has canceled the watch, and the member has not answered. The watch does
    /// not join a scope then, and ends if its stream is lost.
    pub is_canceled: bool,
    /// True if a response was sent since the last progress notice was due.
    pub is_active: bool,
    /// True if a response was sent in part: more fragments of it must follow.
    pub is_in_fragments: bool,
    pub source: Source,
}

impl Watcher {
    pub fn new(id: i64, create: WatchCreateRequest) -> Watcher {
        Watcher {
            id,
            keys: Watcher::keys_of(&create),
            next: create.start_revision,
            create,
            is_created: false,
            is_canceled: false,
            is_active: true,
            is_in_fragments: false,
            source: Source::direct(0),
        }
    }

    pub fn keys_of(create: &WatchCreateRequest) -> WatchedKeys {
        watched_keys(&create.key, &create.range_end)
    }

    pub fn is_direct(&self) -> bool {
        matches!(self.source, Source::Direct { .. })
    }

    /// Returns true if the watch may leave its stream upstream and join a scope.
    pub fn can_join(&self) -> bool {
        self.is_direct() && self.is_created && !self.is_canceled
    }

    /// Notes that the scope has lost its contents, and that its events up to `delivered` were
    /// taken.
    pub fn set_detached(&mut self, delivered: i64) {
        if let Source::Scope { is_lagging: false, .. } = self.source {
            self.next = self.next.max(delivered + 1);
        }
    }

    /// Notes that a member of this revision has created the watch.
    pub fn set_answered(&mut self, revision: i64) {
        if let Source::Direct { is_answered, .. } = &mut self.source {
            *is_answered = true;
        }
        if self.next == 0 {
            self.next = revision + 1;
        }
    }

    /// Notes that the member has sent all events up to this revision, of all watches up to this ID
    /// upstream. It had created these watches when progress was requested.
    pub fn upstream_reached(&mut self, revision: i64, newest_id: i64) {
        if let Source::Direct { upstream_id, is_answered: true } = self.source
            && upstream_id <= newest_id
        {
            self.next = self.next.max(revision + 1);
        }
    }

    /// Notes that the stream upstream was lost. The IDs of the next stream are not about this
    /// watch until it is created there.
    pub fn set_lost(&mut self) {
        if self.is_direct() {
            self.source = Source::direct(0);
        }
    }

    /// Notes that the events of a response upstream are sent to the client.
    pub fn take_upstream(&mut self, response: &WatchResponse) {
        self.is_active = true;
        self.is_in_fragments = response.fragment;
        if let Some(last) = response.events.last().and_then(|event| event.kv.as_ref())
            && !response.fragment
        {
            self.next = self.next.max(last.mod_revision + 1);
        }
    }

    /// Returns true if all events up to this revision were sent when the session's queue is empty.
    /// Check the queue after this call.
    pub fn has_sent(&self, revision: i64) -> bool {
        let is_synced_at = match &self.source {
            Source::Scope { scope, is_lagging: false, .. } => scope.revision(),
            _ => 0,
        };
        self.next > revision || is_synced_at >= revision
    }

    /// Returns the request that continues the watch upstream.
    pub fn continuation(&self) -> WatchCreateRequest {
        WatchCreateRequest { start_revision: self.next, ..self.create.clone() }
    }

    /// Connects the watch with a scope. Returns the events that it has missed, and the header of
    /// the response to its creation. Returns `None` if the history does not go back far enough.
    /// `seen` is the newest revision that a client of this proxy has seen in this epoch.
    pub fn attach(
        &mut self,
        number: u64,
        scope: &Arc<Scope>,
        queue: &Arc<SessionQueue>,
        epoch: u64,
        seen: i64,
        bytes_max: usize,
    ) -> Option<(Vec<Found>, ResponseHeader)> {
        let state = scope.published()?;
        let mut header = state.header;
        let mut next = self.next;
        if next == 0 {
            // The client may have seen a newer revision than the scope has, also from this proxy.
            header.revision = header.revision.max(seen);
            next = header.revision + 1;
        }
        let handle = Arc::new(ScopeWatcher {
            number,
            keys: self.keys.clone(),
            queue: Arc::clone(queue),
            first_revision: next,
            needs_previous: self.create.prev_kv,
            epoch,
        });
        let (found, is_lagging) = match scope.catch_up(&handle, next, bytes_max) {
            CatchUp::NotHere => return None,
            CatchUp::Events(found, next) => {
                self.next = next;
                (found, true)
            }
            CatchUp::Synced(found, revision) => {
                self.next = next.max(revision + 1);
                (found, false)
            }
        };
        self.source = Source::Scope { scope: Arc::clone(scope), handle, is_lagging };
        Some((found, header))
    }

    /// Notes that the session's queue was full at this revision.
    pub fn set_lagging(&mut self, from: i64) {
        if let Source::Scope { is_lagging, .. } = &mut self.source {
            *is_lagging = true;
            self.next = self.next.max(from);
        }
    }

    /// Reads events that a lagging watch has missed. Returns `None` if the history does not have
    /// them, so that the watch must continue upstream.
    pub fn catch_up(&mut self, bytes_max: usize) -> Option<Vec<Found>> {
        let Source::Scope { scope, handle, is_lagging } = &mut self.source else {
            return Some(Vec::new());
        };
        match scope.catch_up(handle, self.next, bytes_max) {
            CatchUp::NotHere => None,
            CatchUp::Events(found, next) => {
                self.next = next;
                Some(found)
            }
            CatchUp::Synced(found, _) => {
                *is_lagging = false;
                Some(found)
            }
        }
    }

    /// Takes events from the queue. Returns the events that the client wants.
    pub fn take(&mut self, events: &RevisionEvents, picks: &[u32]) -> Vec<Event> {
        if events.revision < self.next {
            return Vec::new();
        }
        self.next = events.revision + 1;
        let wanted = self.wanted(events, picks);
        self.is_active |= !wanted.is_empty();
        wanted
    }

    /// Takes events that `attach` or `catch_up` has returned. Returns the events that the client
    /// wants.
    pub fn take_missed(&mut self, events: &RevisionEvents, picks: &[u32]) -> Vec<Event> {
        self.next = self.next.min(events.revision);
        self.take(events, picks)
    }

    /// Returns the picked events that the client wants.
    fn wanted(&self, events: &RevisionEvents, picks: &[u32]) -> Vec<Event> {
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
