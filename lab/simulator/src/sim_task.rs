//! A task of the model: a request, a job or a worker, with an account of its time. When a request
//! or a job ends, the sum of its account is the elapsed time.
//!
//! The time of a task that waits for a worker is accounted as the worker spends it. If the applier
//! waits 90 ms for `readTx`, then a put that waits for the applier has waited 90 ms for `readTx`.
//!
//! ```text
//!   applier   │ running │ readTx ░░░░░░░░░░░░░░░░░ │ running │
//!   put                     └─ readTx ░░░░░░░░░░░░░┴ running ┘   and not: applier ░░░░░░░░░
//! ```

use std::cell::Cell;
use std::rc::Rc;

use clearlane_contention::{LockMode, TaskLabel};

use crate::account::{Account, TimeKind};
use crate::cores::Cores;
use crate::lock::{Lock, LockGuard};
use crate::recorder::Lane;
use crate::signal::{Places, Signal};
use crate::timeline::{Activity, LaneKind};
use crate::world::World;

/// The name under which accounts list waits for thread hand-overs.
const WAKEUP: &str = "a thread to wake";

#[derive(Debug)]
pub struct SimTask {
    world: World,
    cores: Cores,
    /// The label of the task. The applier has the label of the task whose entry it applies.
    pub(crate) label: TaskLabel,
    begin_ns: u64,
    pub time_account: TimeAccount,
    /// The lane in the timeline, if the task is recorded.
    lane: Option<Lane>,
    /// How long the machine was idle when the task arrived. `None` if it was busy.
    pub(crate) idle_ns: Option<u64>,
    /// If true, the task computes at low priority.
    pub(crate) runs_in_background: bool,
}

/// The account of a running task, for tasks that wait for it. Clones refer to the same account.
#[derive(Clone, Debug)]
pub struct TimeAccount {
    account: Rc<Cell<Account>>,
    lane: Option<Lane>,
}

impl TimeAccount {
    fn add(&self, kind: TimeKind, ns: u64) {
        if ns > 0 {
            let mut account = self.account.get();
            account[kind] += ns;
            self.account.set(account);
        }
    }

    fn add_all(&self, more: Account) {
        let mut account = self.account.get();
        account += more;
        self.account.set(account);
    }

    pub fn account(&self) -> Account {
        self.account.get()
    }
}

impl SimTask {
    /// Creates a worker's task, which starts now.
    pub fn new(world: &World, cores: &Cores, label: TaskLabel) -> SimTask {
        SimTask::with_kind(world, cores, label, LaneKind::Work)
    }

    pub fn with_kind(world: &World, cores: &Cores, label: TaskLabel, kind: LaneKind) -> SimTask {
        let begin_ns = world.now_ns();
        let lane = world.recorder().lane(label, kind, begin_ns);
        SimTask {
            world: world.clone(),
            cores: cores.clone(),
            label,
            begin_ns,
            time_account: TimeAccount { account: Rc::default(), lane },
            lane,
            idle_ns: Some(u64::MAX),
            runs_in_background: false,
        }
    }

    /// Records the last step, which took `ns` and ends now.
    fn record(&self, what: impl FnOnce() -> Activity, ns: u64) {
        if let Some(lane) = self.lane {
            let now_ns = self.world.now_ns();
            self.world.recorder().add(lane, what, now_ns - ns, now_ns);
        }
    }

    /// Computes for `ns`. If the task was preempted, the timeline shows all waits before the run.
    pub async fn run(&mut self, ns: u64) {
        let waited_ns = self.cores.compute(ns, self.runs_in_background).await;
        if let Some(lane) = self.lane {
            let ran_from_ns = self.world.now_ns() - ns;
            let recorder = self.world.recorder();
            recorder.add(lane, || Activity::Core, ran_from_ns - waited_ns, ran_from_ns);
        }
        self.record(|| Activity::Run, ns);
        self.time_account.add(TimeKind::RUNNING, ns);
        self.time_account.add(TimeKind::CORE, waited_ns);
    }

    pub async fn read(&mut self, lock: &Lock) -> LockGuard {
        self.lock(lock, LockMode::Read).await
    }

    pub async fn write(&mut self, lock: &Lock) -> LockGuard {
        self.lock(lock, LockMode::Write).await
    }

    async fn lock(&mut self, lock: &Lock, mode: LockMode) -> LockGuard {
        let guard = lock.acquire_as(self.label, mode, self.lane).await;
        self.time_account.add(lock.time_kind(), guard.waited_ns);
        guard
    }

    pub async fn disk(&mut self, ns: u64) {
        self.world.sleep(ns).await;
        self.record(|| Activity::Disk, ns);
        self.time_account.add(TimeKind::DISK, ns);
    }

    /// Waits between two steps of a job.
    pub(crate) async fn pause(&mut self, ns: u64) {
        self.world.sleep(ns).await;
        self.time_account.add(TimeKind::named(&self.world, "a pause"), ns);
    }

    /// Waits for thread hand-overs. On a machine that is awake they take `awake_ns`. On a machine
    /// that sleeps they take up to `wakeups_ns` more. `doze_ns` is the time constant of falling
    /// asleep.
    pub(crate) async fn wait_for_wakeups(&mut self, awake_ns: u64, wakeups_ns: u64, doze_ns: u64) {
        let depth = match self.idle_ns {
            None => 0.0,
            Some(_) if doze_ns == 0 => 1.0,
            Some(idle_ns) => 1.0 - (-(idle_ns as f64) / doze_ns as f64).exp(),
        };
        self.wait_for_threads(awake_ns + (wakeups_ns as f64 * depth) as u64).await;
    }

    /// Waits for thread hand-overs that do not depend on whether the machine is awake.
    pub(crate) async fn wait_for_threads(&mut self, ns: u64) {
        if ns == 0 {
            return;
        }
        self.world.sleep(ns).await;
        self.record(|| Activity::Wait { resource: WAKEUP.to_owned(), blocker: None }, ns);
        self.time_account.add(TimeKind::named(&self.world, WAKEUP), ns);
    }

    /// Waits for a thread of the pool. The timeline shows this wait under `name`.
    pub(crate) async fn wait_for_place(&mut self, places: &Places, name: &'static str) {
        let begin_ns = self.world.now_ns();
        places.take().await;
        let waited_ns = self.world.now_ns() - begin_ns;
        if waited_ns > 0 {
            let what = || Activity::Wait { resource: name.to_owned(), blocker: None };
            self.record(what, waited_ns);
            self.time_account.add(TimeKind::named(&self.world, name), waited_ns);
        }
    }

    pub async fn network(&mut self, ns: u64) {
        self.world.sleep(ns).await;
        self.record(|| Activity::Network, ns);
        self.time_account.add(TimeKind::NETWORK, ns);
    }

    /// Waits until a worker has set the signal. The waiting time is added to this task's account
    /// under the kinds of time that the worker spent it on. Some of the time does not appear in the
    /// worker's account, because the worker's step started earlier or served another task. This
    /// time is attributed to `name`.
    pub async fn wait_for_worker(&mut self, name: TimeKind, worker: &TimeAccount, done: &Signal) {
        let (begin_ns, before) = (self.world.now_ns(), worker.account());
        done.wait().await;
        let spent = worker.account().since(&before);
        self.book_wait(name, worker, spent, begin_ns, self.world.now_ns());
    }

    /// Books a wait from `from_ns` to `to_ns`, during which another task spent `spent`. A step of
    /// that task may have started earlier. Time that is not in `spent` is attributed to `name`.
    pub(crate) fn book_wait(
        &mut self,
        name: TimeKind,
        worker: &TimeAccount,
        mut spent: Account,
        from_ns: u64,
        to_ns: u64,
    ) {
        if from_ns == to_ns {
            return;
        }
        spent.cut_to(to_ns - from_ns);
        spent[name] += to_ns - from_ns - spent.total_ns();
        if let Some(lane) = self.lane {
            let recorder = self.world.recorder();
            let behind = worker.lane.map(|lane| recorder.name(lane));
            let of = name.name(&self.world).to_owned();
            recorder.add(lane, || Activity::Wait { resource: of, blocker: behind }, from_ns, to_ns);
        }
        self.time_account.add_all(spent);
    }

    /// Ends the task. Returns its duration and its account.
    pub fn end(self) -> (u64, Account) {
        let (took_ns, account) = (self.world.now_ns() - self.begin_ns, self.time_account.account());
        debug_assert_eq!(took_ns, account.total_ns(), "all time is accounted for");
        (took_ns, account)
    }
}
