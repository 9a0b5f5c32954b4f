//! One member: its machine, its locks, and its workers.
//!
//! Locks have the names of the real code. [`era`](crate::era) defines how an era uses them.
//! [`cluster`](crate::cluster) defines how members work together.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use clearlane_contention::TaskLabel;

use crate::account::{Account, TimeKind};
use crate::costs::Costs;
use crate::entries::{Batch, Entry};
use crate::lock::Lock;
use crate::model::Model;
use crate::scenario::Scenario;
use crate::signal::{Places, Queue, Signal};
use crate::sim_task::{SimTask, TimeAccount};
use crate::spread::Times;
use crate::{Cores, Rng, World};
use clearlane_backend::Era;

#[derive(Clone, Debug)]
pub struct Build {
    pub era: Era,
    pub costs: Costs,
}

impl Build {
    pub fn new(era: Era, costs: Costs) -> Build {
        Build { era, costs }
    }
}

/// The state of one member. The programs of the [eras](crate::era) work on it.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) cores: Cores,
    pub(crate) build: Rc<Build>,
    pub(crate) model: Rc<Model>,
    pub(crate) locks: Locks,
    /// The threads that check passwords without a lock: one for each core.
    pub(crate) password_pool: Places,
    pub(crate) log_syncs: Times,
    pub(crate) commit_syncs: Times,
    /// Time of the thread hand-overs of a request, if the machine is awake.
    pub(crate) awake: Times,
    /// Waits of server and client for each other, per MiB sent.
    pub(crate) sent_waits: Times,
    /// Number of operations that the backend has not committed.
    pub(crate) pending: Cell<u64>,
    /// Number of bytes of the operations that the backend has not committed.
    pub(crate) pending_bytes: Cell<u64>,
    /// Number of changes of the read buffer so far. `copied_version` is this number when the shared
    /// copy was made.
    pub(crate) buffer_version: Cell<u64>,
    pub(crate) copied_version: Cell<Option<u64>>,
    /// Number of revisions written in this run, one for each key of a write. `revisions_compacted`
    /// is this number when the last compaction started.
    pub(crate) revisions: Cell<u64>,
    pub(crate) revisions_compacted: Cell<u64>,
    /// If true, requests can arrive here. Otherwise the work of the applier is not simulated.
    pub(crate) applies: bool,
    /// The worker that appends proposals to the leader's log.
    pub(crate) log: Worker<Rc<Entry>>,
    /// The worker that appends batches from the leader to this member's log. Each batch is queued
    /// with the account of this worker at the time when the batch arrived.
    pub(crate) appends: Worker<(Rc<Batch>, Account)>,
    pub(crate) applier: Worker<Rc<Batch>>,
    pub(crate) reads: Worker<Signal>,
    /// Batches that are in this member's log, but are not yet known to be committed.
    pub(crate) unapplied: RefCell<VecDeque<Rc<Batch>>>,
    pub(crate) committed: Cell<u64>,
    pub(crate) applied: Cell<u64>,
    pub(crate) waiting_for_applied: RefCell<BTreeMap<u64, Signal>>,
    pub(crate) gap_max: Cell<u64>,
}

/// The locks of all eras, by their names in the real code.
#[derive(Debug)]
pub(crate) struct Locks {
    pub(crate) store: Lock,
    pub(crate) watchable: Lock,
    pub(crate) batch_tx: Lock,
    pub(crate) rev_mu: Lock,
    pub(crate) read_tx: Lock,
    pub(crate) tree_index: Lock,
}

impl Locks {
    fn new(world: &World) -> Locks {
        let lock = |name| Lock::new(world, name);
        Locks {
            store: lock("store"),
            watchable: lock("watchable"),
            batch_tx: lock("batchTx"),
            rev_mu: lock("revMu"),
            read_tx: lock("readTx"),
            tree_index: lock("treeIndex"),
        }
    }

    pub(crate) fn all(&self) -> [&Lock; 6] {
        let Locks { store, watchable, batch_tx, rev_mu, read_tx, tree_index } = self;
        [store, watchable, batch_tx, rev_mu, read_tx, tree_index]
    }
}

/// A worker serves other tasks, one batch after the other.
#[derive(Debug)]
pub(crate) struct Worker<T> {
    pub(crate) queue: Queue<T>,
    pub(crate) time_account: TimeAccount,
    pub(crate) name: TimeKind,
}

impl<T> Worker<T> {
    fn new(world: &World, task: &SimTask, name: &'static str) -> Worker<T> {
        let (queue, name) = (Queue::new(world), TimeKind::named(world, name));
        Worker { queue, time_account: task.time_account.clone(), name }
    }
}

impl Member {
    /// Creates a member, and the tasks of its log, applier, reads and commits.
    pub(crate) fn new(
        world: &World,
        index: usize,
        scenario: &Scenario,
        build: &Rc<Build>,
        model: &Rc<Model>,
    ) -> (Member, [SimTask; 4]) {
        // Each member has random generators for five purposes. The purposes of the first member
        // start at number 2.
        let rng = |purpose: u64| Rng::new(scenario.seed, index as u64 * 5 + 2 + purpose);
        let (costs, applies) = (&build.costs, model.is_used(index));
        let Costs { quantum_ns, impatience, .. } = *costs;
        let cores = Cores::with_impatience(world, scenario.cores, quantum_ns, impatience, rng(4));
        let name = |name: &str| match index {
            0 => TaskLabel::named(name),
            other => TaskLabel::named(&format!("{name} {}", other + 1)),
        };
        // The number of names is limited, so an idle worker gets no separate name.
        let log = name("log");
        let used = |worker| if applies { name(worker) } else { log };
        let labels = [log, used("applier"), used("reads"), used("commit")];
        let tasks = labels.map(|label| SimTask::new(world, &cores, label));
        let [log, applier, reads, _] = &tasks;
        let member = Member {
            locks: Locks::new(world),
            password_pool: Places::new(world, scenario.cores),
            log_syncs: Times::new(model.sync.unwrap_or(costs.log_sync), rng(0)),
            commit_syncs: Times::new(model.commit_sync.unwrap_or(costs.commit_sync), rng(1)),
            awake: Times::new(costs.awake, rng(2)),
            sent_waits: Times::new(costs.sent_waits, rng(3)),
            pending: Cell::default(),
            pending_bytes: Cell::default(),
            buffer_version: Cell::default(),
            copied_version: Cell::default(),
            revisions: Cell::default(),
            revisions_compacted: Cell::default(),
            applies,
            log: Worker::new(world, log, "the log"),
            appends: Worker::new(world, log, "the log"),
            applier: Worker::new(world, applier, "the applier"),
            reads: Worker::new(world, reads, "a round of reads"),
            unapplied: RefCell::default(),
            committed: Cell::default(),
            applied: Cell::default(),
            waiting_for_applied: RefCell::default(),
            gap_max: Cell::default(),
            build: Rc::clone(build),
            model: Rc::clone(model),
            cores: cores.clone(),
        };
        (member, tasks)
    }
}
