//! What happened when? A recording of a member, to be switched on and off while it runs.
//!
//! # The problem
//!
//! [Stages](crate::stages) say of one slow request where its time went, and the [locks](clearlane_locks) how much
//! waiting there was in all. Neither shows how it came: which expensive read had the lock, which put stood behind
//! it, and who came behind the put. That takes everybody's times on one axis.
//!
//! # The idea
//!
//! Three kinds of notes are taken, each by whoever knows it anyway:
//!
//! | note | by whom | what it costs while nothing is recorded |
//! |---|---|---|
//! | a request, with its stages | who answers it, at its end, from its [card](crate::stages::Card) | one relaxed load when it begins |
//! | a step of a worker | the threads of [`node`](crate::node), by their [`Shift`]s | one relaxed load a step |
//! | a wait for a lock, and a hold | the locks | one relaxed load each |
//!
//! What binds them is a *number*: a request that begins while something is recorded gets one, and whoever takes
//! locks for it takes them [as the one with this number](clearlane_locks::Actor::enter_as). When the recording
//! ends, [`develop`] makes a [timeline](clearlane_timeline) of the notes, in the format of the simulator.
//!
//! ```text
//!   requests ──┐
//!   workers  ──┴▶ fresh ──┐ gather, now and then
//!   locks ──────▶ tape  ──┴▶ film: the newest so many ──▶ develop ──▶ timeline
//! ```
//!
//! # What holds
//!
//! * Memory is bounded: of the film the oldest notes are forgotten, and what comes faster than it is gathered is
//!   lost. Both are counted.
//! * Who takes a note waits for nobody but others who take one.
//!
//! # Left out
//!
//! Holds of less than five microseconds; requests that are cancelled, or that began before the recording; calls other than those of KV; what the
//! network does. A processor that is busy with others shows as running.

pub mod develop;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use clearlane_locks::{Actor, Event, Recorder, Registry, now_ns};
pub use clearlane_timeline::Kind;
use clearlane_timeline::Timeline;
use parking_lot::Mutex;

use crate::stages::Card;

/// Between two gatherings, so many events of locks.
const TAPE_MAX: usize = 32 << 10;
/// And so many other notes.
const FRESH_MAX: usize = 64 << 10;

/// A shorter hold is no note: a read of 20,000 records takes a lock 20,000 times, and would push all else out of
/// the film. Who waited for one has a note of that.
const HOLD_MIN_NS: u64 = 5_000;

/// Records, or does not. See the module documentation.
#[derive(Debug)]
pub struct Recording {
    is_on: AtomicBool,
    /// The last number that was given to a request.
    last: AtomicU32,
    locks: Registry,
    fresh: Mutex<Vec<Note>>,
    film: Mutex<Option<Film>>,
    /// Notes for which there was no room in `fresh`.
    lost: AtomicU64,
}

/// What is kept.
#[derive(Debug)]
struct Film {
    tape: Recorder,
    notes: VecDeque<Note>,
    notes_max: usize,
    begun_ns: u64,
    forgotten: u64,
    lost: u64,
}

/// What somebody has seen.
#[derive(Clone, Copy, Debug)]
pub enum Note {
    /// A request has ended.
    Request {
        /// Which kind of request, as the lane is to be called.
        class: &'static str,
        /// Whether it reads.
        kind: Kind,
        /// What it has carried.
        card: Card,
    },
    /// A worker has done something.
    Step {
        /// Who.
        worker: Actor,
        /// What.
        doing: Doing,
        /// From when, on the clock of the locks.
        from_ns: u64,
        /// Until when.
        to_ns: u64,
    },
    /// Something was going on at a lock.
    Lock(Event),
}

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It waits for something to do: no note is taken.
    Nothing,
    /// It runs.
    Running,
    /// It has a disk do something.
    Disk,
    /// It waits for another worker.
    WaitsFor(Actor),
}

/// What came of a recording.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The newest of it.
    pub timeline: Timeline,
    /// So many older notes there were.
    pub forgotten: u64,
    /// So many came too fast.
    pub lost: u64,
}

impl Recording {
    /// Of a member with these locks. Nothing is recorded yet.
    pub fn new(locks: &Registry) -> Recording {
        Recording {
            is_on: AtomicBool::new(false),
            last: AtomicU32::new(0),
            locks: locks.clone(),
            fresh: Mutex::default(),
            film: Mutex::default(),
            lost: AtomicU64::new(0),
        }
    }

    /// Whether something is recorded now.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Begins, unless it has begun. The newest so many notes are kept, of what is [gathered](Self::gather).
    pub fn start(&self, notes_max: usize) {
        let mut film = self.film.lock();
        if film.is_some() {
            return;
        }
        self.fresh.lock().clear();
        self.lost.store(0, Relaxed);
        let (tape, notes) = (self.locks.record(TAPE_MAX), VecDeque::new());
        let begun_ns = now_ns();
        *film = Some(Film { tape, notes, notes_max, begun_ns, forgotten: 0, lost: 0 });
        self.is_on.store(true, Relaxed);
    }

    /// Takes what is new into the film. To be called every few hundredths of a second while something is
    /// recorded: what does not fit in between is lost.
    pub fn gather(&self) {
        if let Some(film) = &mut *self.film.lock() {
            let fresh = std::mem::take(&mut *self.fresh.lock());
            film.take_in(fresh);
            if film.tape.is_half_full() {
                let full = std::mem::replace(&mut film.tape, self.locks.record(TAPE_MAX));
                film.take_in_tape(full);
            }
        }
    }

    /// Ends, and makes a timeline of what was kept. Nothing comes back if nothing was recorded.
    pub fn stop(&self) -> Option<Recorded> {
        let mut film = {
            let mut film = self.film.lock();
            self.is_on.store(false, Relaxed);
            film.take()?
        };
        film.take_in(std::mem::take(&mut *self.fresh.lock()));
        let tape = std::mem::replace(&mut film.tape, self.locks.record(0));
        film.take_in_tape(tape);
        let lost = film.lost + self.lost.load(Relaxed);
        let timeline = develop::timeline(film.notes.make_contiguous());
        Some(Recorded { timeline, forgotten: film.forgotten, lost })
    }

    /// A number for a request that begins; 0 if nothing is recorded.
    #[inline]
    pub fn number(&self) -> u32 {
        match self.is_on() {
            true => self.last.fetch_add(1, Relaxed).wrapping_add(1).max(1),
            false => 0,
        }
    }

    /// A request has ended that had a number when it began.
    pub fn request(&self, class: &'static str, kind: Kind, card: Card) {
        if card.number() != 0 && self.is_on() {
            self.note(Note::Request { class, kind, card });
        }
    }

    /// For a worker, who says now and then what it has done.
    pub fn shift(&self, worker: Actor) -> Shift<'_> {
        Shift { recording: self, worker, since_ns: 0 }
    }

    fn note(&self, note: Note) {
        let mut fresh = self.fresh.lock();
        match fresh.len() < FRESH_MAX {
            true => fresh.push(note),
            false => _ = self.lost.fetch_add(1, Relaxed),
        }
    }
}

impl Film {
    fn take_in(&mut self, notes: impl IntoIterator<Item = Note>) {
        for note in notes {
            if note.begun_ns() < self.begun_ns {
                continue;
            }
            if self.notes.len() >= self.notes_max {
                self.notes.pop_front();
                self.forgotten += 1;
            }
            self.notes.push_back(note);
        }
    }

    fn take_in_tape(&mut self, tape: Recorder) {
        self.lost += tape.dropped();
        self.take_in(tape.stop().into_iter().filter(is_wanted).map(Note::Lock));
    }
}

fn is_wanted(event: &Event) -> bool {
    match event {
        // Of a wait there is a note as a whole.
        Event::Waited { .. } => false,
        Event::Came { .. } => true,
        Event::Held { start_ns, end_ns, .. } => end_ns.saturating_sub(*start_ns) >= HOLD_MIN_NS,
    }
}

impl Note {
    fn begun_ns(&self) -> u64 {
        match self {
            Note::Request { card, .. } => card.begun_ns(),
            Note::Step { from_ns, .. } => *from_ns,
            Note::Lock(
                Event::Waited { start_ns, .. }
                | Event::Came { start_ns, .. }
                | Event::Held { start_ns, .. },
            ) => *start_ns,
        }
    }
}

/// A worker's time, cut into steps.
#[derive(Debug)]
pub struct Shift<'r> {
    recording: &'r Recording,
    worker: Actor,
    /// When the last step was over; 0 if nothing was recorded then.
    since_ns: u64,
}

impl Shift<'_> {
    /// This is what was done since the last step was over.
    #[inline]
    pub fn over(&mut self, doing: Doing) {
        if !self.recording.is_on() {
            self.since_ns = 0;
            return;
        }
        let (from_ns, to_ns) = (self.since_ns, now_ns());
        self.since_ns = to_ns;
        if from_ns != 0 && doing != Doing::Nothing {
            self.recording.note(Note::Step { worker: self.worker, doing, from_ns, to_ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use clearlane_locks::Mutex;

    use super::*;
    use crate::actors::{GET, LOG};
    use crate::stages::Stage;

    fn request(recording: &Recording) {
        let mut card = Card::begin().numbered(recording.number());
        card.stamp(Stage::Backend);
        recording.request("get", Kind::Read, card);
    }

    /// As long as a hold must be.
    fn hold(lock: &Mutex<()>) {
        let _inside = lock.lock();
        let begin_ns = now_ns();
        while now_ns() < begin_ns + HOLD_MIN_NS {}
    }

    #[test]
    fn nothing_is_recorded_before_and_after() {
        let locks = Registry::new();
        let (recording, lock) = (Recording::new(&locks), Mutex::new(&locks, "lock", ()));
        let mut shift = recording.shift(*LOG);
        let all = |shift: &mut Shift<'_>| {
            request(&recording);
            shift.over(Doing::Disk);
            let _as = GET.enter_as(recording.number());
            hold(&lock);
        };
        all(&mut shift);
        assert!(recording.stop().is_none());
        assert_eq!(recording.number(), 0);
        recording.start(100);
        all(&mut shift);
        // When the step began is not known before something was over.
        shift.over(Doing::Disk);
        let whats = |recorded: &Recorded| {
            let spans = recorded.timeline.spans.iter();
            let mut whats: Vec<_> = spans.map(|span| format!("{:?}", span.what)).collect();
            whats.sort();
            whats
        };
        let recorded = recording.stop().unwrap();
        assert_eq!(whats(&recorded), ["Disk", "Hold { of: \"lock\" }", "Run"]);
        all(&mut shift);
        recording.start(100);
        assert!(recording.stop().unwrap().timeline.spans.is_empty());
    }

    #[test]
    fn short_holds_are_no_notes() {
        let held = |end_ns| Event::Held {
            lock: "lock",
            mode: clearlane_locks::Mode::Write,
            actor: *GET,
            number: 1,
            start_ns: 0,
            end_ns,
        };
        assert!(is_wanted(&held(HOLD_MIN_NS)) && !is_wanted(&held(HOLD_MIN_NS - 1)));
    }

    #[test]
    fn the_newest_are_kept() {
        let locks = Registry::new();
        let (recording, lock) = (Recording::new(&locks), Mutex::new(&locks, "lock", ()));
        recording.start(50);
        let first = recording.last.load(Relaxed);
        for _ in 0..120 {
            request(&recording);
            recording.gather();
        }
        let recorded = recording.stop().unwrap();
        assert_eq!((recorded.forgotten, recorded.lost), (70, 0));
        let lanes = recorded.timeline.lanes();
        let oldest = format!("get #{}", first + 70);
        assert!(lanes.iter().all(|(lane, _)| *lane != oldest), "{lanes:?}");

        // Tapes are exchanged in time, and a film that is not gathered is bounded.
        recording.start(usize::MAX);
        for _ in 0..3 * TAPE_MAX {
            hold(&lock);
            recording.gather();
        }
        (0..FRESH_MAX + 5).for_each(|_| request(&recording));
        let recorded = recording.stop().unwrap();
        assert_eq!((recorded.forgotten, recorded.lost), (0, 5));
        let holds = |span: &&clearlane_timeline::Span| span.lane == "unnamed";
        assert_eq!(recorded.timeline.spans.iter().filter(holds).count(), 3 * TAPE_MAX);
    }
}
