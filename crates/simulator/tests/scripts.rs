//! The scripts about the order of entry, which the real locks run on threads, on a simulated lock.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../locks/tests/script/mod.rs"]
mod script;

use std::collections::BTreeMap;
use std::path::Path;

use clearlane_locks::{Actor, Mode};
use clearlane_simulator::lock::{Behind, Blame};
use clearlane_simulator::{Lock, Signal, World};
use script::{Holds, Script, Stage, Waits};

/// A lock, and processes at it: one for each actor that has it or wants it.
struct OnSimulated {
    world: World,
    lock: Lock,
    releases: BTreeMap<Actor, Signal>,
}

impl OnSimulated {
    fn new() -> OnSimulated {
        let world = World::new();
        let lock = Lock::new(&world, "lock");
        OnSimulated { world, lock, releases: BTreeMap::new() }
    }

    /// A tick for each command. Whoever is woken goes on in it.
    fn tick(&self) {
        self.world.run(self.world.now_ns() + 1);
    }
}

impl Stage for OnSimulated {
    fn ask(&mut self, actor: Actor, mode: Mode) {
        let (lock, release) = (self.lock.clone(), Signal::new(&self.world));
        self.releases.insert(actor, release.clone());
        self.world.spawn(async move {
            let inside = lock.enter(actor, mode).await;
            release.wait().await;
            drop(inside);
        });
        self.tick();
    }

    fn try_ask(&mut self, actor: Actor, mode: Mode) -> bool {
        let Some(inside) = self.lock.try_enter(actor, mode) else { return false };
        let release = Signal::new(&self.world);
        self.releases.insert(actor, release.clone());
        self.world.spawn(async move {
            release.wait().await;
            drop(inside);
        });
        self.tick();
        true
    }

    fn release(&mut self, actor: Actor) {
        self.releases.remove(&actor).expect("it holds").give();
        self.tick();
    }

    fn holds(&self) -> Vec<Holds> {
        let to_line = |party: &clearlane_locks::gate::Party| {
            let (actor, mode) = (party.actor, party.mode);
            Holds { actor, mode }
        };
        self.lock.look(|gate| gate.inside().map(to_line).collect())
    }

    fn waits(&self) -> Vec<Waits> {
        self.lock.look(|gate| {
            let waits = gate.waiting().map(|waiting| {
                let front = waiting.front.expect("waking takes no time here");
                let (actor, mode) = (waiting.waiter.actor, waiting.waiter.mode);
                Waits { actor, mode, front: front.actor, stance: front.stance }
            });
            waits.collect()
        })
    }

    fn blame(&self) -> Vec<(Waits, u64)> {
        let to_line = |((actor, mode, front, stance), blame): (Behind, Blame)| {
            (Waits { actor, mode, front, stance }, blame.stretches)
        };
        self.lock.figures().blame.into_iter().map(to_line).collect()
    }
}

#[test]
fn a_simulated_lock_keeps_the_order_of_the_real_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../locks/tests/scripts");
    let mut scripts = 0;
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it can be listed").path();
        goldenscript::run(&mut Script(OnSimulated::new()), &path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        scripts += 1;
    }
    assert!(scripts > 0, "no scripts found");
}
