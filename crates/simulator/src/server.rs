//! One member: its machine, its locks, and its workers.
//!
//! Locks have the names of the real code. What an era does between them is in [`era`](crate::era);
//! what members do together, in [`cluster`](crate::cluster).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use clearlane_contention::TaskLabel;

use crate::account::TimeKind;
use crate::costs::Costs;
use crate::entries::{Arrived, Batch, Entry};
use crate::lock::Lock;
use crate::model::Model;
use crate::signal::{Queue, Signal};
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

/// The state that the eras work on.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) cores: Cores,
    pub(crate) build: Rc<Build>,
    pub(crate) model: Rc<Model>,
    pub(crate) locks: Locks,
    log_syncs: RefCell<Times>,
    commit_syncs: RefCell<Times>,
    awake: RefCell<Times>,
    sent_waits: RefCell<Times>,
    /// Operations that the backend has not committed.
    pub(crate) pending: Cell<u64>,
    /// Bytes of these operations.
    pub(crate) pending_bytes: Cell<u64>,
    /// Number of changes of the read buffer; `copied_version` is that of the shared copy.
    pub(crate) buffer_version: Cell<u64>,
    pub(crate) copied_version: Cell<Option<u64>>,
    /// Revisions in the backend, now and at the last compaction.
    pub(crate) revisions: Cell<u64>,
    pub(crate) revisions_compacted: Cell<u64>,
    /// Whether requests can arrive here; if not, applying is not simulated.
    pub(crate) applies: bool,
    /// At the leader, proposals.
    pub(crate) log: Worker<Entry>,
    pub(crate) appends: Worker<Arrived>,
    pub(crate) applier: Worker<Rc<Batch>>,
    pub(crate) reads: Worker<Signal>,
    /// In its log, and not known to be committed.
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

/// Serves other tasks, one batch after the other.
#[derive(Debug)]
pub(crate) struct Worker<T> {
    pub(crate) queue: Queue<T>,
    pub(crate) time_account: TimeAccount,
    pub(crate) name: TimeKind,
}

impl<T> Worker<T> {
    fn new(world: &World, trip: &SimTask, name: &'static str) -> Worker<T> {
        let (queue, name) = (Queue::new(world), TimeKind::named(world, name));
        Worker { queue, time_account: trip.time_account(), name }
    }

    pub(crate) fn enqueue(&self, work: T) {
        self.queue.push(work);
    }
}

#[derive(Debug)]
pub(crate) struct MemberTasks {
    pub(crate) log: SimTask,
    pub(crate) applier: SimTask,
    pub(crate) reads: SimTask,
    pub(crate) commits: SimTask,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberConfig {
    pub(crate) index: usize,
    pub(crate) applies: bool,
    pub(crate) cores: usize,
    pub(crate) quantum_ns: u64,
    pub(crate) seed: u64,
}

impl Member {
    pub(crate) fn new(
        world: &World,
        place: MemberConfig,
        build: &Rc<Build>,
        model: &Rc<Model>,
    ) -> (Member, MemberTasks) {
        // Members have five random purposes each, from 2 on.
        let chance = |purpose: u64| Rng::new(place.seed, place.index as u64 * 5 + 2 + purpose);
        let MemberConfig { cores, quantum_ns, .. } = place;
        let impatience = build.costs.impatience;
        let cores = Cores::with_impatience(world, cores, quantum_ns, impatience, chance(4));
        let name = |name: &str| match place.index {
            0 => TaskLabel::named(name),
            other => TaskLabel::named(&format!("{name} {}", other + 1)),
        };
        // The number of names is limited: an idle worker gets none of its own.
        let log = name("log");
        let used = |called| if place.applies { name(called) } else { log };
        let trip = |actor| SimTask::new(world, &cores, actor);
        let hands = MemberTasks {
            log: trip(log),
            applier: trip(used("applier")),
            reads: trip(used("reads")),
            commits: trip(used("commit")),
        };
        let times = |spread, purpose| RefCell::new(Times::new(spread, chance(purpose)));
        let member = Member {
            locks: Locks::new(world),
            log_syncs: times(model.sync.unwrap_or(build.costs.log_sync), 0),
            commit_syncs: times(model.commit_sync.unwrap_or(build.costs.commit_sync), 1),
            awake: times(build.costs.awake, 2),
            sent_waits: times(build.costs.sent_waits, 3),
            pending: Cell::default(),
            pending_bytes: Cell::default(),
            buffer_version: Cell::default(),
            copied_version: Cell::default(),
            revisions: Cell::default(),
            revisions_compacted: Cell::default(),
            applies: place.applies,
            log: Worker::new(world, &hands.log, "the log"),
            appends: Worker::new(world, &hands.log, "the log"),
            applier: Worker::new(world, &hands.applier, "the applier"),
            reads: Worker::new(world, &hands.reads, "a round of reads"),
            unapplied: RefCell::default(),
            committed: Cell::default(),
            applied: Cell::default(),
            waiting_for_applied: RefCell::default(),
            gap_max: Cell::default(),
            build: Rc::clone(build),
            model: Rc::clone(model),
            cores: cores.clone(),
        };
        (member, hands)
    }

    /// Drawn for the next sync.
    pub(crate) fn log_sync_ns(&self) -> u64 {
        self.log_syncs.borrow_mut().next_ns()
    }

    /// Drawn for the next sync.
    pub(crate) fn commit_sync_ns(&self) -> u64 {
        self.commit_syncs.borrow_mut().next_ns()
    }

    /// Thread hand-overs of the next request, if the machine is awake.
    pub(crate) fn awake_ns(&self) -> u64 {
        self.awake.borrow_mut().next_ns()
    }

    /// Waits of server and client for each other while `bytes` are sent.
    pub(crate) fn sent_waits_ns(&self, bytes: u64) -> u64 {
        const MIB: f64 = (1 << 20) as f64;
        (self.sent_waits.borrow_mut().next_ns() as f64 * bytes as f64 / MIB) as u64
    }
}
