//! Where do the figures come together? The registry that every lock is created with.
//!
//! A registry is what one member (or one bench) looks at: it knows the figures by name and the
//! locks that are alive. There is no global one, so two members in one process, or two benches,
//! do not see each other's figures.

use std::sync::{Arc, Weak};

use crate::{
    Actor, LockReport, Mode, Recorder, Stance,
    door::Door,
    events::Studio,
    figures::Figures,
    gate::{self, Party},
    now_ns,
};

/// The figures of all locks created with it. A clone is the same registry.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    book: Arc<parking_lot::Mutex<Book>>,
    studio: Arc<Studio>,
}

/// One who holds a lock right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The lock.
    pub lock: &'static str,
    /// Who holds it.
    pub holder: Actor,
    /// To do what.
    pub mode: Mode,
    /// Since when, on the clock of [`crate::now_ns`].
    pub since_ns: u64,
}

/// One who waits for a lock right now, and behind whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The lock.
    pub lock: &'static str,
    /// Who waits.
    pub waiter: Actor,
    /// To do what.
    pub mode: Mode,
    /// Since when, on the clock of [`crate::now_ns`].
    pub since_ns: u64,
    /// Who stands in front.
    pub holder: Actor,
    /// To do what.
    pub holder_mode: Mode,
    /// Whether that one holds the lock or is itself a writer that waits.
    pub stance: Stance,
}

/// What a registry knows.
#[derive(Debug, Default)]
struct Book {
    /// One entry per name, in the order in which the names were first used.
    figures: Vec<Arc<Figures>>,
    /// The locks that are alive, and some that are not.
    doors: Vec<Weak<Door>>,
    /// Dead locks are swept out when there are this many entries.
    sweep_at: usize,
}

impl Registry {
    /// A registry without locks.
    pub fn new() -> Registry {
        Registry::default()
    }

    /// The figures so far: one report per name, in the order in which the names were first used.
    /// Locks of the same name are reported together; locks that were dropped are included.
    pub fn report(&self) -> Vec<LockReport> {
        let (figures, doors) = self.all();
        let now_ns = now_ns();
        let report = |figures: &Arc<Figures>| {
            let same_name = doors.iter().filter(|door| Arc::ptr_eq(&door.figures, figures));
            let inside: Vec<Party> = same_name.flat_map(|door| door.inside()).collect();
            figures.report(&inside, now_ns)
        };
        figures.iter().map(report).collect()
    }

    /// Starts all figures anew. A hold or wait that ends afterwards counts in full, even if it
    /// began before.
    pub fn reset(&self) {
        let (figures, _) = self.all();
        figures.iter().for_each(|figures| figures.reset());
    }

    /// Who holds a lock right now.
    pub fn holding(&self) -> Vec<Holding> {
        let (_, doors) = self.all();
        doors.iter().flat_map(|door| holding(door)).collect()
    }

    /// Who waits for a lock right now, and behind whom. A thread whose way is already free and that
    /// is only not awake yet is not listed: it waits for a processor.
    pub fn waiting(&self) -> Vec<Waiting> {
        let (_, doors) = self.all();
        doors.iter().flat_map(|door| waiting(door)).collect()
    }

    /// Records the next `capacity` events of all locks of this registry, until the recorder is
    /// stopped or dropped. One recording goes on at a time: an earlier one gets no further events.
    #[must_use = "recording ends when the recorder is dropped"]
    pub fn record(&self, capacity: usize) -> Recorder {
        self.studio.record(capacity)
    }

    /// Enters a new lock into the book.
    pub(crate) fn door(&self, name: &'static str) -> Arc<Door> {
        let mut book = self.book.lock();
        let door = Arc::new(Door::new(book.figures_of(name), Arc::clone(&self.studio)));
        book.enter(&door);
        door
    }

    /// What there is, copied out: asking a door takes its inner lock, which must not happen under
    /// the lock of the book.
    fn all(&self) -> (Vec<Arc<Figures>>, Vec<Arc<Door>>) {
        let book = self.book.lock();
        let doors = book.doors.iter().filter_map(Weak::upgrade).collect();
        (book.figures.clone(), doors)
    }
}

impl Book {
    fn figures_of(&mut self, name: &'static str) -> Arc<Figures> {
        if let Some(figures) = self.figures.iter().find(|figures| figures.name == name) {
            return Arc::clone(figures);
        }
        let figures = Arc::new(Figures::new(name));
        self.figures.push(Arc::clone(&figures));
        figures
    }

    /// Sweeps at twice the number that was alive at the last sweep: constant cost per lock.
    fn enter(&mut self, door: &Arc<Door>) {
        if self.doors.len() >= self.sweep_at {
            self.doors.retain(|door| door.strong_count() > 0);
            self.sweep_at = 2 * self.doors.len() + 16;
        }
        self.doors.push(Arc::downgrade(door));
    }
}

pub(crate) fn holding(door: &Door) -> Vec<Holding> {
    let lock = door.figures.name;
    let to_holding = |party: Party| {
        let Party { actor: holder, mode, since_ns, .. } = party;
        Holding { lock, holder, mode, since_ns }
    };
    door.inside().into_iter().map(to_holding).collect()
}

pub(crate) fn waiting(door: &Door) -> Vec<Waiting> {
    let lock = door.figures.name;
    let to_waiting = |waiting: gate::Waiting| {
        let Party { actor: waiter, mode, since_ns, .. } = waiting.waiter;
        waiting.front.map(|front| Waiting {
            lock,
            waiter,
            mode,
            since_ns,
            holder: front.actor,
            holder_mode: front.mode,
            stance: front.stance,
        })
    };
    door.waiting().into_iter().filter_map(to_waiting).collect()
}
