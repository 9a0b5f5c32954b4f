//! Two locks and three requests, by hand, to the nanosecond.

use std::cell::RefCell;
use std::rc::Rc;

use clearlane_locks::Actor;
use clearlane_locks::gate::{Mode, Stance};
use clearlane_simulator::account::{Account, Spent};
use clearlane_simulator::{Cores, Lock, Trip, World};

/// ```text
///   us          0   10   20 ...  100   110   115   120
///   expensive   ├── index, readTx ─┤                      reads in both for 100
///   put             ░░░░░░░░░░░░░░├─────┼─────┤           writes: 10 in index, then 5 in readTx
///   cheap                ░░░░░░░░░░░░░░░░ ░░░░░├─────┤    reads in both for 5
/// ```
///
/// The cheap read could share `index` with the expensive one, but the put waits before it and turns it away.
/// When the put leaves `index` it takes `readTx` in the same moment, before the cheap read is awake: that one
/// waits a second time.
#[test]
fn a_small_convoy_by_hand() {
    let world = World::new();
    let cores = Cores::new(&world, 8, u64::MAX);
    let (index, read_tx) = (Lock::new(&world, "index"), Lock::new(&world, "readTx"));
    let ends = Rc::new(RefCell::new(Vec::<(&str, u64, Account)>::new()));
    let at = |us: u64, name: &'static str| {
        let parts = (world.clone(), cores.clone(), index.clone(), read_tx.clone());
        (us * 1000, name, parts, Rc::clone(&ends))
    };
    for (begin_ns, name, (world_, cores, index, read_tx), ends) in
        [at(0, "expensive"), at(10, "put"), at(20, "cheap")]
    {
        world.spawn(async move {
            world_.sleep(begin_ns).await;
            let mut trip = Trip::new(&world_, &cores, Actor::named(name));
            match name {
                "put" => {
                    let alone = trip.write(&index).await;
                    trip.run(10_000).await;
                    drop(alone);
                    let alone = trip.write(&read_tx).await;
                    trip.run(5_000).await;
                    drop(alone);
                }
                name => {
                    let shared = (trip.read(&index).await, trip.read(&read_tx).await);
                    trip.run(if name == "cheap" { 5_000 } else { 100_000 }).await;
                    drop(shared);
                }
            }
            let (_, account) = trip.end();
            ends.borrow_mut().push((name, world_.now_ns(), account));
        });
    }
    world.run(u64::MAX);
    let account = |entries: &[(Spent, u64)]| {
        let mut account = Account::default();
        entries.iter().for_each(|(kind, ns)| account[*kind] = *ns);
        account
    };
    let running = Spent::RUNNING;
    let [waits_index, waits_read_tx] = ["index", "readTx"].map(|name| Spent::named(&world, name));
    let mut found = ends.take();
    found.sort_by_key(|(name, ..)| *name);
    assert_eq!(
        found,
        [
            (
                "cheap",
                120_000,
                account(&[(running, 5_000), (waits_index, 90_000), (waits_read_tx, 5_000)])
            ),
            ("expensive", 100_000, account(&[(running, 100_000)])),
            ("put", 115_000, account(&[(running, 15_000), (waits_index, 90_000)])),
        ]
    );
    let [cheap, expensive, put] = ["cheap", "expensive", "put"].map(Actor::named);
    let blame = index.figures().blame;
    let waited = |who, mode, behind, stance| blame.get(&(who, mode, behind, stance)).map(|b| b.ns);
    assert_eq!(waited(put, Mode::Write, expensive, Stance::Holding), Some(90_000));
    assert_eq!(waited(cheap, Mode::Read, put, Stance::Waiting), Some(80_000));
    assert_eq!(waited(cheap, Mode::Read, put, Stance::Holding), Some(10_000));
    assert_eq!(index.longest_hold().map(|hold| (hold.actor, hold.ns)), Some((expensive, 100_000)));
}
