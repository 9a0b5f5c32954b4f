//! Runs the scripts about the order of acquisition on a simulated lock. The real locks run the same
//! scripts on threads.

use std::collections::BTreeMap;
use std::path::Path;

use crate::script::{Holds, Script, Stage, Waits};
use clearlane_contention::{LockMode, TaskLabel};
use clearlane_simulator::lock::{Blame, BlameKey};
use clearlane_simulator::{Lock, Signal, World};

/// A simulated lock, with a process for each actor that holds the lock or waits for it.
struct OnSimulated {
    world: World,
    lock: Lock,
    releases: BTreeMap<TaskLabel, Signal>,
}

impl OnSimulated {
    fn new() -> OnSimulated {
        let world = World::new();
        let lock = Lock::new(&world, "lock");
        OnSimulated { world, lock, releases: BTreeMap::new() }
    }

    /// Advances the time by one tick. A woken process continues in this tick.
    fn tick(&self) {
        self.world.run(self.world.now_ns() + 1);
    }
}

impl Stage for OnSimulated {
    fn ask(&mut self, actor: TaskLabel, mode: LockMode) {
        let (lock, release) = (self.lock.clone(), Signal::new(&self.world));
        self.releases.insert(actor, release.clone());
        self.world.spawn(async move {
            let inside = lock.acquire(actor, mode).await;
            release.wait().await;
            drop(inside);
        });
        self.tick();
    }

    fn release(&mut self, actor: TaskLabel) {
        self.releases.remove(&actor).expect("it holds").set();
        self.tick();
    }

    fn holds(&self) -> Vec<Holds> {
        let to_line = |party: &clearlane_contention::rules::Acquisition| {
            let (actor, mode) = (party.task, party.mode);
            Holds { actor, mode }
        };
        self.lock.with_state(|state| state.holders().map(to_line).collect())
    }

    fn waits(&self) -> Vec<Waits> {
        self.lock.with_state(|state| {
            let waits = state.waiters().map(|waiting| {
                let front = waiting.blocker.expect("waking takes no time here");
                let (actor, mode) = (waiting.waiter.task, waiting.waiter.mode);
                Waits { actor, mode, front: front.task, stance: front.state }
            });
            waits.collect()
        })
    }

    fn blame(&self) -> Vec<(Waits, u64)> {
        let to_line = |((actor, mode, front, stance), blame): (BlameKey, Blame)| {
            (Waits { actor, mode, front, stance }, blame.intervals)
        };
        self.lock.accounting().blame.into_iter().map(to_line).collect()
    }
}

#[test]
fn a_simulated_lock_keeps_the_order_of_the_real_one() {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/contention/tests/scripts");
    let mut scripts = 0;
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it can be listed").path();
        goldenscript::run(&mut Script(OnSimulated::new()), &path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        scripts += 1;
    }
    assert!(scripts > 0, "no scripts found");
}
