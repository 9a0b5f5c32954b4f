//! The path of a request from the socket to the applier. All eras share it.
//!
//! ```text
//!   write  ─▶ log of the leader (batch, sync) ─▶ a quorum ─▶ applier ─▶ era::write ─▶ answered
//!   range  ─▶ reads: one ReadIndex request for all waiting readers,
//!              and wait until that index is applied ───────────────────────▶ era::range ─▶ sent
//!   timer  ─▶ every 100 ms ────────────────────────────────────────────────▶ era::commit
//! ```
//!
//! Each member has its own machine. The first member leads. The members after the voting members
//! are learners. Writes are replicated in [`raft`](crate::raft), and reads are confirmed in
//! [`reads`](crate::reads). Both send [`Message`]s on [links](crate::link).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use clearlane_contention::TaskLabel;

use crate::account::{Account, TimeKind};
use crate::costs::times;
use crate::entries::{LEADER, Message, Work};
use crate::era::{self, LinearizableMode, background};
use crate::link::Link;
use crate::model::{Connect, Model};
use crate::raft::Progress;
use crate::requests::{Range, Request};
use crate::results::ClassResults;
use crate::scenario::{Scenario, mean_record_bytes};
use crate::server::{Build, Member};
use crate::signal::Signal;
use crate::sim_task::{SimTask, TimeAccount};
use crate::spread::Times;
use crate::timeline::LaneKind;
use crate::{Rng, World};

/// A long response is sent in pieces of this size.
const PIECE_BYTES: u64 = 4 << 20;

const MIB: f64 = (1 << 20) as f64;

/// The number of the first random generator of a link. The members' generators have lower numbers.
const LINKS: u64 = 1 << 32;

#[derive(Debug)]
pub struct Cluster {
    pub(crate) world: World,
    build: Rc<Build>,
    pub(crate) model: Rc<Model>,
    /// The voters, and then the learners.
    pub(crate) members: Vec<Member>,
    /// A link from each member to every member. Links between two followers, and from a member to
    /// itself, are not used.
    links: Vec<Link<Message>>,
    pub(crate) progress: Progress,
    /// The kind of time to which a wait for a quorum is attributed if the cause of the wait is not
    /// known.
    pub(crate) quorum: TimeKind,
    /// The member that gets the next request of a class with [`Connect::Spread`].
    next: Cell<usize>,
    pub(crate) jobs: RefCell<Vec<ClassResults>>,
    pub(crate) keys: u64,
    /// The mean size of a record.
    pub(crate) record_bytes: u64,
    pub(crate) seed: u64,
    ends_ns: u64,
}

/// A second thread that computes for a request while the request's own thread continues.
struct Alongside {
    name: TimeKind,
    time_account: TimeAccount,
    done: Signal,
}

impl Alongside {
    async fn wait(self, task: &mut SimTask) {
        task.wait_for_worker(self.name, &self.time_account, &self.done).await;
    }
}

impl Cluster {
    pub fn start(world: &World, scenario: &Scenario, build: &Build) -> Rc<Cluster> {
        let (build, model) = (Rc::new(build.clone()), Rc::new(scenario.model.clone()));
        let count = model.members + model.learners;
        let member = |index| Member::new(world, index, scenario, &build, &model);
        let (members, tasks): (Vec<_>, Vec<_>) = (0..count).map(member).unzip();
        let link = |number: usize| {
            let spread = model.round_trip(number / count, number % count);
            let rng = Rng::new(scenario.seed, LINKS + number as u64);
            Link::new(world, Times::new(spread, rng))
        };
        let cluster = Rc::new(Cluster {
            world: world.clone(),
            progress: Progress::new(model.members),
            quorum: TimeKind::named(world, "a quorum"),
            links: (0..count * count).map(link).collect(),
            next: Cell::new(0),
            jobs: RefCell::default(),
            keys: scenario.workload.space.count,
            seed: scenario.seed,
            ends_ns: scenario.workload.seconds * 1_000_000_000,
            record_bytes: mean_record_bytes(&scenario.workload.space),
            build,
            model,
            members,
        });
        for (place, tasks) in tasks.into_iter().enumerate() {
            cluster.start_tasks(place, tasks);
        }
        cluster
    }

    fn start_tasks(self: &Rc<Self>, place: usize, tasks: [SimTask; 4]) {
        let [log, applier, reads, commits] = tasks;
        let own = || Rc::clone(self);
        if place == LEADER {
            self.world.spawn(own().lead_log(log));
        } else {
            self.world.spawn(own().follow_log(place, log));
            self.world.spawn(own().deliver(LEADER, place));
            self.world.spawn(own().deliver(place, LEADER));
        }
        if self.member(place).applies {
            self.world.spawn(own().apply_all(place, applier));
            self.world.spawn(own().confirm_reads(place, reads));
            self.world.spawn(own().commit(place, commits));
        }
        if place == LEADER {
            self.start_background();
        }
    }

    pub(crate) fn member(&self, place: usize) -> &Member {
        &self.members[place]
    }

    pub(crate) fn link(&self, from: usize, to: usize) -> &Link<Message> {
        &self.links[from * self.members.len() + to]
    }

    /// Returns whether the workload's time is over. After that, no background work starts.
    pub(crate) fn is_over(&self) -> bool {
        self.world.now_ns() >= self.ends_ns
    }

    /// Returns the used CPU time of each member.
    pub fn used_ns(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.cores.used_ns()).collect()
    }

    pub(crate) fn record_job(&self, job: &str, took_ns: u64, account: Account) {
        let mut jobs = self.jobs.borrow_mut();
        let at = jobs.iter().position(|known| known.name == job).unwrap_or_else(|| {
            jobs.push(ClassResults::new(job));
            jobs.len() - 1
        });
        jobs[at].due += 1;
        jobs[at].answered(took_ns, account);
    }

    pub(crate) fn member_index(&self, connect: Connect) -> usize {
        match connect {
            Connect::Leader => LEADER,
            Connect::Member(number) => number - 1,
            Connect::Spread => {
                let place = self.next.get();
                self.next.set((place + 1) % self.model.members);
                place
            }
        }
    }

    /// Serves a request. Returns its latency, and the account of this time. Returns `None` for a
    /// write that is rejected with "etcdserver: too many requests", because too many entries are
    /// committed but not yet applied.
    pub async fn serve(
        &self,
        connect: Connect,
        class: TaskLabel,
        request: Request,
    ) -> Option<(u64, Account)> {
        let kind = match request {
            Request::Range { .. } => LaneKind::Read,
            Request::Write(_) => LaneKind::Write,
        };
        let place = self.member_index(connect);
        let mut task = SimTask::with_kind(&self.world, &self.member(place).cores, class, kind);
        self.receive(place, &mut task).await;
        let member = self.member(place);
        let gap = member.committed.get() - member.applied.get();
        let is_accepted = kind == LaneKind::Read || gap <= self.model.apply_gap_max;
        match request {
            Request::Range { range, serializable } => {
                self.range(place, &mut task, range, serializable).await;
            }
            Request::Write(write) if is_accepted => {
                self.propose(place, &mut task, Work::Write(write)).await;
            }
            Request::Write(_) => {}
        }
        self.send_response(&mut task).await;
        is_accepted.then(|| task.end())
    }

    /// Simulates the path of a request from the client to the member's handler.
    pub(crate) async fn receive(&self, place: usize, task: &mut SimTask) {
        let (costs, model) = (&self.build.costs, &self.model);
        let member = self.member(place);
        task.idle_ns = member.cores.idle_ns();
        task.wait_for_wakeups(member.awake.next_ns(), costs.wakeups_ns, costs.doze_ns).await;
        if model.client_round_trip_ns > 0 {
            task.network(model.client_round_trip_ns / 2).await;
        }
        // The client and the server each need a core for their thread, so there are two runs.
        task.run(self.client_ns() / 2).await;
        task.run(costs.request_ns / 2).await;
    }

    /// Returns the client's CPU time for a request. It is 0 if clients have their own machines.
    fn client_ns(&self) -> u64 {
        if self.model.clients_apart { 0 } else { self.build.costs.client_ns }
    }

    pub(crate) async fn send_response(&self, task: &mut SimTask) {
        task.run(self.build.costs.request_ns.div_ceil(2)).await;
        task.run(self.client_ns().div_ceil(2)).await;
        if self.model.client_round_trip_ns > 0 {
            task.network(self.model.client_round_trip_ns / 2).await;
        }
    }

    async fn range(&self, place: usize, task: &mut SimTask, range: Range, serializable: bool) {
        let member = self.member(place);
        let era = member.build.era;
        if !serializable && era::linearizable_mode(era) == LinearizableMode::Log {
            self.propose(place, task, Work::Read(range)).await;
            return self.send(place, task, range).await;
        }
        if !serializable {
            self.confirm_read(place, task).await;
        }
        self.check_permission(member, task).await;
        if era::reads_in_the_pool(era, range) {
            let costs = &member.build.costs;
            task.wait_for_threads(costs.pool_wakeups_ns).await;
            task.run(costs.pool_ns).await;
        }
        if era::reads_in_pieces(era) && range.is_long() {
            return self.in_pieces(place, task, range, true).await;
        }
        era::range(member, task, range).await;
        self.send(place, task, range).await;
    }

    /// Returns the CPU time for sending the records of a range, and for receiving them. The second
    /// time is 0 if clients have their own machines.
    fn sending_ns(&self, range: Range) -> (u64, u64) {
        let (costs, bytes) = (&self.build.costs, range.bytes());
        let sent_ns = costs.sent_record_ns * range.sent + times(bytes, costs.sent_byte_ns);
        let received_ns = if self.model.clients_apart { 0.0 } else { costs.received_byte_ns };
        (sent_ns, times(bytes, received_ns))
    }

    async fn send(&self, place: usize, task: &mut SimTask, range: Range) {
        if range.is_long() {
            return self.in_pieces(place, task, range, false).await;
        }
        let (sent_ns, received_ns) = self.sending_ns(range);
        task.run(sent_ns + received_ns).await;
    }

    /// Sends a long response in pieces. In each step, the server sends a piece, and the client
    /// receives a piece at the same time. If `reads` is true, the era also reads a piece in the
    /// same step. After each step there is a wait, because server and client sometimes wait for
    /// each other.
    async fn in_pieces(&self, place: usize, task: &mut SimTask, range: Range, reads: bool) {
        let member = self.member(place);
        let waits_ns = member.sent_waits.next_ns() as f64 * range.bytes() as f64 / MIB;
        let waits_ns = waits_ns.trunc();
        let mut left = range.sent;
        while left > 0 {
            let sent = left.min((PIECE_BYTES / range.record_bytes.max(1)).max(1));
            let piece = Range { keys: sent, sent, ..range };
            let (sent_ns, received_ns) = self.sending_ns(piece);
            let taken = self.alongside(place, "its client", received_ns, false);
            if reads {
                let sending = self.alongside(place, "its sending", sent_ns, true);
                // The reading task holds no lock. Like the sending task, it runs at low priority.
                task.runs_in_background = true;
                era::range(member, task, piece).await;
                task.runs_in_background = false;
                sending.wait(task).await;
            } else {
                task.run(sent_ns).await;
            }
            taken.wait(task).await;
            task.wait_for_threads((waits_ns * sent as f64 / range.sent as f64) as u64).await;
            left -= sent;
        }
    }

    /// Starts a computation on another thread. If `is_late` is true, the computation runs at low
    /// priority.
    fn alongside(&self, place: usize, name: &'static str, ns: u64, is_late: bool) -> Alongside {
        let (world, cores) = (&self.world, &self.member(place).cores);
        let mut task = SimTask::new(world, cores, TaskLabel::named(name));
        task.runs_in_background = is_late;
        let (name, time_account) = (TimeKind::named(world, name), task.time_account.clone());
        let alongside = Alongside { name, time_account, done: Signal::new(world) };
        let done = alongside.done.clone();
        world.spawn(async move {
            task.run(ns).await;
            done.set();
        });
        alongside
    }

    async fn apply_all(self: Rc<Self>, place: usize, mut task: SimTask) {
        let member = self.member(place);
        loop {
            for batch in member.applier.queue.drain().await {
                for entry in &batch.entries {
                    let gap = member.committed.get() - member.applied.get();
                    member.gap_max.set(member.gap_max.get().max(gap));
                    task.label = entry.actor;
                    self.apply(place, &mut task, entry.work).await;
                    let applied = member.applied.get() + 1;
                    member.applied.set(applied);
                    if entry.member == place {
                        entry.done.set();
                    }
                    let readers = member.waiting_for_applied.borrow_mut().remove(&applied);
                    if let Some(readers) = readers {
                        readers.set();
                    }
                    self.after(member, &mut task, entry.work, applied).await;
                }
            }
        }
    }

    async fn apply(self: &Rc<Self>, place: usize, task: &mut SimTask, work: Work) {
        let member = self.member(place);
        match work {
            Work::Write(write) => {
                if self.model.auth.enabled {
                    background::check_entry_permission(member, task).await;
                }
                era::write(member, task, write).await;
            }
            Work::Read(range) => {
                self.check_permission(member, task).await;
                era::range(member, task, range).await;
            }
            Work::Compact => {
                background::begin_compaction(member, task).await;
                self.world.spawn(Rc::clone(self).compact(place));
            }
            Work::Token => {}
        }
    }

    /// Does the applier's work that follows the response to the writer.
    async fn after(&self, member: &Member, task: &mut SimTask, work: Work, applied: u64) {
        if let Work::Write(write) = work {
            background::notify_after_write(member, task, write).await;
        }
        let by_default = background::settings(member.build.era).snapshot_count;
        let count = self.model.snapshot_count.unwrap_or(by_default);
        if count > 0 && applied.is_multiple_of(count) {
            task.label = TaskLabel::named("snapshot");
            background::disk_snapshot(member, task).await;
        }
    }

    async fn check_permission(&self, member: &Member, task: &mut SimTask) {
        if self.model.auth.enabled {
            background::check_permission(member, task).await;
        }
    }

    async fn commit(self: Rc<Self>, place: usize, mut task: SimTask) {
        let member = self.member(place);
        loop {
            self.world.sleep(self.model.commit_interval_ns).await;
            era::commit(member, &mut task).await;
        }
    }

    async fn deliver(self: Rc<Self>, from: usize, to: usize) {
        let link = self.link(from, to);
        loop {
            for (arrives_ns, message) in link.on_its_way.drain().await {
                self.world.sleep_until(arrives_ns).await;
                match message {
                    Message::Append(batch) => self.on_append(to, batch),
                    Message::Appended { batch, path } => self.on_appended(from, &batch, path),
                    Message::Committed(committed) => {
                        self.member(to).committed.set(committed);
                        self.pass_to_applier(to);
                    }
                    Message::Heartbeat(round) => self.on_heartbeat(to, round).await,
                    Message::Follows { round, path } => self.on_heartbeat_response(&round, path),
                }
            }
        }
    }
}
