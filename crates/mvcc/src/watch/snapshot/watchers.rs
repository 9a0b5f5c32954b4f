//! All watchers, and how each of them stands: what the lock `watchers` guards.
//!
//! Nothing here reads the store or waits for anybody, so the lock is never held for longer than it
//! takes to hand one transaction's events to those who want them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::counted::Counted;
use crate::watch::WatchFigures;
use crate::watch::audience::Audience;
use crate::watch::catch_up::{CatchUp, Step};
use crate::watch::moving::{MovingStream, MovingWatcher};
use crate::watch::response::{Event, NO_WATCHER, Numbers, Response, Says, WatchId, WatchRequest};
use crate::watch::stream::{Open, Outbox, Place};

/// A transaction of which so many events are wanted, counted once per watcher, is not handed on.
const WANTED_MAX: usize = 1 << 20;

#[derive(Debug)]
struct Watcher {
    /// Tells this watcher from a later one with the same place.
    serial: u64,
    request: WatchRequest,
    standing: Standing,
    /// Had nothing to tell since the last notice of progress.
    quiet: bool,
}

/// How a watcher stands to the present.
#[derive(Debug)]
enum Standing {
    /// Is handed what happens from this revision on.
    InStep { from: i64 },
    /// Waits for its turn to read what it has missed.
    Behind(CatchUp),
    /// A thread is reading for it, from this revision on.
    Reading { next: i64 },
}

#[derive(Debug)]
struct Stream {
    outbox: Arc<Outbox>,
    watchers: BTreeMap<WatchId, Watcher>,
    numbers: Numbers,
    /// Those who are behind and wait for their turn.
    behind: VecDeque<WatchId>,
    /// It is among the streams whose watchers may read.
    ready: bool,
}

/// A turn at reading, taken out for a step without the lock.
#[derive(Debug)]
pub(super) struct Turn {
    place: Place,
    serial: u64,
    pub(super) request: WatchRequest,
    pub(super) catch_up: CatchUp,
}

/// What a write transaction has changed.
struct Transaction<'t> {
    revision: i64,
    events: &'t Arc<[Event]>,
    /// The same with the records before.
    previous: &'t Arc<[Event]>,
}

/// What came of handing transactions on.
#[derive(Debug, Default)]
pub(super) struct HandedOn {
    pub(super) to_wake: ToWake,
    /// Something was too much to hand on, and everybody has to catch up.
    pub(super) lost: bool,
}

/// Everybody.
#[derive(Debug)]
pub(super) struct Watchers {
    streams: BTreeMap<u64, Stream>,
    in_step: Audience<Place>,
    /// Streams with watchers that are behind, and with room.
    ready: VecDeque<u64>,
    /// Everything up to here was handed on, or was never wanted.
    handed_on: i64,
    /// Streams that wait for a word on their progress, by the store's revision when they asked.
    asking: BTreeSet<(i64, u64)>,
    made: u64,
    count: usize,
    /// How many of them are not in step.
    behind: usize,
    /// Those who ask for the record before each change, in step or not.
    want_previous: Audience<Place>,
}

/// The outboxes that were empty and are not any more.
pub(super) type ToWake = Vec<Arc<Outbox>>;

impl Watchers {
    pub(super) fn new(revision: i64) -> Watchers {
        Watchers {
            streams: BTreeMap::new(),
            in_step: Audience::default(),
            ready: VecDeque::new(),
            handed_on: revision,
            asking: BTreeSet::new(),
            made: 0,
            count: 0,
            behind: 0,
            want_previous: Audience::default(),
        }
    }

    pub(super) fn open(&mut self, make: impl FnOnce(u64) -> Outbox) -> Arc<Outbox> {
        self.made += 1;
        let outbox = Arc::new(make(self.made));
        let stream = Stream {
            outbox: Arc::clone(&outbox),
            watchers: BTreeMap::new(),
            numbers: Numbers::default(),
            behind: VecDeque::new(),
            ready: false,
        };
        self.streams.insert(self.made, stream);
        outbox
    }

    pub(super) fn close(&mut self, stream: u64) {
        let Some(closed) = self.streams.remove(&stream) else { return };
        for (id, watcher) in closed.watchers {
            self.forget(Place { stream, id }, &watcher);
        }
    }

    /// Takes everybody out. Whoever reads for somebody who was here finds him gone.
    pub(super) fn leave(&mut self) -> Vec<MovingStream> {
        let gone = std::mem::replace(self, Watchers::new(self.handed_on));
        (self.made, self.handed_on) = (gone.made, gone.handed_on);
        let leave = |of: Stream| MovingStream {
            watchers: of
                .watchers
                .into_iter()
                .map(|(id, it)| it.leave(id, gone.handed_on))
                .collect(),
            outbox: of.outbox,
            numbers: of.numbers,
        };
        gone.streams.into_values().map(leave).collect()
    }

    /// Takes somebody in, at the revision `now` up to which nothing will be handed on.
    pub(super) fn adopt(&mut self, moving: MovingStream, now: i64) {
        let MovingStream { outbox, numbers, watchers } = moving;
        let number = outbox.stream;
        self.made = self.made.max(number);
        let none = BTreeMap::new();
        let mut stream =
            Stream { outbox, numbers, watchers: none, behind: VecDeque::new(), ready: false };
        for MovingWatcher { id, request, next, quiet } in watchers {
            let place = Place { stream: number, id };
            let in_step = next > now;
            let standing = if in_step {
                self.in_step.insert(&request.keys, place);
                Standing::InStep { from: next }
            } else {
                stream.behind.push_back(id);
                Standing::Behind(CatchUp::from(next))
            };
            self.made += 1;
            self.count += 1;
            self.behind += usize::from(!in_step);
            if request.previous {
                self.want_previous.insert(&request.keys, place);
            }
            stream.watchers.insert(id, Watcher { serial: self.made, request, standing, quiet });
        }
        let was_there = self.streams.insert(number, stream).is_some();
        assert!(!was_there, "stream {number} came to a hub that has its own");
        self.make_ready(number);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Which of a transaction's events are wanted with the record before them. Whoever comes later
    /// does not want this transaction; whoever catches up meanwhile may.
    pub(super) fn want_previous(&self, events: &[Event]) -> Vec<bool> {
        let wants = |event: &Event| self.want_previous.listens_to(event.key());
        events.iter().map(wants).collect()
    }

    /// Nobody was there to hand on to: whatever was published up to here was not kept.
    pub(super) fn skip_to(&mut self, revision: i64) {
        self.handed_on = self.handed_on.max(revision);
    }

    /// Makes a watcher, or refuses. `now` is a revision that the store has reached, and not below
    /// any that was handed on. Says whether there is something to catch up with.
    pub(super) fn watch(&mut self, stream: u64, request: WatchRequest, now: i64) -> bool {
        let Some(of) = self.streams.get_mut(&stream) else { return false };
        if let Some(refusal) = request.refusal(|id| of.watchers.contains_key(&id)) {
            of.outbox.answer(NO_WATCHER, now, Says::Refused(refusal));
            return false;
        }
        let id = of.numbers.give(request.id, |id| of.watchers.contains_key(&id));
        let place = Place { stream, id };
        let in_step = request.start == 0 || request.start > now;
        let standing = if in_step {
            self.in_step.insert(&request.keys, place);
            Standing::InStep { from: request.start.max(now + 1) }
        } else {
            of.behind.push_back(id);
            Standing::Behind(CatchUp::from(request.start))
        };
        self.made += 1;
        self.count += 1;
        self.behind += usize::from(!in_step);
        if request.previous {
            self.want_previous.insert(&request.keys, place);
        }
        let watcher = Watcher { serial: self.made, request, standing, quiet: true };
        of.watchers.insert(id, watcher);
        of.outbox.answer(id, now, Says::Created);
        if !in_step {
            self.make_ready(stream);
        }
        !in_step
    }

    pub(super) fn cancel(&mut self, stream: u64, id: WatchId, now: i64) {
        if self.remove(Place { stream, id })
            && let Some(of) = self.streams.get(&stream)
        {
            of.outbox.answer(id, now, Says::Canceled);
        }
    }

    fn remove(&mut self, place: Place) -> bool {
        let of = self.streams.get_mut(&place.stream);
        let Some(watcher) = of.and_then(|of| of.watchers.remove(&place.id)) else { return false };
        self.forget(place, &watcher);
        true
    }

    fn forget(&mut self, place: Place, watcher: &Watcher) {
        match watcher.standing {
            Standing::InStep { .. } => self.in_step.remove(&watcher.request.keys, &place),
            Standing::Behind(_) | Standing::Reading { .. } => self.behind -= 1,
        }
        self.count -= 1;
        if watcher.request.previous {
            self.want_previous.remove(&watcher.request.keys, &place);
        }
    }

    /// Hands a transaction's events to those who want them. `previous` are the same events with
    /// the records before, for those who asked for that. If far too many are wanted, everybody is
    /// sent to the store instead, as [`lose`](Watchers::lose) does.
    pub(super) fn hand_on(
        &mut self,
        revision: i64,
        events: &Arc<[Event]>,
        previous: &Arc<[Event]>,
        handed_on: &mut HandedOn,
    ) {
        if let Some(wanted) = self.wanted(events) {
            let mut counted = Counted::new(events.len());
            for of_stream in wanted.chunk_by(|a, b| a.0.stream == b.0.stream) {
                let transaction = Transaction { revision, events, previous };
                self.hand_to_stream(&transaction, of_stream, &mut counted, &mut handed_on.to_wake);
            }
            self.handed_on = self.handed_on.max(revision);
        } else {
            self.lose(revision);
            handed_on.lost = true;
        }
        handed_on.to_wake.extend(self.tell_progress());
    }

    /// Who may want which events, in the order of streams; nothing if that would be too much.
    fn wanted(&self, events: &[Event]) -> Option<Vec<(Place, u32)>> {
        let mut wanted: Vec<(Place, u32)> = Vec::new();
        for (number, event) in events.iter().enumerate() {
            self.in_step.of(event.key(), &mut |place| wanted.push((*place, number as u32)));
            if wanted.len() > WANTED_MAX {
                return None;
            }
        }
        // The order in which a key finds its watchers is not that of the streams.
        wanted.sort_unstable();
        Some(wanted)
    }

    fn hand_to_stream(
        &mut self,
        transaction: &Transaction<'_>,
        wanted: &[(Place, u32)],
        counted: &mut Counted,
        to_wake: &mut ToWake,
    ) {
        let Some(of) = self.streams.get_mut(&wanted[0].0.stream) else { return };
        let outbox = Arc::clone(&of.outbox);
        counted.clear();
        let (refused, wakes) = outbox.with(|open| {
            let mut refused = Vec::new();
            for group in wanted.chunk_by(|a, b| a.0 == b.0) {
                let place = group[0].0;
                let Some(watcher) = of.watchers.get_mut(&place.id) else { continue };
                if !watcher.hand(open, place.id, transaction, group, counted) {
                    refused.push(place);
                }
            }
            refused
        });
        for place in refused {
            self.fall_behind(place, transaction.revision);
        }
        if wakes {
            to_wake.push(outbox);
        }
    }

    /// A watcher in step is handed nothing any more, from this revision on.
    fn fall_behind(&mut self, place: Place, next: i64) {
        let Some(of) = self.streams.get_mut(&place.stream) else { return };
        let Some(watcher) = of.watchers.get_mut(&place.id) else { return };
        watcher.standing = Standing::Behind(CatchUp::from(next));
        self.behind += 1;
        self.in_step.remove(&watcher.request.keys, &place);
        of.behind.push_back(place.id);
    }

    /// What was published up to a revision is not in the queue any more: everybody in step must
    /// read it in the store.
    pub(super) fn lose(&mut self, up_to: i64) {
        let next = self.handed_on + 1;
        let mut fallen = Vec::new();
        for (stream, of) in &self.streams {
            for (id, watcher) in &of.watchers {
                if let Standing::InStep { from } = watcher.standing
                    && from <= up_to
                {
                    fallen.push((Place { stream: *stream, id: *id }, from.max(next)));
                }
            }
        }
        for (place, next) in fallen {
            self.fall_behind(place, next);
            self.make_ready(place.stream);
        }
        self.handed_on = self.handed_on.max(up_to);
    }

    /// A stream with somebody who is behind may have room now.
    pub(super) fn make_ready(&mut self, stream: u64) {
        if let Some(of) = self.streams.get_mut(&stream)
            && !of.ready
            && !of.behind.is_empty()
        {
            of.ready = true;
            self.ready.push_back(stream);
        }
    }

    /// The next watcher that is behind and has room, to read for it.
    pub(super) fn next_turn(&mut self) -> Option<Turn> {
        while let Some(stream) = self.ready.pop_front() {
            let Some(of) = self.streams.get_mut(&stream) else { continue };
            of.ready = false;
            // Without room the outbox notes that somebody waits, and says when it has some.
            if !of.outbox.with(|open| open.has_room()).0 {
                continue;
            }
            let turn = of.next_turn(stream);
            self.make_ready(stream);
            if turn.is_some() {
                return turn;
            }
        }
        None
    }

    /// Tells what a turn has read; `revision` is the store's. Says whom to wake.
    pub(super) fn end_turn(
        &mut self,
        turn: Turn,
        step: Step,
        revision: i64,
    ) -> Option<Arc<Outbox>> {
        let place = turn.place;
        let of = self.streams.get_mut(&place.stream)?;
        let watcher = of.watchers.get_mut(&place.id).filter(|now| now.serial == turn.serial)?;
        let outbox = Arc::clone(&of.outbox);
        let (events, done) = match step {
            Step::Told { events, done } => (events, done),
            Step::Compacted(compacted) => {
                self.remove(place);
                outbox.answer(place.id, 0, Says::Compacted(compacted));
                self.make_ready(place.stream);
                return Some(outbox);
            }
        };
        let next = turn.catch_up.next();
        if done && next > self.handed_on {
            watcher.standing = Standing::InStep { from: next };
            self.behind -= 1;
            self.in_step.insert(&watcher.request.keys, place);
        } else {
            watcher.standing = Standing::Behind(turn.catch_up);
            of.behind.push_back(place.id);
        }
        let fragment = watcher.request.fragment;
        let wakes = !events.is_empty() && {
            watcher.quiet = false;
            let bytes = events.iter().map(Event::size).sum();
            let says = Says::Events { events: events.into(), fragment };
            let response = Response { id: place.id, revision, says };
            outbox.with(|open| open.tell(response, bytes)).1
        };
        self.make_ready(place.stream);
        wakes.then_some(outbox)
    }

    /// A turn that has come to nothing: it will be tried again.
    pub(super) fn put_back(&mut self, turn: Turn) {
        let Turn { place, serial, catch_up, .. } = turn;
        let Some(of) = self.streams.get_mut(&place.stream) else { return };
        if let Some(watcher) = of.watchers.get_mut(&place.id)
            && watcher.serial == serial
        {
            watcher.standing = Standing::Behind(catch_up);
            of.behind.push_back(place.id);
            self.make_ready(place.stream);
        }
    }

    /// Progress for a whole stream, now or once `now` is handed on.
    pub(super) fn ask_progress(&mut self, stream: u64, now: i64) -> ToWake {
        if self.streams.get(&stream).is_some_and(|of| !of.watchers.is_empty()) {
            self.asking.insert((now, stream));
        }
        self.tell_progress()
    }

    /// Tells those who asked and for whom enough was handed on. Who is behind gets no answer.
    fn tell_progress(&mut self) -> ToWake {
        let mut to_wake = ToWake::new();
        while let Some((asked_at, stream)) = self.asking.first().copied()
            && asked_at <= self.handed_on
        {
            self.asking.pop_first();
            let Some(of) = self.streams.get(&stream) else { continue };
            if of.is_in_step(self.handed_on) {
                of.outbox.answer(NO_WATCHER, self.handed_on, Says::Progress);
                to_wake.push(Arc::clone(&of.outbox));
            }
        }
        to_wake
    }

    /// Notices for those who want them. A client that does not read gets none: nobody has asked,
    /// and they would fill the memory.
    pub(super) fn interval_passed(&mut self, stream: u64) {
        let Some(of) = self.streams.get_mut(&stream) else { return };
        let (watchers, handed_on) = (&mut of.watchers, self.handed_on);
        let _ = of.outbox.with(|open| {
            for (id, watcher) in watchers {
                let wants = watcher.request.progress && watcher.quiet && !open.is_full();
                if let Some(revision) = watcher.told(handed_on).filter(|_| wants) {
                    open.tell(Response { id: *id, revision, says: Says::Progress }, 0);
                }
                watcher.quiet = true;
            }
        });
    }

    pub(super) fn figures(&self) -> WatchFigures {
        WatchFigures {
            streams: self.streams.len(),
            watchers: self.count,
            behind: self.behind,
            queued: 0,
        }
    }
}

impl Stream {
    fn next_turn(&mut self, stream: u64) -> Option<Turn> {
        while let Some(id) = self.behind.pop_front() {
            let Some(watcher) = self.watchers.get_mut(&id) else { continue };
            // One that was canceled and made anew is in the row twice.
            let Standing::Behind(behind) = &watcher.standing else { continue };
            let reading = Standing::Reading { next: behind.next() };
            let standing = std::mem::replace(&mut watcher.standing, reading);
            let Standing::Behind(catch_up) = standing else { unreachable!("looked at above") };
            let (serial, request) = (watcher.serial, watcher.request.clone());
            return Some(Turn { place: Place { stream, id }, serial, request, catch_up });
        }
        None
    }

    fn is_in_step(&self, handed_on: i64) -> bool {
        !self.watchers.is_empty()
            && self.watchers.values().all(|watcher| watcher.told(handed_on).is_some())
    }
}

impl Watcher {
    fn leave(self, id: WatchId, handed_on: i64) -> MovingWatcher {
        let next = match self.standing {
            Standing::InStep { from } => from.max(handed_on + 1),
            Standing::Behind(catch_up) => catch_up.next(),
            Standing::Reading { next } => next,
        };
        MovingWatcher { id, request: self.request, next, quiet: self.quiet }
    }

    /// Up to which revision everything was told, if that is all that was handed on, or even more:
    /// one that has just come or caught up is ahead of what waits in the queue. One that waits for
    /// the future has not even begun.
    fn told(&self, handed_on: i64) -> Option<i64> {
        match self.standing {
            Standing::InStep { from } if self.request.start <= handed_on => {
                Some(handed_on.max(from - 1))
            }
            _ => None,
        }
    }

    /// Tells what of a transaction's events it wants. Says no if there is no room.
    fn hand(
        &mut self,
        open: &mut Open<'_>,
        id: WatchId,
        transaction: &Transaction<'_>,
        wanted: &[(Place, u32)],
        counted: &mut Counted,
    ) -> bool {
        let (request, revision) = (&self.request, transaction.revision);
        let events = if request.previous { transaction.previous } else { transaction.events };
        let started = matches!(self.standing, Standing::InStep { from } if from <= revision);
        let wants = |number: u32| request.wants(events[number as usize].mark());
        let numbers = || wanted.iter().map(|(_, number)| *number).filter(|number| wants(*number));
        let count = numbers().count();
        if !started || count == 0 {
            return true;
        }
        if !open.has_room() {
            return false;
        }
        let mut bytes: usize =
            numbers().map(|number| counted.add(number, &events[number as usize])).sum();
        let events = if count == events.len() {
            Arc::clone(events)
        } else {
            // What the events point to is shared, they themselves are this watcher's own.
            bytes += count * size_of::<Event>();
            numbers().map(|number| events[number as usize].clone()).collect()
        };
        self.quiet = false;
        let says = Says::Events { events, fragment: request.fragment };
        open.tell(Response { id, revision, says }, bytes);
        true
    }
}
