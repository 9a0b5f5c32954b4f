//! The path of a request from the socket to the applier, which all eras share.
//!
//! ```text
//!   write  ─▶ log of the leader (batch, sync) ─▶ a quorum ─▶ applier ─▶ era::write ─▶ answered
//!   range  ─▶ reads: a round for all that came meanwhile,
//!              and wait until that much is applied ────────────────────────▶ era::range ─▶ sent
//!   timer  ─▶ every 100 ms ────────────────────────────────────────────────▶ era::commit
//! ```
//!
//! Each member has a machine of its own. The first leads; those behind the voting members are
//! learners. Writes are replicated in [`raft`](crate::raft), reads confirmed in
//! [`reads`](crate::reads), by [`Message`]s on [links](crate::link).

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use clearlane_contention::TaskLabel;

use crate::account::{Account, TimeKind};
use crate::costs::times;
use crate::entries::{LEADER, Message, Work};
use crate::era::{self, ReadMode, background};
use crate::link::Link;
use crate::lock::Lock;
use crate::model::{Connect, Model};
use crate::progress::Progress;
use crate::requests::{Range, Request, ServeOutcome, Write};
use crate::results::ClassResults;
use crate::scenario::{Scenario, mean_record_bytes};
use crate::server::{Build, Member, MemberConfig, MemberTasks};
use crate::signal::Signal;
use crate::sim_task::{SimTask, TimeAccount};
use crate::spread::Times;
use crate::timeline::LaneKind;
use crate::{Rng, World};

/// A long response is sent in pieces of this size.
const PIECE_BYTES: u64 = 4 << 20;

/// Random purposes of links begin here; those of members are below.
const LINKS: u64 = 1 << 32;

#[derive(Clone)]
pub struct Cluster(Rc<Inner>);

struct Inner {
    world: World,
    build: Rc<Build>,
    model: Rc<Model>,
    members: Vec<Member>,
    /// From each member to each; those between two followers are not used.
    links: Vec<Link<Message>>,
    progress: Progress,
    quorum: TimeKind,
    /// The member for the next request of [`Connect::Spread`].
    next: Cell<usize>,
    jobs: RefCell<Vec<ClassResults>>,
    keys: u64,
    record_bytes: u64,
    seed: u64,
    ends_ns: u64,
}

/// A thread that computes for a request beside the request's own.
struct Alongside {
    name: TimeKind,
    time_account: TimeAccount,
    done: Signal,
}

impl Alongside {
    async fn wait(self, trip: &mut SimTask) {
        trip.worker(self.name, &self.time_account, &self.done).await;
    }
}

impl Cluster {
    pub fn start(world: &World, scenario: &Scenario, build: &Build) -> Cluster {
        let (build, model) = (Rc::new(build.clone()), Rc::new(scenario.model.clone()));
        let count = model.members + model.learners;
        let Scenario { cores, seed, .. } = *scenario;
        let quantum_ns = build.costs.quantum_ns;
        let (mut members, mut all_hands) = (Vec::new(), Vec::new());
        for place in 0..count {
            let applies = model.is_used(place);
            let place = MemberConfig { index: place, applies, cores, quantum_ns, seed };
            let (member, hands) = Member::new(world, place, &build, &model);
            members.push(member);
            all_hands.push(hands);
        }
        let link = |number: usize| {
            let spread = model.round_trip(number / count, number % count);
            let chance = Rng::new(seed, LINKS + number as u64);
            Link::new(world, Times::new(spread, chance))
        };
        let cluster = Cluster(Rc::new(Inner {
            world: world.clone(),
            progress: Progress::new(model.members),
            quorum: TimeKind::named(world, "a quorum"),
            links: (0..count * count).map(link).collect(),
            next: Cell::new(0),
            jobs: RefCell::default(),
            keys: scenario.workload.space.count,
            seed,
            ends_ns: scenario.workload.seconds * 1_000_000_000,
            record_bytes: mean_record_bytes(&scenario.workload.space),
            build,
            model,
            members,
        }));
        for (place, hands) in all_hands.into_iter().enumerate() {
            cluster.sets_to_work(place, hands);
        }
        cluster
    }

    fn sets_to_work(&self, place: usize, hands: MemberTasks) {
        let MemberTasks { log, applier, reads, commits } = hands;
        let (world, own) = (self.world(), || self.clone());
        if place == LEADER {
            world.spawn(own().leads_the_log(log));
        } else {
            world.spawn(own().follows_the_log(place, log));
            world.spawn(own().delivers(LEADER, place));
            world.spawn(own().delivers(place, LEADER));
        }
        if self.member(place).applies {
            world.spawn(own().applies(place, applier));
            world.spawn(own().confirms_reads(place, reads));
            world.spawn(own().commits(place, commits));
        }
        if place == LEADER {
            self.works_in_the_background();
        }
    }

    pub(crate) fn world(&self) -> &World {
        &self.0.world
    }

    pub(crate) fn model(&self) -> &Model {
        &self.0.model
    }

    pub(crate) fn member(&self, place: usize) -> &Member {
        &self.0.members[place]
    }

    /// Voters and learners.
    pub(crate) fn members(&self) -> usize {
        self.0.members.len()
    }

    pub(crate) fn voters(&self) -> usize {
        self.model().members
    }

    pub(crate) fn link(&self, from: usize, to: usize) -> &Link<Message> {
        &self.0.links[from * self.members() + to]
    }

    pub(crate) fn keys(&self) -> u64 {
        self.0.keys
    }

    /// Mean size.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.0.record_bytes
    }

    pub(crate) fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Whether the workload's time is over, so that no background work begins.
    pub(crate) fn is_over(&self) -> bool {
        self.world().now_ns() >= self.0.ends_ns
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.0.progress
    }

    /// What the wait for a quorum is booked on if no cause is known.
    pub(crate) fn quorum(&self) -> TimeKind {
        self.0.quorum
    }

    /// By member.
    pub fn locks(&self) -> impl Iterator<Item = [&Lock; 6]> {
        self.0.members.iter().map(|member| member.locks.all())
    }

    /// The largest gap between committed and applied entries that a member has had.
    pub fn gap_max(&self) -> u64 {
        self.0.members.iter().map(|member| member.gap_max.get()).max().unwrap_or(0)
    }

    /// By member.
    pub fn used_ns(&self) -> Vec<u64> {
        self.0.members.iter().map(|member| member.cores.used_ns()).collect()
    }

    pub(crate) fn did(&self, job: &str, took_ns: u64, account: Account) {
        let mut jobs = self.0.jobs.borrow_mut();
        let at = jobs.iter().position(|known| known.name == job).unwrap_or_else(|| {
            jobs.push(ClassResults::new(job));
            jobs.len() - 1
        });
        jobs[at].due += 1;
        jobs[at].answered(took_ns, account);
    }

    pub fn jobs(&self) -> Vec<ClassResults> {
        self.0.jobs.take()
    }

    pub(crate) fn member_index(&self, connect: Connect) -> usize {
        match connect {
            Connect::Leader => LEADER,
            Connect::Member(number) => number - 1,
            Connect::Spread => {
                let place = self.0.next.get();
                self.0.next.set((place + 1) % self.voters());
                place
            }
        }
    }

    /// Returns the latency and its account, too.
    pub async fn serve(
        &self,
        connect: Connect,
        class: TaskLabel,
        request: Request,
    ) -> (ServeOutcome, u64, Account) {
        let kind = match request {
            Request::Range { .. } => LaneKind::Read,
            Request::Write { .. } => LaneKind::Write,
        };
        let place = self.member_index(connect);
        let mut trip = SimTask::with_kind(self.world(), &self.member(place).cores, class, kind);
        self.receive(place, &mut trip).await;
        let outcome = match request {
            Request::Range { keys, sent, record_bytes, serializable } => {
                let range = Range { keys, sent, record_bytes };
                self.range(place, &mut trip, range, serializable).await;
                ServeOutcome::Answered
            }
            Request::Write { keys, record_bytes } => {
                self.write(place, &mut trip, Write { keys, record_bytes }).await
            }
        };
        self.send_response(&mut trip).await;
        let (took_ns, account) = trip.end();
        (outcome, took_ns, account)
    }

    /// From the client to the member's handler.
    pub(crate) async fn receive(&self, place: usize, trip: &mut SimTask) {
        let (costs, model) = (&self.0.build.costs, self.model());
        let member = self.member(place);
        trip.finds_idle(member.cores.idle_ns());
        trip.wakes(member.awake_ns(), costs.wakeups_ns, costs.doze_ns).await;
        if model.client_round_trip_ns > 0 {
            trip.network(model.client_round_trip_ns / 2).await;
        }
        // Two runs, since a thread of the client and one of the server need a core each.
        trip.run(self.client_ns() / 2).await;
        trip.run(costs.request_ns / 2).await;
    }

    /// 0 if clients have machines of their own.
    fn client_ns(&self) -> u64 {
        if self.model().clients_apart { 0 } else { self.0.build.costs.client_ns }
    }

    pub(crate) async fn send_response(&self, trip: &mut SimTask) {
        trip.run(self.0.build.costs.request_ns.div_ceil(2)).await;
        trip.run(self.client_ns().div_ceil(2)).await;
        if self.model().client_round_trip_ns > 0 {
            trip.network(self.model().client_round_trip_ns / 2).await;
        }
    }

    async fn range(&self, place: usize, trip: &mut SimTask, range: Range, serializable: bool) {
        let member = self.member(place);
        let its_era = member.build.era;
        if !serializable && era::read_mode(its_era) == ReadMode::Log {
            self.proposes(place, trip, Work::Read(range)).await;
            return self.sends(place, trip, range).await;
        }
        if !serializable {
            self.confirm_read(place, trip).await;
        }
        self.checks_permission(member, trip).await;
        if era::reads_in_the_pool(its_era, range) {
            let costs = &member.build.costs;
            trip.waits_for_threads(costs.pool_wakeups_ns).await;
            trip.run(costs.pool_ns).await;
        }
        if era::reads_in_pieces(its_era) && range.is_long() {
            return self.in_pieces(place, trip, range, true).await;
        }
        era::range(member, trip, range).await;
        self.sends(place, trip, range).await;
    }

    /// CPU time of sending and of receiving; the second is 0 if clients have machines of their own.
    fn sending_ns(&self, range: Range) -> (u64, u64) {
        let (costs, bytes) = (&self.0.build.costs, range.bytes());
        let sent_ns = costs.sent_record_ns * range.sent + times(bytes, costs.sent_byte_ns);
        let received_ns = if self.model().clients_apart { 0.0 } else { costs.received_byte_ns };
        (sent_ns, times(bytes, received_ns))
    }

    async fn sends(&self, place: usize, trip: &mut SimTask, range: Range) {
        if range.is_long() {
            return self.in_pieces(place, trip, range, false).await;
        }
        let (sent_ns, received_ns) = self.sending_ns(range);
        trip.run(sent_ns + received_ns).await;
    }

    /// The client receives a piece while the next one is sent; an era that reads in pieces also
    /// reads one while the last is sent. Server and client wait for each other now and then.
    async fn in_pieces(&self, place: usize, trip: &mut SimTask, range: Range, reads: bool) {
        let member = self.member(place);
        let waits_ns = member.sent_waits_ns(range.bytes()) as f64;
        let mut left = range.sent;
        while left > 0 {
            let sent = left.min((PIECE_BYTES / range.record_bytes.max(1)).max(1));
            let piece = Range { keys: sent, sent, ..range };
            let (sent_ns, received_ns) = self.sending_ns(piece);
            let taken = self.alongside(place, "its client", received_ns, false);
            if reads {
                let sending = self.alongside(place, "its sending", sent_ns, true);
                // The reading task holds no lock, and like the sending one runs at low priority.
                trip.set_runs_in_background(true);
                era::range(member, trip, piece).await;
                trip.set_runs_in_background(false);
                sending.wait(trip).await;
            } else {
                trip.run(sent_ns).await;
            }
            taken.wait(trip).await;
            trip.waits_for_threads((waits_ns * sent as f64 / range.sent as f64) as u64).await;
            left -= sent;
        }
    }

    /// Starts a computation on another thread; with `makes_way`, at low priority.
    fn alongside(&self, place: usize, name: &'static str, ns: u64, makes_way: bool) -> Alongside {
        let (world, cores) = (self.world(), &self.member(place).cores);
        let mut its = SimTask::new(world, cores, TaskLabel::named(name));
        its.set_runs_in_background(makes_way);
        let done = Signal::new(world);
        let beside = Alongside {
            name: TimeKind::named(world, name),
            time_account: its.time_account(),
            done: done.clone(),
        };
        world.spawn(async move {
            its.run(ns).await;
            done.set();
        });
        beside
    }

    async fn write(&self, place: usize, trip: &mut SimTask, write: Write) -> ServeOutcome {
        let member = self.member(place);
        if member.committed.get() - member.applied.get() > self.model().apply_gap_max {
            return ServeOutcome::Rejected;
        }
        self.proposes(place, trip, Work::Write(write)).await;
        ServeOutcome::Answered
    }

    async fn applies(self, place: usize, mut trip: SimTask) {
        let member = self.member(place);
        loop {
            for batch in member.applier.queue.drain().await {
                for entry in &batch.entries {
                    let gap = member.committed.get() - member.applied.get();
                    member.gap_max.set(member.gap_max.get().max(gap));
                    trip.set_label(entry.actor);
                    self.apply(place, &mut trip, entry.work).await;
                    let applied = member.applied.get() + 1;
                    member.applied.set(applied);
                    if entry.ticket.member == place {
                        entry.ticket.done.set();
                    }
                    let readers = member.waiting_for_applied.borrow_mut().remove(&applied);
                    if let Some(readers) = readers {
                        readers.set();
                    }
                    self.after(member, &mut trip, entry.work, applied).await;
                }
            }
        }
    }

    async fn apply(&self, place: usize, trip: &mut SimTask, work: Work) {
        let member = self.member(place);
        match work {
            Work::Write(write) => {
                self.checks_permission(member, trip).await;
                era::write(member, trip, write).await;
            }
            Work::Read(range) => {
                self.checks_permission(member, trip).await;
                era::range(member, trip, range).await;
            }
            Work::Compact => {
                background::begins_compaction(member, trip).await;
                self.world().spawn(self.clone().compacts(place));
            }
            Work::Token => {}
        }
    }

    /// What the applier does after the response to the writer.
    async fn after(&self, member: &Member, trip: &mut SimTask, work: Work, applied: u64) {
        if let Work::Write(write) = work {
            background::tells_watchers_behind(member, trip, write).await;
        }
        let by_default = background::snapshot_count(member.build.era);
        let count = self.model().snapshot_count.unwrap_or(by_default);
        if count > 0 && applied.is_multiple_of(count) {
            trip.set_label(TaskLabel::named("snapshot"));
            background::disk_snapshot(member, trip).await;
        }
    }

    async fn checks_permission(&self, member: &Member, trip: &mut SimTask) {
        if self.model().auth.enabled {
            background::permits(member, trip).await;
        }
    }

    async fn commits(self, place: usize, mut trip: SimTask) {
        let member = self.member(place);
        loop {
            self.world().sleep(self.model().commit_interval_ns).await;
            era::commit(member, &mut trip).await;
        }
    }

    async fn delivers(self, from: usize, to: usize) {
        let link = self.link(from, to);
        loop {
            for (arrives_ns, message) in link.drain().await {
                self.world().sleep_until(arrives_ns).await;
                match message {
                    Message::Append(batch) => self.arrives(to, batch),
                    Message::Appended { batch, path } => self.hears_of(from, &batch, path),
                    Message::Committed(committed) => {
                        self.member(to).committed.set(committed);
                        self.hands_over(to);
                    }
                    Message::Heartbeat(round) => self.follows(to, round).await,
                    Message::Follows { round, path } => self.is_followed(&round, path),
                }
            }
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("members", &self.members()).finish_non_exhaustive()
    }
}
