//! Where has a slow request spent its time?
//!
//! # The problem
//!
//! "It took 900 ms" is what a client knows by himself. What he asks next is: for what? Nobody can say
//! that afterwards unless it was written down before, for every request, because nobody knows which
//! one is going to be slow.
//!
//! # The idea
//!
//! A request carries a [`Card`], and it is stamped when a stage is over: one reading of the clock, a
//! dozen nanoseconds. All time since the last stamp belongs to the stage that was over; so the
//! stages' times add up to the whole, and nothing is left that belongs to nobody.
//!
//! ```text
//!   begin ──── read index ────┬──── backend ────┬─ sending ─┐
//!              stamp ─────────┘    of that: 7 ms for lock   │
//!                                  "readTx", held by "put"  │
//!                                     stamp ────┘   stamp ──┘
//! ```
//!
//! Waiting for a lock is no stage of its own: it happens inside of one. The [locks](clearlane_locks)
//! know what a thread waited, and for whom. A card that is told to [look at
//! them](Card::stamp_with_locks) takes that time out of the stage, and remembers who stood in front.
//! That must happen on the thread that waited.
//!
//! What is quick throws its card away. Of what was not, [`Card::end`] makes a [`Story`], and
//! [`Story::tell`] a line of the log, in etcd's words, with our stages behind them.
//!
//! # What etcd does that is left out
//!
//! It keeps a trace of named steps for each request, and allocates for it. A card lies on the stack.

use std::fmt;
use std::time::Duration;

use clearlane_locks::{Stance, Wait, now_ns, take_longest_wait, waited_ns};

/// A part of a request's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Until others had confirmed how far the log is committed.
    ReadIndex,
    /// Until this member had applied what it had to: the write itself, or what a read must see.
    Apply,
    /// Until a thread of the pool was free.
    Pool,
    /// Until others let go of locks.
    Locks,
    /// To find the records that are wanted, and to get them.
    Backend,
    /// To hand over the answer.
    Sending,
}

impl Stage {
    /// All of them, in the order in which a read comes through.
    pub const ALL: [Stage; 6] =
        [Stage::ReadIndex, Stage::Apply, Stage::Pool, Stage::Locks, Stage::Backend, Stage::Sending];

    /// What it is called in a log.
    pub fn name(self) -> &'static str {
        match self {
            Stage::ReadIndex => "read index",
            Stage::Apply => "apply",
            Stage::Pool => "pool",
            Stage::Locks => "locks",
            Stage::Backend => "backend",
            Stage::Sending => "sending",
        }
    }
}

/// What a request carries.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// Which request of a [recording](crate::recording); 0 if nothing is recorded.
    number: u32,
    begun_ns: u64,
    stamped_ns: u64,
    spent_ns: [u64; Stage::ALL.len()],
    wait: Option<Wait>,
}

/// What a thread had waited for locks before a stage began.
#[derive(Clone, Copy, Debug)]
pub struct LocksBefore {
    waited_ns: u64,
}

impl LocksBefore {
    /// As it is now, on this thread.
    pub fn now() -> LocksBefore {
        // What waited before was somebody else.
        take_longest_wait();
        LocksBefore { waited_ns: waited_ns() }
    }
}

impl Card {
    /// Begins now.
    pub fn begin() -> Card {
        Card::begin_at(now_ns())
    }

    pub(crate) fn begin_at(now_ns: u64) -> Card {
        let spent_ns = Default::default();
        Card { number: 0, begun_ns: now_ns, stamped_ns: now_ns, spent_ns, wait: None }
    }

    /// The same with a number.
    pub fn numbered(self, number: u32) -> Card {
        Card { number, ..self }
    }

    /// Its number; 0 if it has none.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// When it began, in nanoseconds on the clock of the locks.
    pub fn begun_ns(&self) -> u64 {
        self.begun_ns
    }

    /// How long a stage has taken, in nanoseconds.
    pub fn spent_on(&self, stage: Stage) -> u64 {
        self.spent_ns[stage as usize]
    }

    /// When this much time will have passed since it began, in nanoseconds on the clock of the locks.
    pub fn after(&self, time: Duration) -> u64 {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.begun_ns.saturating_add(time_ns)
    }

    /// A stage is over.
    pub fn stamp(&mut self, over: Stage) {
        self.stamp_at(over, now_ns());
    }

    pub(crate) fn stamp_at(&mut self, over: Stage, now_ns: u64) {
        self.spent_ns[over as usize] += now_ns.saturating_sub(self.stamped_ns);
        self.stamped_ns = now_ns;
    }

    /// What a linearizable read waits for is over: at the end of it this member had to apply for so
    /// long what others had confirmed.
    pub fn stamp_read(&mut self, applying: Duration) {
        self.stamp(Stage::ReadIndex);
        let applying_ns = u64::try_from(applying.as_nanos()).unwrap_or(u64::MAX);
        let moved = applying_ns.min(self.spent_ns[Stage::ReadIndex as usize]);
        self.spent_ns[Stage::ReadIndex as usize] -= moved;
        self.spent_ns[Stage::Apply as usize] += moved;
    }

    /// A stage is over that was begun on this thread, and never left it: what it waited for locks is
    /// counted apart.
    pub fn stamp_with_locks(&mut self, over: Stage, before: LocksBefore) {
        self.stamp(over);
        self.take_locks_out(over, before);
    }

    fn take_locks_out(&mut self, from: Stage, before: LocksBefore) {
        let waited_ns = waited_ns() - before.waited_ns;
        if waited_ns > 0 {
            self.move_to_locks(from, waited_ns, take_longest_wait());
        }
    }

    fn move_to_locks(&mut self, from: Stage, waited_ns: u64, wait: Option<Wait>) {
        // The locks' clock and ours are one, but were not read at the same moments.
        let moved = waited_ns.min(self.spent_ns[from as usize]);
        self.spent_ns[from as usize] -= moved;
        self.spent_ns[Stage::Locks as usize] += moved;
        let longest = |wait: &Option<Wait>| wait.map_or(0, |wait| wait.waited_ns);
        if longest(&wait) > longest(&self.wait) {
            self.wait = wait;
        }
    }

    /// How long it has taken until the last stamp.
    pub fn spent(&self) -> Duration {
        Duration::from_nanos(self.stamped_ns.saturating_sub(self.begun_ns))
    }

    /// Where an entry that took long to apply has spent its time: it began on this thread when `before` was
    /// taken, and is over now.
    pub(crate) fn of_entry(begun_ns: u64, now_ns: u64, before: LocksBefore) -> Story {
        let mut card = Card::begin_at(begun_ns);
        card.stamp_at(Stage::Apply, now_ns);
        card.take_locks_out(Stage::Apply, before);
        Story { card }
    }

    /// The request is over, and was so with its last stamp. If it has taken longer than this, there
    /// is a story to tell.
    pub fn end(&self, limit: Duration) -> Option<Story> {
        (self.spent() > limit).then_some(Story { card: *self })
    }
}

/// Where a slow request has spent its time: prints as `read index 1ms, locks 7ms (readTx, held by
/// put), backend 20ms`.
#[derive(Clone, Copy, Debug)]
pub struct Story {
    card: Card,
}

/// What is known of a request beside its time. Values are not among it: they may be secret.
#[derive(Clone, Copy)]
pub struct About<'a> {
    /// Which call: `/etcdserverpb.KV/Range`.
    pub call: &'a str,
    /// Who asked.
    pub remote: &'a str,
    /// The request, in short.
    pub request: &'a dyn fmt::Display,
    /// So many records were sent.
    pub response_count: i64,
    /// And so many bytes.
    pub response_size: usize,
}

impl fmt::Debug for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}: {}", self.call, self.remote, self.request)
    }
}

impl Story {
    /// Warns that a call has taken long: etcd's `request stats`, past
    /// `--warning-unary-request-duration`.
    pub fn tell(&self, about: &About<'_>) {
        tracing::warn!(
            "time spent" = ?self.card.spent(),
            stages = %self,
            remote = about.remote,
            "response type" = about.call,
            "request content" = %about.request,
            "response count" = about.response_count,
            "response size" = about.response_size,
            "request stats"
        );
    }

    /// Warns that a read has taken long: past `--warning-apply-duration`, which `expected` was. Of
    /// writes the apply loop tells.
    pub fn tell_of_read(&self, prefix: &str, about: &About<'_>, expected: Duration, error: &str) {
        let (count, size) = (about.response_count, about.response_size);
        let response = match error.is_empty() {
            true => format!("range_response_count:{count} size:{size}"),
            false => String::new(),
        };
        tracing::warn!(
            took = ?self.card.spent(),
            "expected-duration" = ?expected,
            prefix,
            request = %about.request,
            response,
            error = (!error.is_empty()).then_some(error),
            stages = %self,
            "apply request took too long"
        );
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gap = "";
        for stage in Stage::ALL {
            let spent_ns = self.card.spent_ns[stage as usize];
            if spent_ns == 0 {
                continue;
            }
            write!(f, "{gap}{} {:?}", stage.name(), Duration::from_nanos(spent_ns))?;
            gap = ", ";
            if let (Stage::Locks, Some(wait)) = (stage, self.card.wait) {
                write_longest(&wait, f)?;
            }
        }
        Ok(())
    }
}

/// The lock of the longest wait, and the holder. A request may also wait behind one that waits for the holder: so does
/// a reader behind a writer.
fn write_longest(wait: &Wait, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, " (longest for {}", wait.lock)?;
    if let Some((actor, Stance::Waiting)) = wait.front {
        write!(f, ", behind {}", actor.name())?;
    }
    if let Some(holder) = wait.holder {
        write!(f, ", held by {}", holder.name())?;
    }
    write!(f, ")")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use clearlane_locks::{Actor, Registry, RwLock};

    use super::*;

    const MS: u64 = 1_000_000;

    fn story(card: &Card) -> String {
        card.end(Duration::ZERO).map(|story| story.to_string()).unwrap_or_default()
    }

    #[test]
    fn all_time_belongs_to_a_stage() {
        let mut card = Card::begin_at(100 * MS);
        card.stamp_at(Stage::ReadIndex, 103 * MS);
        card.stamp_at(Stage::Apply, 103 * MS);
        card.stamp_at(Stage::Backend, 134 * MS);
        let holder = Some(Actor::named("put"));
        let front = holder.map(|holder| (holder, Stance::Holding));
        let wait = Wait { lock: "readTx", waited_ns: 7 * MS, front, holder };
        card.move_to_locks(Stage::Backend, 9 * MS, Some(wait));
        card.stamp_at(Stage::Sending, 135 * MS);
        assert_eq!(
            story(&card),
            "read index 3ms, locks 9ms (longest for readTx, held by put), backend 22ms, sending 1ms"
        );
        assert_eq!(card.spent_ns.iter().sum::<u64>(), 35 * MS);
        assert_eq!(card.spent(), Duration::from_millis(35));
    }

    #[test]
    fn what_is_quick_has_no_story() {
        let mut card = Card::begin_at(0);
        card.stamp_at(Stage::Apply, 300 * MS);
        assert!(card.end(Duration::from_millis(300)).is_none());
        assert!(card.end(Duration::from_millis(299)).is_some());
    }

    #[test]
    fn a_convoy_is_told_from_a_hold() {
        let front = Some((Actor::named("put"), Stance::Waiting));
        let mut card = Card::begin_at(0);
        card.stamp_at(Stage::Backend, 2 * MS);
        let holder = Some(Actor::named("range"));
        let wait = Wait { lock: "readTx", waited_ns: MS, front, holder };
        // More than the stage has cannot be taken out of it.
        card.move_to_locks(Stage::Backend, 3 * MS, Some(wait));
        let told = "locks 2ms (longest for readTx, behind put, held by range)";
        assert_eq!(story(&card), told);
    }

    #[test]
    fn the_locks_of_the_stage_are_asked() {
        let registry = Registry::new();
        let lock = RwLock::new(&registry, "readTx", 0);
        let told = thread::scope(|scope| {
            let held = {
                let _as = Actor::named("expensive_read").enter();
                lock.write()
            };
            let waiting = scope.spawn(|| {
                let _as = Actor::named("get").enter();
                let before = LocksBefore::now();
                let mut card = Card::begin();
                drop(lock.read());
                card.stamp_with_locks(Stage::Backend, before);
                story(&card)
            });
            while registry.waiting().is_empty() {
                thread::yield_now();
            }
            drop(held);
            waiting.join().unwrap()
        });
        assert!(told.contains("(longest for readTx, held by expensive_read)"), "{told}");
    }
}
