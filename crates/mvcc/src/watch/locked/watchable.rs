//! The watchers of an old era, and how each stands: what etcd's lock `watchable` guards.
//!
//! Three groups, and etcd's names for them:
//!
//! * *synced*: found by the writer, through the interval tree, for each event.
//! * *unsynced*: behind; a round of synchronising reads the records for up to 512 of them at once.
//! * *victims*: their stream was full when they had something to tell. What they had to tell is
//!   kept, and tried again, until there is room. (So a victim keeps its events in memory: a round
//!   delivers up to 1,000 revisions to each watcher.)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::store::Change;
use crate::watch::WatchFigures;
use crate::watch::audience::Audience;
use crate::watch::moving::{MovingStream, MovingWatcher};
use crate::watch::response::{Event, NO_WATCHER, Numbers, Response, Says, WatchId, WatchRequest};
use crate::watch::stream::{Outbox, Place, wake_all};

/// So many watchers are synchronised in one round, as in etcd.
const ROUND_MAX: usize = 512;
/// So many revisions a watcher is told in one round, as in etcd.
const REVISIONS_MAX: usize = 1000;

#[derive(Debug)]
struct Watcher {
    request: WatchRequest,
    /// Nothing below this revision is told any more.
    from: i64,
    synced: bool,
    /// Had nothing to tell since the last notice of progress.
    quiet: bool,
}

#[derive(Debug)]
struct Stream {
    outbox: Arc<Outbox>,
    watchers: BTreeMap<WatchId, Watcher>,
    numbers: Numbers,
}

/// What a victim has to tell, and from where it goes on if that was not all.
#[derive(Debug)]
struct Victim {
    response: Response,
    rest: Option<i64>,
}

impl Victim {
    /// The first revision that it has to tell.
    fn first(self) -> Option<i64> {
        let Says::Events { events, .. } = self.response.says else { return None };
        let (Change::Put(record) | Change::Delete(record)) = &events.first()?.change;
        Some(record.mod_revision)
    }
}

/// All watchers of a store.
#[derive(Debug, Default)]
pub(crate) struct Watchable {
    streams: BTreeMap<u64, Stream>,
    made: u64,
    synced: Audience<Place>,
    unsynced: BTreeSet<Place>,
    victims: BTreeMap<Place, Victim>,
}

/// The outboxes that have got something.
pub(crate) type ToWake = Vec<Arc<Outbox>>;

/// Wakes those who serve the clients.
pub(crate) fn wake(outboxes: &ToWake) {
    wake_all(outboxes);
}

impl Watchable {
    pub(super) fn open(&mut self, make: impl FnOnce(u64) -> Outbox) -> Arc<Outbox> {
        self.made += 1;
        let outbox = Arc::new(make(self.made));
        let (watchers, numbers) = (BTreeMap::new(), Numbers::default());
        let stream = Stream { outbox: Arc::clone(&outbox), watchers, numbers };
        self.streams.insert(self.made, stream);
        outbox
    }

    pub(super) fn close(&mut self, stream: u64) {
        let Some(closed) = self.streams.remove(&stream) else { return };
        for (id, watcher) in closed.watchers {
            self.forget(Place { stream, id }, &watcher.request);
        }
    }

    /// Takes everybody out.
    pub(super) fn leave(&mut self) -> Vec<MovingStream> {
        let gone = std::mem::take(self);
        self.made = gone.made;
        let mut victims = gone.victims;
        let leave = |(stream, of): (u64, Stream)| {
            let watchers = of.watchers.into_iter().map(|(id, watcher)| {
                // What a victim has to tell is in the other store, too.
                let victim = victims.remove(&Place { stream, id });
                let next = victim.and_then(Victim::first).unwrap_or(watcher.from);
                let Watcher { request, quiet, .. } = watcher;
                MovingWatcher { id, request, next, quiet }
            });
            MovingStream { watchers: watchers.collect(), outbox: of.outbox, numbers: of.numbers }
        };
        gone.streams.into_iter().map(leave).collect()
    }

    /// Takes somebody in. `now` is the store's revision.
    pub(super) fn adopt(&mut self, moving: MovingStream, now: i64) {
        let MovingStream { outbox, numbers, watchers } = moving;
        let number = outbox.stream;
        self.made = self.made.max(number);
        let mut stream = Stream { outbox, numbers, watchers: BTreeMap::new() };
        for MovingWatcher { id, request, next: from, quiet } in watchers {
            let (place, synced) = (Place { stream: number, id }, from > now);
            if synced {
                self.synced.insert(&request.keys, place);
            } else {
                self.unsynced.insert(place);
            }
            stream.watchers.insert(id, Watcher { request, from, synced, quiet });
        }
        let was_there = self.streams.insert(number, stream).is_some();
        assert!(!was_there, "stream {number} came to a hub that has its own");
    }

    /// Makes a watcher, or refuses. `now` is the store's revision.
    pub(super) fn watch(&mut self, stream: u64, request: WatchRequest, now: i64) {
        let Some(of) = self.streams.get_mut(&stream) else { return };
        if let Some(refusal) = request.refusal(|id| of.watchers.contains_key(&id)) {
            of.outbox.answer(NO_WATCHER, now, Says::Refused(refusal));
            return;
        }
        let id = of.numbers.give(request.id, |id| of.watchers.contains_key(&id));
        let place = Place { stream, id };
        let synced = request.start == 0 || request.start > now;
        let from = if synced { request.start.max(now + 1) } else { request.start };
        if synced {
            self.synced.insert(&request.keys, place);
        } else {
            self.unsynced.insert(place);
        }
        of.outbox.complete_for(id, request.previous);
        of.watchers.insert(id, Watcher { request, from, synced, quiet: true });
        of.outbox.answer(id, now, Says::Created);
    }

    pub(super) fn cancel(&mut self, stream: u64, id: WatchId, now: i64) {
        let Some(of) = self.streams.get_mut(&stream) else { return };
        let Some(watcher) = of.watchers.remove(&id) else { return };
        of.outbox.answer(id, now, Says::Canceled);
        self.forget(Place { stream, id }, &watcher.request);
    }

    fn forget(&mut self, place: Place, request: &WatchRequest) {
        self.synced.remove(&request.keys, &place);
        self.unsynced.remove(&place);
        self.victims.remove(&place);
    }

    /// Tells the synced watchers what a write transaction has changed, before it ends.
    pub(crate) fn notify(&mut self, revision: i64, changes: &[Change]) -> ToWake {
        let mut wanted: BTreeMap<Place, Vec<Event>> = BTreeMap::new();
        for change in changes {
            let (Change::Put(record) | Change::Delete(record)) = change;
            self.synced.of(&record.key, &mut |place| {
                let event = Event { change: change.clone(), previous: None };
                wanted.entry(*place).or_default().push(event);
            });
        }
        let mut to_wake = ToWake::new();
        for (place, events) in wanted {
            let Some(watcher) = self.watcher(place) else { continue };
            if watcher.from > revision {
                continue;
            }
            watcher.from = revision + 1;
            if self.tell(place, revision, events, None, &mut to_wake) {
                continue;
            }
            let Some(watcher) = self.watcher(place) else { continue };
            watcher.synced = false;
            let keys = watcher.request.keys.clone();
            self.synced.remove(&keys, &place);
        }
        to_wake
    }

    fn watcher(&mut self, place: Place) -> Option<&mut Watcher> {
        self.streams.get_mut(&place.stream)?.watchers.get_mut(&place.id)
    }

    /// Tells what the watcher wants of the events. Without room it becomes a victim, and it is no.
    fn tell(
        &mut self,
        place: Place,
        revision: i64,
        mut events: Vec<Event>,
        rest: Option<i64>,
        to_wake: &mut ToWake,
    ) -> bool {
        let Some(of) = self.streams.get_mut(&place.stream) else { return true };
        let Some(watcher) = of.watchers.get_mut(&place.id) else { return true };
        events.retain(|event| watcher.request.wants(event.mark()));
        if events.is_empty() {
            return true;
        }
        watcher.quiet = false;
        let says = Says::Events { events: events.into(), fragment: watcher.request.fragment };
        let victim = Victim { response: Response { id: place.id, revision, says }, rest };
        match try_tell(&of.outbox, victim) {
            None => {
                to_wake.push(Arc::clone(&of.outbox));
                true
            }
            Some(victim) => {
                self.victims.insert(place, victim);
                false
            }
        }
    }

    /// Tries again to tell what did not find room. `now` is the store's revision.
    pub(super) fn retry_victims(&mut self, now: i64) -> ToWake {
        let mut to_wake = ToWake::new();
        for (place, victim) in std::mem::take(&mut self.victims) {
            let Some(of) = self.streams.get(&place.stream) else { continue };
            let (outbox, rest) = (Arc::clone(&of.outbox), victim.rest);
            match try_tell(&outbox, victim) {
                Some(victim) => drop(self.victims.insert(place, victim)),
                None => {
                    to_wake.push(outbox);
                    self.settle(place, rest, now);
                }
            }
        }
        to_wake
    }

    /// A watcher that has told what it had: synced if nothing has happened meanwhile.
    fn settle(&mut self, place: Place, rest: Option<i64>, now: i64) {
        let Some(watcher) = self.watcher(place) else { return };
        watcher.from = rest.unwrap_or(watcher.from);
        watcher.synced = watcher.from > now;
        let (synced, keys) = (watcher.synced, watcher.request.keys.clone());
        if synced {
            self.unsynced.remove(&place);
            self.synced.insert(&keys, place);
        } else {
            self.unsynced.insert(place);
        }
    }

    /// The first revision that somebody of the next round has missed; none if nobody has. Those
    /// who have missed what is compacted are told so, and are gone.
    pub(super) fn begin_round(&mut self, compacted: i64, to_wake: &mut ToWake) -> Option<Round> {
        let places: Vec<Place> = self.unsynced.iter().take(ROUND_MAX).copied().collect();
        let mut round = Round { places: Vec::new(), from: i64::MAX };
        for place in places {
            let Some(from) = self.watcher(place).map(|watcher| watcher.from) else { continue };
            if from < compacted {
                self.end_compacted(place, compacted, to_wake);
            } else {
                round.from = round.from.min(from);
                round.places.push(place);
            }
        }
        (!round.places.is_empty()).then_some(round)
    }

    fn end_compacted(&mut self, place: Place, compacted: i64, to_wake: &mut ToWake) {
        let Some(of) = self.streams.get_mut(&place.stream) else { return };
        let Some(watcher) = of.watchers.remove(&place.id) else { return };
        of.outbox.answer(place.id, 0, Says::Compacted(compacted));
        to_wake.push(Arc::clone(&of.outbox));
        self.forget(place, &watcher.request);
    }

    /// Hands everything that happened from the round's first revision up to `now` to its watchers.
    pub(super) fn end_round(
        &mut self,
        round: Round,
        events: &[Event],
        now: i64,
        to_wake: &mut ToWake,
    ) {
        for place in round.places {
            let Some(watcher) = self.watcher(place) else { continue };
            let (wanted, rest) = watcher.missed(events);
            watcher.from = now + 1;
            self.unsynced.remove(&place);
            if self.tell(place, now, wanted, rest, to_wake) {
                self.settle(place, rest, now);
            }
        }
    }

    /// Tells a stream how far it is, if all its watchers are synced.
    pub(super) fn request_progress(&mut self, stream: u64, now: i64) {
        let Some(of) = self.streams.get(&stream) else { return };
        let in_step = |watcher: &Watcher| watcher.synced && watcher.request.start <= now;
        if !of.watchers.is_empty() && of.watchers.values().all(in_step) {
            of.outbox.answer(NO_WATCHER, now, Says::Progress);
        }
    }

    pub(super) fn interval_passed(&mut self, stream: u64, now: i64) {
        let Some(of) = self.streams.get_mut(&stream) else { return };
        for (id, watcher) in &mut of.watchers {
            let in_step = watcher.synced && watcher.request.start <= now;
            if watcher.request.progress && watcher.quiet && in_step {
                of.outbox.answer(*id, now, Says::Progress);
            }
            watcher.quiet = true;
        }
    }

    pub(super) fn has_unsynced(&self) -> bool {
        !self.unsynced.is_empty()
    }

    pub(super) fn has_victims(&self) -> bool {
        !self.victims.is_empty()
    }

    pub(super) fn figures(&self) -> WatchFigures {
        WatchFigures {
            streams: self.streams.len(),
            watchers: self.streams.values().map(|of| of.watchers.len()).sum(),
            behind: self.unsynced.len() + self.victims.len(),
            queued: 0,
        }
    }
}

/// Up to 512 watchers that are behind, and the first revision that one of them has missed.
#[derive(Debug)]
pub(super) struct Round {
    places: Vec<Place>,
    pub(super) from: i64,
}

impl Watcher {
    /// What it has missed, up to 1,000 revisions, and the revision to go on from.
    fn missed(&self, events: &[Event]) -> (Vec<Event>, Option<i64>) {
        let (mut missed, mut revisions, mut newest) = (Vec::new(), 0, 0);
        for event in events {
            let (Change::Put(record) | Change::Delete(record)) = &event.change;
            if record.mod_revision < self.from || !self.request.keys.contains(&record.key) {
                continue;
            }
            if record.mod_revision != newest {
                if revisions == REVISIONS_MAX {
                    return (missed, Some(record.mod_revision));
                }
                (revisions, newest) = (revisions + 1, record.mod_revision);
            }
            missed.push(event.clone());
        }
        (missed, None)
    }
}

/// Tells, if there is room; else it comes back.
fn try_tell(outbox: &Outbox, victim: Victim) -> Option<Victim> {
    let told = outbox.with(|open| {
        if !open.has_room() {
            return Some(victim);
        }
        // The bound is the number of responses: their bytes are not looked at.
        open.tell(victim.response, 0);
        None
    });
    told.0
}
