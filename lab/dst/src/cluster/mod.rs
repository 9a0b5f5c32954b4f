//! The cluster: members, clients, faults and checkers, around one queue of [`events`].
//!
//! ```text
//!                    ┌────────────── events ◀──────────────┐
//!                    ▼                                     │
//!   arrive, tick, written, ask ──▶ Replica ──▶ poll ──▶ send, write, answer, ...
//!                                              └──▶ checkers
//! ```
//!
//! [`ready`] polls a member's replica and converts its outputs to events, at times drawn from the
//! seed. Each of [`snapshot_transfer`], [`client_pool`], [`lease_clients`], [`auth_clients`],
//! [`user_requests`], [`fault_injection`], [`wiped_disks`], [`stalled_disks`] and
//! [`message_triggers`] has its own events. [`quiet`] is the end of a run.

mod events;
mod message_triggers;
mod ready;
mod snapshot_transfer;
mod fault_injection;
mod client_pool;
mod quiet;
mod lease_clients;
mod auth_clients;
mod user_requests;
mod wiped_disks;
mod stalled_disks;

use std::collections::BTreeMap;
use std::fmt::Display;

use clearlane_raft::Message;
use clearlane_replica::ReplicaInput as RaftInput;

use self::auth_clients::AuthClients;
use self::client_pool::ClientPool;
use self::events::Event;
use self::lease_clients::LeaseClients;
use self::message_triggers::MessageTriggers;
use self::quiet::QuietPhase;
use self::snapshot_transfer::SnapshotTransfer;
use self::stalled_disks::StalledDisks;
use self::wiped_disks::WipedDisks;
use crate::bugs::Bug;
use crate::checkers::{CheckResult, Rule, Violation};
use crate::effect_hash::EffectHash;
use crate::event_queue::{EventQueue, Micros, SECOND};
use crate::faults::{FaultGenerator, FaultKind};
use crate::invariant_checker::InvariantChecker;
use crate::machine::{Machine, RunningMember, member_description};
use crate::network::{Link, Network};
use crate::rng::Rng;
use crate::run_config::{RunConfig, TICK_INTERVAL};
use crate::trace::Trace;

/// Maximum number of events. A simulation has tens of thousands, so more events mean an endless
/// loop.
const EVENTS_MAX: u64 = 3_000_000;

#[derive(Clone, Copy, Debug)]
pub struct SeedOptions {
    pub seed: u64,
    /// Number of members at the start.
    pub members: u64,
    pub bug: Option<Bug>,
    pub prints_trace: bool,
}

#[derive(Debug)]
pub struct Cluster {
    config: RunConfig,
    events: EventQueue<Event>,
    pub trace: Trace,
    pub effect_hash: EffectHash,
    rng: Rng,
    network: Network,
    faults: FaultGenerator,
    machines: BTreeMap<u64, Machine>,
    snapshot_transfers: BTreeMap<u64, SnapshotTransfer>,
    clients: ClientPool,
    lease_clients: LeaseClients,
    /// The administrator and the clients that log in. `None` in a run without users.
    auth: Option<AuthClients>,
    checker: InvariantChecker,
    quiet: QuietPhase,
    message_triggers: MessageTriggers,
    /// The state of the wipes. `None` in a run that wipes no disks.
    wiped_disks: Option<WipedDisks>,
    /// The state of the stalls. `None` in a run whose disks do not stall.
    stalled_disks: Option<StalledDisks>,
    newest_id: u64,
    pub metrics: RunMetrics,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunMetrics {
    pub events: u64,
    pub operations: u64,
    pub committed_entries: u64,
    pub terms_with_leader: u64,
    pub crashes: u64,
    /// Power cuts during a disk operation, which may also be a start or a purge of the log.
    pub torn_writes: u64,
    /// Members that stopped because of a disk error.
    pub disk_errors: u64,
    pub installed_snapshots: u64,
    pub members_added: u64,
    pub members_removed: u64,
    pub lease_keep_alives: u64,
    pub expired_leases: u64,
    pub compared_hashes: u64,
    /// Clusters that lost their quorum because one of two voters was removed.
    pub quorums_removed: u64,
    /// Linearizable reads that a sole voter served without a ReadIndex request.
    pub sole_voter_reads: u64,
    /// Acknowledged changes of users and roles.
    pub auth_changes: u64,
    /// Answered reads in a run with users, including reads while authentication was disabled.
    pub user_reads: u64,
    /// Requests that were rejected because of their user before they were proposed, and reads that
    /// were rejected because of their user.
    pub refused_requests: u64,
    pub used_tokens: u64,
    /// Requests that waited because the member had not applied the entry of their token.
    pub token_waits: u64,
    pub wiped_disks: u64,
    /// Members with a wiped disk that were not allowed to start.
    pub refused_members: u64,
    /// Members with a wiped disk that were admitted.
    pub admitted_members: u64,
    /// Members that stopped because their log had lost entries.
    pub lost_logs: u64,
    /// Clusters that made no progress at the end because too few voters had an intact disk.
    pub waiting_ends: u64,
    pub disk_stalls: u64,
    /// Number of times that a stalled leader transferred its leadership.
    pub stall_transfers: u64,
}

impl Cluster {
    pub fn new(options: &SeedOptions) -> Cluster {
        let mut rng = Rng::new(options.seed ^ options.members << 56);
        let mut config = RunConfig::random(&mut rng.split(), options.bug);
        let mut auth_rng = Rng::new(!(options.seed ^ options.members << 56));
        config.add_users(&mut auth_rng);
        let mut wipe_rng = Rng::new((options.seed ^ options.members << 56).rotate_left(32));
        config.add_wiped_disks(&mut wipe_rng);
        // This generator is used only for stalls. So a run without stalls draws the same numbers as
        // it would without the module `stalled_disks`.
        let stall_rng = Rng::new((options.seed ^ options.members << 56).rotate_left(17));
        let voters_min = match config.can_lose_members {
            true => 1,
            false => (options.members as usize).saturating_sub(1).max(3),
        };
        let mut faults = FaultGenerator::new(rng.split(), voters_min, config.drift_ppm_max);
        if config.can_lose_members {
            faults.remove_members_often();
        }
        match options.bug {
            Some(Bug::LeaseKeptOverTransfer) => faults.prefer(FaultKind::TransferLeader),
            Some(Bug::LeaseTooLong) => faults.prefer(FaultKind::PartitionLeader),
            _ => {}
        }
        let mut network = Network::new(rng.split());
        network.faults = config.network_faults;
        let users = ClientPool::new(&config, &mut rng);
        let lease_clients = LeaseClients::new(rng.split());
        let mut cluster = Cluster {
            events: EventQueue::default(),
            trace: Trace::new(options.prints_trace),
            effect_hash: EffectHash::default(),
            rng,
            network,
            faults,
            machines: BTreeMap::new(),
            snapshot_transfers: BTreeMap::new(),
            clients: users,
            lease_clients,
            auth: config.token_ttl.map(|_| AuthClients::new(auth_rng)),
            checker: InvariantChecker::default(),
            quiet: QuietPhase::default(),
            message_triggers: MessageTriggers::default(),
            wiped_disks: config.wipes_disks.then(|| WipedDisks::new(wipe_rng, options.members)),
            // The rules for stalls are checked in a first phase without other faults. A wiped disk
            // would be another fault, so no disk stalls in a run that wipes disks.
            stalled_disks: StalledDisks::random(stall_rng, options.bug)
                .filter(|_| !config.wipes_disks),
            newest_id: options.members,
            metrics: RunMetrics::default(),
            config,
        };
        let first: Vec<_> = (1..=options.members).map(member_description).collect();
        for id in 1..=options.members {
            cluster.add_machine(id, &first);
        }
        cluster
    }

    fn add_machine(&mut self, id: u64, first: &[clearlane_replica::membership::Member]) {
        let machine = Machine::new(id, first, &self.config).expect("an empty disk takes a log");
        self.machines.insert(id, machine);
        let wait = self.rng.between(0, 100_000);
        self.plan_start(id, wait);
    }

    pub fn run(&mut self) -> CheckResult {
        self.trace_line(format_args!("{:?}", self.config.clone()));
        self.plan_clients();
        self.plan_lease_client();
        self.plan_auth_clients();
        self.plan_wiped_disks();
        self.plan_stalls();
        let delay = self.stalled_disks.as_ref().map_or(0, StalledDisks::delay);
        let pause = self.faults.pause();
        // Faults start after the first election.
        self.events.plan(delay + 2 * SECOND + pause, Cluster::inject_next_fault);
        self.events.plan(delay + self.config.fault_phase, Cluster::begin_quiet_phase);
        while !self.quiet.is_over {
            let event = self.events.next_event().expect("ticks never end");
            self.metrics.events += 1;
            if self.metrics.events > EVENTS_MAX {
                return Err(Violation::new(Rule::Progress, "the events do not end"));
            }
            self.handle_event(event)?;
        }
        self.checker.check_history(&self.clients.history.operations, &self.clients.proposal_ids)
    }

    pub fn collect_metrics(&mut self) -> RunMetrics {
        self.metrics.operations = self.clients.history.operations.len() as u64;
        self.metrics.committed_entries = self.checker.committed.newest();
        self.metrics.terms_with_leader = self.checker.agreement.leader_by_term.len() as u64;
        self.metrics.lease_keep_alives = self.checker.lease_promises.keep_alives;
        self.metrics.expired_leases = self.checker.lease_promises.expired;
        let auth = &self.checker.auth;
        self.metrics.user_reads = auth.user_reads;
        self.metrics.refused_requests = auth.refused_requests;
        self.metrics.used_tokens = auth.used_tokens;
        self.metrics.compared_hashes = self.checker.agreement.compared_hashes;
        self.metrics
    }

    pub(crate) fn trace_line(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.record(self.events.now(), what);
    }

    fn tick(&mut self, id: u64) -> CheckResult {
        let Some(machine) = self.machines.get_mut(&id) else { return Ok(()) };
        let wait = machine.clock.to_sim_time(TICK_INTERVAL);
        let Some(RunningMember { replica, planted_bug, .. }) = &mut machine.running else {
            return Ok(());
        };
        planted_bug.before_tick(replica);
        replica.tick();
        self.plan_tick(id, wait);
        self.plan_poll(id);
        self.check_stalled_leader(id)
    }

    fn plan_tick(&mut self, id: u64, wait: Micros) {
        self.plan_step(id, wait, "ticks", Cluster::tick);
    }

    /// Plans an input for the raft loop. After `wait` the input is queued, and the raft loop takes
    /// it in its next turn.
    fn plan_raft_input(&mut self, id: u64, wait: Micros, words: &'static str, input: RaftInput) {
        self.plan_step(id, wait, words, |cluster, id| cluster.enqueue_raft_event(id, input));
    }

    fn enqueue_raft_event(&mut self, id: u64, input: RaftInput) {
        if let Some(running) = self.running_mut(id) {
            running.raft_loop_events.push(input);
            self.plan_poll(id);
        }
    }

    /// Returns the machines that were not removed. They need not be running.
    fn present(&self) -> impl Iterator<Item = &Machine> + Clone {
        self.machines.values().filter(|machine| !machine.is_removed)
    }

    /// Returns the running members.
    fn up(&self) -> Vec<u64> {
        let up = self.machines.values().filter(|machine| machine.running.is_some());
        up.map(|machine| machine.id).collect()
    }

    fn running(&self, id: u64) -> Option<&RunningMember> {
        self.machines.get(&id)?.running.as_ref()
    }

    fn running_mut(&mut self, id: u64) -> Option<&mut RunningMember> {
        self.machines.get_mut(&id)?.running.as_mut()
    }

    fn on_message(&mut self, link: Link, bytes: &[u8]) -> CheckResult {
        let id = link.1;
        let message = Message::decode(bytes).map_err(member_failed(id))?;
        if self.network.is_cut(link) {
            self.trace_line(format_args!("lost {message}"));
            return Ok(());
        }
        // The server's peers make the same check, because they know the member of each connection.
        if message.from() != link.0 {
            return Err(member_failed(id)(format!("{message} came from {}", link.0)));
        }
        self.trace_line(format_args!("arrives {message}"));
        self.enqueue_raft_event(id, RaftInput::Message(message));
        Ok(())
    }
}

fn member_failed<E: Display>(id: u64) -> impl FnOnce(E) -> Violation {
    move |error| Violation::new(Rule::Running, format!("member {id}: {error}"))
}
