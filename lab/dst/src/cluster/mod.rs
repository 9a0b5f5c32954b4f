//! The cluster: members, clients, faults and checkers, around one queue of events.
//!
//! ```text
//!                    ┌────────────── events ◀──────────────┐
//!                    ▼                                     │
//!   arrive, tick, written, ask ──▶ Replica ──▶ poll ──▶ send, write, answer, ...
//!                                              └──▶ checkers
//! ```
//!
//! [`ready`] polls a member's replica and turns its outputs into events, at moments drawn from the
//! seed. [`snapshot_transfer`], [`client_pool`], [`lease_clients`], [`auth_clients`],
//! [`user_requests`], [`fault_injection`], [`wiped_disks`], [`stalled_disks`] and
//! [`message_triggers`] have their events each; [`quiet`] is the end of a run.

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
use clearlane_server::AppliedPosition;
use clearlane_server::replica::ReplicaInput as RaftInput;
use clearlane_wal::group_commit::{Batch, BatchResult};

use self::auth_clients::{AuthClients, Login};
use self::client_pool::ClientPool;
use self::lease_clients::LeaseClients;
use self::message_triggers::MessageTriggers;
use self::quiet::QuietPhase;
use self::snapshot_transfer::SnapshotTransfer;
use self::stalled_disks::StalledDisks;
use self::user_requests::PermittedRead;
use self::wiped_disks::{WipedDiskEvent, WipedDisks};
use crate::bugs::Bug;
use crate::checkers::{CheckResult, Rule, Violation};
use crate::effect_hash::EffectHash;
use crate::event_queue::{EventQueue, Micros, SECOND};
use crate::faults::{FaultGenerator, FaultKind};
use crate::history::OperationOutcome;
use crate::invariant_checker::InvariantChecker;
use crate::machine::{Machine, RunningMember, member_description};
use crate::network::{Link, Network, Partition};
use crate::rng::Rng;
use crate::run_config::{RunConfig, TICK_INTERVAL};
use crate::trace::Trace;

/// More are taken for a loop; a simulation has tens of thousands.
const EVENTS_MAX: u64 = 3_000_000;

#[derive(Debug)]
enum Event {
    /// Dropped if the incarnation has ended; deferred while the process is stopped.
    Member {
        id: u64,
        incarnation: u64,
        event: MemberEvent,
    },
    MessageArrives {
        link: Link,
        bytes: Vec<u8>,
    },
    SnapshotChunk(u64),
    Start(u64),
    ClientRequest(u64),
    RequestArrives(usize),
    ReplyArrives(usize, OperationOutcome),
    ClientTimeout(usize),
    LeaseClient,
    AuthClient,
    Fault,
    StallDisks,
    Partition(Partition, Micros),
    PowerCut(u64, Micros),
    RestoreLinks(Vec<Link>),
    EndNetworkFaults,
    EndFaults,
    CheckConvergence,
    WipedDisk(WipedDiskEvent),
}

#[derive(Debug)]
enum MemberEvent {
    Tick,
    Poll,
    Apply,
    PollNet,
    /// The net thread looks for requests that have timed out.
    CheckTimeouts,
    Write(Batch),
    Written(BatchResult),
    Commit {
        /// Whether the commit timer has fired.
        is_timer: bool,
    },
    /// The raft loop is notified of what the store has committed.
    StoreCommitted(AppliedPosition),
    Compact,
    /// The receiver, and whether the snapshot arrived.
    SnapshotSent(u64, bool),
    Unreachable(u64),
    /// The client of the operation has stopped waiting.
    CancelRequest(usize),
    /// The auth revision at which the password was right.
    PasswordChecked(Login, u64),
    ReadForUser(Box<PermittedRead>),
    CompareAuthRevision(Box<PermittedRead>),
}

impl MemberEvent {
    /// Used in the trace.
    fn name(&self) -> &'static str {
        match self {
            MemberEvent::Tick => "ticks",
            MemberEvent::Poll => "polls",
            MemberEvent::Apply => "applies",
            MemberEvent::PollNet => "looks after its clients",
            MemberEvent::CheckTimeouts => "looks for requests that wait too long",
            MemberEvent::Write(_) => "writes",
            MemberEvent::Written(_) => "hears that it is written",
            MemberEvent::Commit { .. } => "commits its store",
            MemberEvent::StoreCommitted(_) => "hears that its store is committed",
            MemberEvent::Compact => "compacts",
            MemberEvent::SnapshotSent(_, true) => "hears that a copy has arrived",
            MemberEvent::SnapshotSent(_, false) => "hears that a copy has not arrived",
            MemberEvent::Unreachable(_) => "hears that a member is out of reach",
            MemberEvent::CancelRequest(_) => "hears that a client gives up",
            MemberEvent::PasswordChecked(..) => "has compared a password",
            MemberEvent::ReadForUser(_) => "reads for a user",
            MemberEvent::CompareAuthRevision(_) => "compares the auth revision",
        }
    }
}

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
    /// `Some` in a run with users.
    auth: Option<AuthClients>,
    checker: InvariantChecker,
    quiet: QuietPhase,
    message_triggers: MessageTriggers,
    /// `Some` in a run that wipes disks.
    wiped_disks: Option<WipedDisks>,
    /// `Some` in a run with disks that stall.
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
    /// Power cuts during a write.
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
    /// Linearizable reads of a sole voter.
    pub sole_voter_reads: u64,
    /// Acknowledged changes of users and roles.
    pub auth_changes: u64,
    /// Reads whose user was checked, or not yet.
    pub user_reads: u64,
    /// Requests that were refused before they were proposed or read.
    pub refused_requests: u64,
    pub used_tokens: u64,
    /// Requests with a token whose entry was not applied yet.
    pub token_waits: u64,
    pub wiped_disks: u64,
    /// Members with a wiped disk that were refused.
    pub refused_members: u64,
    /// Members with a wiped disk that were admitted.
    pub admitted_members: u64,
    /// Members that stopped because they had lost their log.
    pub lost_logs: u64,
    /// Clusters without a quorum of voters with an intact disk.
    pub waiting_ends: u64,
    pub disk_stalls: u64,
    /// Times that a stalled leader asked another member to lead.
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
        // It draws nothing else: all other runs are as they would be without stalls.
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
            // A wiped disk would break the conditions under which stalls are checked.
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

    fn add_machine(&mut self, id: u64, first: &[clearlane_server::membership::Member]) {
        let machine = Machine::new(id, first, &self.config).expect("an empty disk takes a log");
        self.machines.insert(id, machine);
        let wait = self.rng.between(0, 100_000);
        self.events.schedule(wait, Event::Start(id));
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
        // Faults begin after the first election.
        self.events.schedule(delay + 2 * SECOND + pause, Event::Fault);
        self.events.schedule(delay + self.config.fault_phase, Event::EndFaults);
        while !self.quiet.is_over {
            let event = self.events.next_event().expect("ticks never end");
            self.metrics.events += 1;
            if self.metrics.events > EVENTS_MAX {
                return Err(Violation::new(Rule::Progress, "events without end"));
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

    fn handle_event(&mut self, event: Event) -> CheckResult {
        let Some(event) = self.defer_if_paused(event) else { return Ok(()) };
        match event {
            Event::Member { id, incarnation, event: what } => {
                return self.handle_member_event(id, incarnation, what);
            }
            Event::MessageArrives { link, bytes } => return self.on_message(link, &bytes),
            Event::SnapshotChunk(number) => return self.on_snapshot_chunk(number),
            Event::Start(id) => return self.start(id),
            Event::RequestArrives(operation) => return self.handle_client_request(operation),
            Event::CheckConvergence => return self.check_convergence(),
            Event::WipedDisk(event) => return self.on_wiped_disk_event(event),
            Event::StallDisks => return self.stall_disks(),
            Event::ClientRequest(client) => self.send_client_request(client),
            Event::ReplyArrives(operation, outcome) => self.on_reply(operation, outcome),
            Event::ClientTimeout(operation) => self.on_client_timeout(operation),
            Event::Partition(cut, duration) => self.begin_partition(&cut, duration),
            Event::PowerCut(id, down) => self.begin_power_cut(id, down),
            Event::RestoreLinks(links) => self.network.restore(&links),
            Event::EndNetworkFaults => self.network.faults = self.config.network_faults,
            Event::LeaseClient => self.run_lease_client(),
            Event::AuthClient => self.run_auth_client(),
            Event::Fault => self.inject_next_fault(),
            Event::EndFaults => self.begin_quiet_phase(),
        }
        Ok(())
    }

    /// An event for a stopped process is scheduled again for when it continues.
    fn defer_if_paused(&mut self, event: Event) -> Option<Event> {
        let id = match &event {
            Event::Member { id, .. } => *id,
            Event::MessageArrives { link, .. } => link.1,
            Event::RequestArrives(operation) => self.clients.history.operations[*operation].member,
            Event::SnapshotChunk(number) => self.snapshot_transfers.get(number)?.link.1,
            _ => return Some(event),
        };
        let now = self.events.now();
        match self.machines.get(&id) {
            Some(machine) if machine.paused_until > now => {
                self.events.schedule(machine.paused_until - now, event);
                None
            }
            _ => Some(event),
        }
    }

    fn handle_member_event(&mut self, id: u64, incarnation: u64, what: MemberEvent) -> CheckResult {
        let now = self.events.now();
        let Some(machine) =
            self.machines.get_mut(&id).filter(|machine| machine.incarnation == incarnation)
        else {
            return Ok(());
        };
        let clock = machine.clock;
        let Some(RunningMember { replica: core, planted_bug, .. }) = &mut machine.running else {
            return Ok(());
        };
        self.trace.record(now, format_args!("{id} {}", what.name()));
        let give = match what {
            MemberEvent::Poll => return self.poll(id),
            MemberEvent::Apply => return self.apply(id),
            MemberEvent::PollNet => return self.poll_net(id, false),
            MemberEvent::CheckTimeouts => return self.poll_net(id, true),
            MemberEvent::Write(batch) => return self.write(id, batch),
            MemberEvent::Commit { is_timer } => return self.commit(id, is_timer),
            MemberEvent::Compact => return self.compact(id),
            MemberEvent::CancelRequest(operation) => {
                self.cancel_request(id, operation);
                return Ok(());
            }
            MemberEvent::PasswordChecked(login, revision) => {
                self.propose_login(id, login, revision);
                return Ok(());
            }
            MemberEvent::ReadForUser(read) => return self.read_for_user(id, read),
            MemberEvent::CompareAuthRevision(read) => {
                return self.compare_auth_revision(id, *read);
            }
            MemberEvent::Tick => {
                planted_bug.before_tick(core);
                core.tick();
                self.events.schedule(clock.to_sim_time(TICK_INTERVAL), tick_event(id, incarnation));
                self.plan_poll(id);
                return self.check_stalled_leader(id);
            }
            MemberEvent::Written(written) => RaftInput::WalWritten(written),
            MemberEvent::StoreCommitted(durable) => RaftInput::StoreCommitted(durable),
            MemberEvent::SnapshotSent(to, arrived) => {
                RaftInput::RaftSnapshotSent { to, is_delivered: arrived }
            }
            MemberEvent::Unreachable(to) => RaftInput::Unreachable(to),
        };
        self.enqueue_raft_event(id, give);
        Ok(())
    }

    fn enqueue_raft_event(&mut self, id: u64, input: RaftInput) {
        if let Some(running) = self.running_mut(id) {
            running.raft_loop_events.push(input);
            self.plan_poll(id);
        }
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
        // As the server's peers do, which know their connection's member.
        if message.from() != link.0 {
            return Err(member_failed(id)(format!("{message} came from {}", link.0)));
        }
        self.trace_line(format_args!("arrives {message}"));
        self.enqueue_raft_event(id, RaftInput::Message(message));
        Ok(())
    }
}

fn tick_event(id: u64, incarnation: u64) -> Event {
    Event::Member { id, incarnation, event: MemberEvent::Tick }
}

fn member_failed<E: Display>(id: u64) -> impl FnOnce(E) -> Violation {
    move |error| Violation::new(Rule::Running, format!("member {id}: {error}"))
}
