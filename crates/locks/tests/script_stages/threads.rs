//! A real lock, with one thread for each actor.
//!
//! After each command the stage waits for a condition instead of a time: every actor with an
//! unanswered request is listed as waiting behind somebody. An actor that is let in is not listed
//! from that moment on, and its answer is still to come; so the condition holds only when nothing
//! is under way any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use clearlane_locks::{Actor, Mode, Registry, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::script::{Holds, Stage, Waits};

/// A lock, and the threads that act on it.
pub(crate) struct OnThreads {
    registry: Registry,
    lock: Arc<RwLock<()>>,
    players: BTreeMap<Actor, Player>,
    /// Who has been told something and not yet answered.
    pending: BTreeSet<Actor>,
    answers: Receiver<Answer>,
    answer_to: Sender<Answer>,
}

/// A thread that acts as an actor.
struct Player {
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

/// What an actor is told to do.
enum Order {
    Ask(Mode),
    TryAsk(Mode),
    Release,
}

/// An actor did what it was told; whether it holds the lock now.
struct Answer {
    actor: Actor,
    holds: bool,
}

impl OnThreads {
    pub(crate) fn new() -> OnThreads {
        let registry = Registry::new();
        let lock = Arc::new(RwLock::new(&registry, "lock", ()));
        let (answer_to, answers) = channel();
        let (players, pending) = Default::default();
        OnThreads { registry, lock, players, pending, answers, answer_to }
    }

    /// Tells an actor, waits until things have settled, and says whether it holds the lock if it
    /// has answered.
    fn tell(&mut self, actor: Actor, order: Order) -> Option<bool> {
        let player = self.players.entry(actor).or_insert_with(|| {
            let (lock, answer_to) = (Arc::clone(&self.lock), self.answer_to.clone());
            let (orders, inbox) = channel();
            let thread = thread::spawn(move || play(actor, &lock, &inbox, &answer_to));
            Player { orders, thread }
        });
        assert!(self.pending.insert(actor), "{actor} still waits");
        player.orders.send(order).expect("the thread lives");
        self.settle(actor)
    }

    fn settle(&mut self, told: Actor) -> Option<bool> {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut answer = None;
        loop {
            while let Ok(Answer { actor, holds }) = self.answers.try_recv() {
                self.pending.remove(&actor);
                answer = answer.or((actor == told).then_some(holds));
            }
            // Only after the answers: who was let in by an answered release must not be found in an
            // older list.
            let waiting: BTreeSet<Actor> =
                self.lock.waiting().iter().map(|waiting| waiting.waiter).collect();
            if self.pending.is_subset(&waiting) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{:?} neither hold nor wait", self.pending);
            thread::yield_now();
        }
    }
}

/// The life of a player: does what it is told until nobody tells it any more.
fn play(actor: Actor, lock: &RwLock<()>, inbox: &Receiver<Order>, answer_to: &Sender<Answer>) {
    let _as = actor.enter();
    let mut guard = None;
    for order in inbox {
        guard = match order {
            Order::Ask(Mode::Read) => Some(Guard::Read(lock.read())),
            Order::Ask(Mode::Write) => Some(Guard::Write(lock.write())),
            Order::TryAsk(Mode::Read) => lock.try_read().map(Guard::Read),
            Order::TryAsk(Mode::Write) => lock.try_write().map(Guard::Write),
            Order::Release => {
                drop(guard.take());
                None
            }
        };
        // The stage may be gone already: the script has ended.
        let _ = answer_to.send(Answer { actor, holds: guard.is_some() });
    }
}

/// Either guard, kept until the release.
#[expect(dead_code, reason = "a guard works by being there")]
enum Guard<'a> {
    Read(RwLockReadGuard<'a, ()>),
    Write(RwLockWriteGuard<'a, ()>),
}

impl Stage for OnThreads {
    fn ask(&mut self, actor: Actor, mode: Mode) {
        self.tell(actor, Order::Ask(mode));
    }

    fn try_ask(&mut self, actor: Actor, mode: Mode) -> bool {
        self.tell(actor, Order::TryAsk(mode)).expect("trying does not wait")
    }

    fn release(&mut self, actor: Actor) {
        self.tell(actor, Order::Release);
    }

    fn holds(&self) -> Vec<Holds> {
        let holds = self.lock.holding().into_iter();
        holds.map(|holding| Holds { actor: holding.holder, mode: holding.mode }).collect()
    }

    fn waits(&self) -> Vec<Waits> {
        let waits = self.lock.waiting().into_iter().map(|waiting| Waits {
            actor: waiting.waiter,
            mode: waiting.mode,
            front: waiting.holder,
            stance: waiting.stance,
        });
        waits.collect()
    }

    fn blame(&self) -> Vec<(Waits, u64)> {
        let report = self.registry.report();
        let blame = report[0].blame.iter().map(|blame| {
            let waits = Waits {
                actor: blame.waiter,
                mode: blame.mode,
                front: blame.holder,
                stance: blame.stance,
            };
            (waits, blame.count)
        });
        blame.collect()
    }
}

impl Drop for OnThreads {
    /// Whoever holds lets go when it is told nothing more, so everybody comes to an end.
    fn drop(&mut self) {
        let (orders, threads): (Vec<_>, Vec<_>) = std::mem::take(&mut self.players)
            .into_values()
            .map(|player| (player.orders, player.thread))
            .unzip();
        drop(orders);
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}
