//! From notes to a timeline: who is who, and who stood in front of whom.
//!
//! A lock knows actors and numbers, and a request its number and its class. Only at the end is it known that the
//! reader with number 17 has brought twenty thousand records; so it is called `long range #17` from its beginning
//! on, also where others wait behind it.
//!
//! In front of a wait stands "a range that has the lock". Which one? Of those who had it at that moment the one who
//! came first: that is the one the [gate](clearlane_locks::gate) means. One that has it to this day is in no note,
//! and then the timeline says "range", which is all that is known.
//!
//! ```text
//!   notes                                       timeline
//!   request 17: long range, backend 86 ms       long range #17  ██████████████████
//!   range 17 held readTx                                        ‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗‗
//!   applier waited for readTx behind a range    applier           ░░░░░░░░░░░░░░░░█   behind long range #17
//!   applier ran                                 put #18          ░░░░░░░░░░░░░░░░░░   behind applier
//!   request 18: put, apply 85 ms
//! ```
//!
//! A request notes that it was at work from here to there, and the lock that it waited in between. The time of
//! the wait is taken out of the work, so that a lane does one thing at a time.

use std::collections::HashMap;

use clearlane_locks::{Actor, Event, Stance};
use clearlane_timeline::{Kind, Span, Timeline, What};

use super::{Doing, Note};
use crate::actors::{APPLIER, RAFT, kind_of};
use crate::stages::{Card, Stage};

/// Somebody, as a lock knows them.
type Party = (Actor, u32);

/// Who waits: a request, which may do so under several names, or a worker.
type Waiter = (Option<Actor>, u32);

fn waiter((actor, number): Party) -> Waiter {
    match number {
        0 => (Some(actor), 0),
        number => (None, number),
    }
}

/// Makes a timeline of notes.
pub fn timeline(notes: &[Note]) -> Timeline {
    let known = Known::new(notes);
    let mut spans = Vec::new();
    for note in notes {
        match *note {
            Note::Request { card, .. } => known.request(&card, &mut spans),
            Note::Step { worker, doing, from_ns, to_ns } => {
                known.step(worker, doing, (from_ns, to_ns), &mut spans);
            }
            Note::Lock(event) => spans.extend(known.at_lock(event)),
        }
    }
    spans.sort_by_key(|span| span.to_ns);
    Timeline { spans }
}

/// What all notes together say.
#[derive(Default)]
struct Known {
    /// Requests by their numbers.
    requests: HashMap<u32, (String, Kind)>,
    /// Who was at a lock, or waited there.
    stays: HashMap<(&'static str, Actor, Stance), Stays>,
    /// When somebody waited for locks.
    waits: HashMap<Waiter, Stays>,
}

impl Known {
    fn new(notes: &[Note]) -> Known {
        let mut known = Known::default();
        for note in notes {
            match *note {
                Note::Request { class, kind, card } => {
                    let number = card.number();
                    known.requests.insert(number, (format!("{class} #{number}"), kind));
                }
                Note::Lock(Event::Held { lock, actor, number, start_ns, end_ns, .. }) => {
                    let stays = known.stays.entry((lock, actor, Stance::Holding)).or_default();
                    stays.all.push((start_ns, end_ns, number));
                }
                Note::Lock(Event::Came { lock, actor, number, start_ns, end_ns, .. }) => {
                    let stay = (start_ns, end_ns, number);
                    let stays = known.stays.entry((lock, actor, Stance::Waiting)).or_default();
                    stays.all.push(stay);
                    known.waits.entry(waiter((actor, number))).or_default().all.push(stay);
                }
                _ => {}
            }
        }
        known.stays.values_mut().chain(known.waits.values_mut()).for_each(Stays::sort);
        known
    }

    /// What a lane is called, and what it is there for.
    fn lane(&self, (actor, number): Party) -> (String, Kind) {
        let unknown = || (actor.name().to_owned(), kind_of(actor));
        self.requests.get(&number).cloned().unwrap_or_else(unknown)
    }

    /// The stages of a request follow each other; those in which it may have waited for locks are one.
    fn request(&self, card: &Card, spans: &mut Vec<Span>) {
        let Some((lane, kind)) = self.requests.get(&card.number()) else { return };
        let waits = self.waits.get(&(None, card.number()));
        let mut at_ns = card.begun_ns();
        let mut work_ns = at_ns;
        let mut waited = Vec::new();
        for stage in Stage::ALL {
            let (from_ns, to_ns) = (at_ns, at_ns + card.spent_on(stage));
            at_ns = to_ns;
            let (of, behind) = match stage {
                Stage::ReadIndex => ("a round of reads", Some(RAFT.name().to_owned())),
                Stage::Apply => ("the applier", Some(APPLIER.name().to_owned())),
                Stage::Pool => ("a reader", None),
                Stage::Locks | Stage::Backend | Stage::Sending => continue,
            };
            work_ns = to_ns;
            if from_ns < to_ns {
                let what = What::Wait { of: of.to_owned(), behind };
                waited.push(Span { lane: lane.clone(), kind: *kind, what, from_ns, to_ns });
            }
        }
        spans.append(&mut waited);
        let lane = (lane.as_str(), *kind);
        at_work(lane, &What::Run, (work_ns, at_ns), waits, spans);
    }

    fn step(
        &self,
        worker: Actor,
        doing: Doing,
        (from_ns, to_ns): (u64, u64),
        spans: &mut Vec<Span>,
    ) {
        let what = match doing {
            Doing::Nothing => return,
            Doing::Running => What::Run,
            Doing::Disk => What::Disk,
            Doing::WaitsFor(other) => {
                let name = other.name();
                What::Wait { of: format!("the {name}"), behind: Some(name.to_owned()) }
            }
        };
        let waits = self.waits.get(&waiter((worker, 0)));
        at_work((worker.name(), Kind::Work), &what, (from_ns, to_ns), waits, spans);
    }

    fn at_lock(&self, event: Event) -> Option<Span> {
        let (party, what, from_ns, to_ns) = match event {
            Event::Held { lock, actor, number, start_ns, end_ns, .. } => {
                ((actor, number), What::Hold { of: lock.to_owned() }, start_ns, end_ns)
            }
            Event::Came { lock, actor, number, front, start_ns, end_ns, .. } => {
                let behind = front.map(|(front, stance)| {
                    let stays = self.stays.get(&(lock, front, stance));
                    let number = stays.and_then(|stays| stays.first_at(start_ns)).unwrap_or(0);
                    self.lane((front, number)).0
                });
                let what = What::Wait { of: lock.to_owned(), behind };
                ((actor, number), what, start_ns, end_ns)
            }
            Event::Waited { .. } => return None,
        };
        let is_wait = matches!(what, What::Wait { .. });
        // Of whom nothing else is known, a lane of many would be made.
        let is_nobody = !self.requests.contains_key(&party.1) && kind_of(party.0) != Kind::Work;
        if from_ns >= to_ns || is_wait && is_nobody {
            return None;
        }
        let (lane, kind) = self.lane(party);
        Some(Span { lane, kind, what, from_ns, to_ns })
    }
}

/// What was done from here to there, but for the waits in between.
fn at_work(
    (lane, kind): (&str, Kind),
    what: &What,
    (from_ns, to_ns): (u64, u64),
    waits: Option<&Stays>,
    spans: &mut Vec<Span>,
) {
    let mut done = |from_ns, to_ns| {
        if from_ns < to_ns {
            spans.push(Span { lane: lane.to_owned(), kind, what: what.clone(), from_ns, to_ns });
        }
    };
    let mut at_ns = from_ns;
    for (begin_ns, end_ns, _) in waits.into_iter().flat_map(|waits| waits.within(from_ns, to_ns)) {
        done(at_ns, begin_ns.min(to_ns));
        at_ns = end_ns.max(at_ns);
    }
    done(at_ns, to_ns);
}

/// Times at which somebody was somewhere: from, to, and with which number.
#[derive(Default)]
struct Stays {
    all: Vec<(u64, u64, u32)>,
    /// Up to each of them, the latest end.
    reached_ns: Vec<u64>,
}

impl Stays {
    fn sort(&mut self) {
        self.all.sort_unstable();
        let mut reached_ns = 0;
        for (_, to_ns, _) in &self.all {
            reached_ns = reached_ns.max(*to_ns);
            self.reached_ns.push(reached_ns);
        }
    }

    fn within(&self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = (u64, u64, u32)> {
        let first = self.reached_ns.partition_point(|reached_ns| *reached_ns <= from_ns);
        let stays = self.all[first..].iter().take_while(move |(begin_ns, ..)| *begin_ns < to_ns);
        stays.copied().filter(move |(_, end_ns, _)| *end_ns > from_ns)
    }

    /// Of those who were there at this time, the one who came first.
    fn first_at(&self, at_ns: u64) -> Option<u32> {
        self.within(at_ns, at_ns.saturating_add(1)).next().map(|(.., number)| number)
    }
}

#[cfg(test)]
mod tests {
    use clearlane_locks::Mode;
    use clearlane_timeline::blame;

    use super::*;
    use crate::actors::{GET, LOG, RANGE};

    const MS: u64 = 1_000_000;

    fn request(class: &'static str, kind: Kind, number: u32, times: &[(u64, Stage, u64)]) -> Note {
        let mut card = Card::begin_at(times[0].0 * MS).numbered(number);
        for (_, stage, end) in times {
            card.stamp_at(*stage, end * MS);
        }
        Note::Request { class, kind, card }
    }

    fn held(actor: Actor, number: u32, from: u64, to: u64) -> Note {
        let (start_ns, end_ns) = (from * MS, to * MS);
        Note::Lock(Event::Held {
            lock: "readTx",
            mode: Mode::Read,
            actor,
            number,
            start_ns,
            end_ns,
        })
    }

    fn came(actor: Actor, number: u32, front: (Actor, Stance), from: u64, to: u64) -> Note {
        let (start_ns, end_ns, front) = (from * MS, to * MS, Some(front));
        let mode = Mode::Read;
        Note::Lock(Event::Came { lock: "readTx", mode, actor, number, front, start_ns, end_ns })
    }

    fn step(worker: Actor, doing: Doing, from: u64, to: u64) -> Note {
        Note::Step { worker, doing, from_ns: from * MS, to_ns: to * MS }
    }

    /// A long range; the applier behind it, with a put behind it; a get behind the applier.
    fn convoy() -> Vec<Note> {
        vec![
            held(*RANGE, 9, 0, 90),
            request(
                "long range",
                Kind::Read,
                9,
                &[(0, Stage::Backend, 95), (0, Stage::Sending, 96)],
            ),
            step(*LOG, Doing::Disk, 10, 12),
            step(*APPLIER, Doing::WaitsFor(*LOG), 10, 12),
            came(*APPLIER, 0, (*RANGE, Stance::Holding), 13, 90),
            held(*APPLIER, 0, 90, 91),
            step(*APPLIER, Doing::Running, 12, 93),
            request("put", Kind::Write, 10, &[(10, Stage::Apply, 93), (10, Stage::Sending, 94)]),
            came(*GET, 11, (*APPLIER, Stance::Waiting), 50, 91),
            held(*GET, 11, 91, 92),
            request("get", Kind::Read, 11, &[(45, Stage::ReadIndex, 49), (0, Stage::Backend, 92)]),
            // Of whom nobody knows which one it was.
            came(*GET, 0, (*APPLIER, Stance::Waiting), 60, 91),
        ]
    }

    fn lines(timeline: &Timeline, lane: &str) -> Vec<String> {
        let own = timeline.spans.iter().filter(|span| span.lane == lane);
        own.map(|span| {
            let what = match &span.what {
                What::Wait { of, behind } => {
                    format!("{of} behind {}", behind.as_deref().unwrap_or("?"))
                }
                What::Hold { of } => format!("has {of}"),
                other => format!("{other:?}"),
            };
            format!("{}-{} {what}", span.from_ns / MS, span.to_ns / MS)
        })
        .collect()
    }

    #[test]
    fn a_convoy_is_told_by_its_names() {
        let timeline = timeline(&convoy());
        assert_eq!(lines(&timeline, "long range #9"), ["0-90 has readTx", "0-96 Run"]);
        assert_eq!(
            lines(&timeline, "applier"),
            [
                "10-12 the log behind log",
                "12-13 Run",
                "13-90 readTx behind long range #9",
                "90-91 has readTx",
                "90-93 Run"
            ]
        );
        assert_eq!(lines(&timeline, "put #10"), ["10-93 the applier behind applier", "93-94 Run"]);
        assert_eq!(
            lines(&timeline, "get #11"),
            [
                "45-49 a round of reads behind raft",
                "49-50 Run",
                "50-91 readTx behind applier",
                "91-92 has readTx",
                "91-92 Run"
            ]
        );
        assert!(lines(&timeline, "get").is_empty());
        // What is written is what is read.
        assert_eq!(timeline.to_string().parse(), Ok(timeline));
    }

    #[test]
    fn the_blame_is_the_holders() {
        let blames = blame::of(&timeline(&convoy()));
        let put = blames.iter().find(|blame| blame.class == "put").unwrap();
        let by_range =
            blame::Cause::Wait { of: "readTx".to_owned(), by: Some("long range".to_owned()) };
        assert_eq!(put.causes[0], (by_range, 77 * MS));
        assert!(put.causes.contains(&(blame::Cause::Disk, 2 * MS)), "{put:?}");
        assert_eq!(put.total_ns, 84 * MS);
    }
}
