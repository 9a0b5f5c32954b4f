//! Two locks and three requests. The expected times are calculated by hand, to the nanosecond.

use std::cell::RefCell;
use std::rc::Rc;

use clearlane_contention::TaskLabel;
use clearlane_contention::rules::{BlockerState, LockMode};
use clearlane_simulator::account::{Account, TimeKind};
use clearlane_simulator::lock::{Hold, LockAccounting};
use clearlane_simulator::{Cores, Lock, SimTask, World};

/// ```text
///   us          0   10   20 ...  100   110   115   120
///   expensive   ├── index, readTx ─┤                      reads in both for 100
///   put             ░░░░░░░░░░░░░░├─────┼─────┤           writes: 10 in index, then 5 in readTx
///   cheap                ░░░░░░░░░░░░░░░░ ░░░░░├─────┤    reads in both for 5
/// ```
///
/// The cheap read could share `index` with the expensive read. But the put already waits for
/// `index`, so the cheap read must wait until the put releases `index`. When the put releases
/// `index`, it takes `readTx` at the same time, before the cheap read is awake. So the cheap read
/// waits a second time, for `readTx`.
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
            let mut task = SimTask::new(&world_, &cores, TaskLabel::named(name));
            match name {
                "put" => {
                    let alone = task.write(&index).await;
                    task.run(10_000).await;
                    drop(alone);
                    let alone = task.write(&read_tx).await;
                    task.run(5_000).await;
                    drop(alone);
                }
                name => {
                    let shared = (task.read(&index).await, task.read(&read_tx).await);
                    task.run(if name == "cheap" { 5_000 } else { 100_000 }).await;
                    drop(shared);
                }
            }
            let (_, account) = task.end();
            ends.borrow_mut().push((name, world_.now_ns(), account));
        });
    }
    world.run(u64::MAX);
    let account = |entries: &[(TimeKind, u64)]| {
        let mut account = Account::default();
        entries.iter().for_each(|(kind, ns)| account[*kind] = *ns);
        account
    };
    let running = TimeKind::RUNNING;
    let [waits_index, waits_read_tx] =
        ["index", "readTx"].map(|name| TimeKind::named(&world, name));
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
    let [cheap, expensive, put] = ["cheap", "expensive", "put"].map(TaskLabel::named);
    let LockAccounting { blame, longest, .. } = index.accounting();
    let waited =
        |waiter, mode, behind, stance| blame.get(&(waiter, mode, behind, stance)).map(|b| b.ns);
    assert_eq!(waited(put, LockMode::Write, expensive, BlockerState::Holding), Some(90_000));
    assert_eq!(waited(cheap, LockMode::Read, put, BlockerState::Waiting), Some(80_000));
    assert_eq!(waited(cheap, LockMode::Read, put, BlockerState::Holding), Some(10_000));
    assert_eq!(longest, Some(Hold { label: expensive, ns: 100_000 }));
}
