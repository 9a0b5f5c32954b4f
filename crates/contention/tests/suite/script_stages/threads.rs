//! A real lock, with one thread for each actor.
//!
//! After each command the stage waits for a condition, not for a fixed time: every actor without a
//! reply is listed as waiting for another actor. An admitted actor is no longer listed, and its
//! reply follows later. So the condition holds only when nothing is in flight.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use clearlane_contention::{
    LockMode, Registry, RwLock, RwLockReadGuard, RwLockWriteGuard, TaskLabel,
};

use crate::script::{Holds, Stage, Waits};

pub(crate) struct ThreadStage {
    registry: Registry,
    lock: Arc<RwLock<()>>,
    tasks: BTreeMap<TaskLabel, TaskThread>,
    /// Actors that have received a command and have not replied.
    pending: BTreeSet<TaskLabel>,
    replies: Receiver<TaskLabel>,
    reply_to: Sender<TaskLabel>,
}

struct TaskThread {
    commands: Sender<TaskCommand>,
    thread: JoinHandle<()>,
}

enum TaskCommand {
    Ask(LockMode),
    Release,
}

impl ThreadStage {
    pub(crate) fn new() -> ThreadStage {
        let registry = Registry::new();
        let lock = Arc::new(RwLock::new(&registry, "lock", ()));
        let (answer_to, answers) = channel();
        let (players, pending) = Default::default();
        ThreadStage {
            registry,
            lock,
            tasks: players,
            pending,
            replies: answers,
            reply_to: answer_to,
        }
    }

    /// Sends a command to an actor. Returns when the holders and waiters have settled.
    fn run_command(&mut self, actor: TaskLabel, order: TaskCommand) {
        let player = self.tasks.entry(actor).or_insert_with(|| {
            let (lock, answer_to) = (Arc::clone(&self.lock), self.reply_to.clone());
            let (orders, inbox) = channel();
            let thread = thread::spawn(move || run_task(actor, &lock, &inbox, &answer_to));
            TaskThread { commands: orders, thread }
        });
        assert!(self.pending.insert(actor), "{actor} still waits");
        player.commands.send(order).expect("the thread lives");
        self.wait_until_settled();
    }

    fn wait_until_settled(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            while let Ok(actor) = self.replies.try_recv() {
                self.pending.remove(&actor);
            }
            // The waiters are read only after the replies. In the opposite order, the list could
            // name an actor as waiting although a release has admitted it, and the reply to that
            // release could be read afterwards. The condition would then hold too early.
            let waiting: BTreeSet<TaskLabel> =
                self.registry.waiting().iter().map(|waiting| waiting.waiter.task).collect();
            if self.pending.is_subset(&waiting) {
                return;
            }
            assert!(Instant::now() < deadline, "{:?} neither hold nor wait", self.pending);
            thread::yield_now();
        }
    }
}

fn run_task(
    actor: TaskLabel,
    lock: &RwLock<()>,
    inbox: &Receiver<TaskCommand>,
    answer_to: &Sender<TaskLabel>,
) {
    let _as = actor.enter();
    let mut guard = None;
    for order in inbox {
        guard = match order {
            TaskCommand::Ask(LockMode::Read) => Some(Guard::Read(lock.read())),
            TaskCommand::Ask(LockMode::Write) => Some(Guard::Write(lock.write())),
            TaskCommand::Release => {
                drop(guard.take());
                None
            }
        };
        // Sending fails if the script has ended and the stage was dropped.
        let _ = answer_to.send(actor);
    }
}

#[expect(dead_code, reason = "a guard works by being there")]
enum Guard<'a> {
    Read(RwLockReadGuard<'a, ()>),
    Write(RwLockWriteGuard<'a, ()>),
}

impl Stage for ThreadStage {
    fn ask(&mut self, actor: TaskLabel, mode: LockMode) {
        self.run_command(actor, TaskCommand::Ask(mode));
    }

    fn release(&mut self, actor: TaskLabel) {
        self.run_command(actor, TaskCommand::Release);
    }

    fn holds(&self) -> Vec<Holds> {
        let holds = self.registry.holding().into_iter();
        holds.map(|(_, holder)| Holds { actor: holder.task, mode: holder.mode }).collect()
    }

    fn waits(&self) -> Vec<Waits> {
        let waits = self.registry.waiting().into_iter().map(|waiting| Waits {
            actor: waiting.waiter.task,
            mode: waiting.waiter.mode,
            front: waiting.blocker.task,
            stance: waiting.blocker.state,
        });
        waits.collect()
    }

    fn blame(&self) -> Vec<(Waits, u64)> {
        let report = self.registry.report();
        let blame = report[0].blame.iter().map(|blame| {
            let waits = Waits {
                actor: blame.waiter,
                mode: blame.mode,
                front: blame.blocker,
                stance: blame.blocker_state,
            };
            (waits, blame.count)
        });
        blame.collect()
    }
}

impl Drop for ThreadStage {
    /// Ends all threads. A holder releases the lock when its command channel is closed, so every
    /// actor ends.
    fn drop(&mut self) {
        let (orders, threads): (Vec<_>, Vec<_>) = std::mem::take(&mut self.tasks)
            .into_values()
            .map(|player| (player.commands, player.thread))
            .unzip();
        drop(orders);
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}
