//! One member, as a state machine: what comes in, in what order it is done, and what goes out.
//!
//! # The idea
//!
//! A member is raft, a log, a store and those who wait. Each of the four is a state machine of a
//! crate below; what is left to say is in which order they take their turns. [`Core`] says it, and
//! nothing else: it starts no thread, reads no clock, opens no socket, and writes the log only by
//! giving away what is to be written. The server runs it on a thread between its sockets and its
//! disk, the deterministic cluster runs it between simulated ones, and both run the same lines.
//!
//! ```text
//!              messages, ticks     proposals        readers
//!                     │                │               │
//!               ┌─────▼────────────────▼───────────────▼─────────────┐
//!               │  driver (raft) ──── committed ───▶ apply ──▶ store │
//!               │     │    ▲                           │             │
//!               │   append │ persisted                 │ applied     │
//!               │     ▼    │                           ▼             │
//!               │   queue ─┘                        barrier          │
//!               └─────┬────────────────┬───────────────┬─────────────┘
//!                     ▼                ▼               ▼
//!               log and its sync    answers      readers who may go       messages, copies
//! ```
//!
//! Inputs are methods, and they only take note. [`poll`](Core::poll) does the work and returns what
//! the owner has to do. After each batch of inputs comes a poll, and another at
//! [`next_poll`](Core::next_poll) if nothing happens before.
//!
//! # The way of a write
//!
//! 1. [`propose`](Core::propose) gives the request an id and hands it to raft, which forwards it to
//!    the leader if that is another member.
//! 2. The leader appends it and sends it to the others in the same breath: its own sync and theirs
//!    run side by side.
//! 3. Once a quorum has it on disk it is committed, and each member applies it, in order.
//! 4. The member at which it was proposed finds the id among those who wait, and answers.
//!
//! # The way of a linearizable read
//!
//! [`read`](Core::read) adds a reader to the barrier ([`clearlane_read_index`]), which finds out how
//! much this member must have applied. When it has, the reader's name comes out among
//! [`Outputs::reads`], and whoever holds the reader opens a view of the [`store`](Core::store). The
//! core reads nothing for anybody.
//!
//! # Applied, and durable
//!
//! What is applied can be read and answered although the store commits to disk only now and then.
//! If power fails, the rest is applied again from the log. So the log is kept from the *durable*
//! position on, which the engine itself tells: whoever runs the store's commits says so by
//! [`store_committed`](Core::store_committed), and the core looks what the engine has. When that has
//! come `snapshot_count` entries further, or `snapshot_bytes`, it is recorded in the log, and once the
//! record is on disk everything below may go, but for some entries that are kept for members that are a
//! little behind.
//!
//! # A member that is too far behind
//!
//! It gets a copy of the store. See [`copies`](crate::copies) for how it travels. Here it arrives
//! whole, is offered to raft, and if raft takes it: (1) the log gets a record of the copy's position,
//! (2) the copy takes the store's place, (3) raft goes on behind it. A crash before (1) leaves
//! the old store, one behind it is finished at the next start.
//!
//! # Invariants
//!
//! * A message that speaks of something leaves after that is on disk (the driver sees to it).
//! * A write is answered after this member has applied it. Before, a quorum has synced it.
//! * Entries are applied in order, each once: one that is not the next stops the member.
//! * Nothing in the log is let go of that the durable store does not have.
//! * A member that has been running before grants no vote until an election time-out has passed.
//!   What it had promised to a leader's lease was in memory only.

mod alone;
mod apply;
#[cfg(feature = "planted-bugs")]
mod bugs;
mod leases;
mod outputs;
mod own_alarm;
mod queue;
mod slow;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_engine::Engine;
use clearlane_lease::Lessor;
use clearlane_mvcc::{CompactionJob, Store};
use clearlane_proto::etcdserverpb::{InternalRaftRequest, RangeRequest, RequestHeader};
use clearlane_raft_log::Metadata;
use clearlane_raft_log::driver::{self, Driver, Effects, Leadership, Message, Role};
use clearlane_raft_log::wal::group::Written;
use clearlane_read_index::{self as read_index, Action, Event, Figures, ReadBarrier, RequestIds};
use prost::Message as _;

pub use self::alone::force_alone;
#[cfg(feature = "planted-bugs")]
pub use self::bugs::Bug;
pub use self::outputs::{Answer, Outputs, Reads};
use self::own_alarm::ProposedAlarm;
use self::queue::{Behind, Queue};
pub use self::slow::{Slow, Stopwatch};
pub use self::start::{Compactions, Ground, Settings, bootstrap, start};
use crate::alarms::Alarms;
use crate::copies::Received;
use crate::error::Result;
use crate::membership::{self, Change, Members};
use crate::progress::Progress;

/// About so many entries are applied in one poll: nobody hears of this member meanwhile.
const APPLIED_MAX: u64 = 4096;
/// So many committed entries may wait to be applied. Who proposes more is told to come later: etcd's.
const APPLY_GAP_MAX: u64 = 5000;

/// One member.
#[derive(Debug)]
pub struct Core {
    metadata: Metadata,
    settings: Settings,
    ground: Ground,
    driver: Driver,
    queue: Queue,
    engine: Arc<dyn Engine>,
    store: Arc<dyn Store<Progress>>,
    members: Arc<Members>,
    /// Shared, like the members: they seldom change, and those who look do so at any time.
    alarms: Arc<Alarms>,
    leases: Arc<Lessor>,
    /// The term in which this member has begun the leases' time, while it leads.
    leases_in: Option<u64>,
    /// Leases that ran out while this member led.
    leases_expired: u64,
    /// What the last poll was told.
    now: Duration,
    /// What is applied. The store says the same of its newest state.
    progress: Progress,
    barrier: Box<dyn ReadBarrier<u64>>,
    ids: RequestIds,
    /// Proposals of this member that are not applied yet, and whose answer is waited for.
    proposed: BTreeSet<u64>,
    proposed_alarm: Option<ProposedAlarm>,
    /// What the barrier and the outputs were told last.
    told: Told,
    /// Up to where readers must see, and since when that is known, where it is not applied yet.
    known: BTreeMap<u64, Duration>,
    /// Ticks until this member may vote for somebody.
    silent_ticks: usize,
    /// The last position that the log has on record.
    recorded: u64,
    /// Bytes of the entries that were applied since.
    unrecorded_bytes: u64,
    /// The log has grown so long that a commit of the store was asked for.
    wants_commit: bool,
    /// Copies that raft was offered, by index.
    offered: BTreeSet<u64>,
    /// From which index on each member that is being sent a copy will go on.
    copying: BTreeMap<u64, u64>,
    /// What has gathered since the last poll.
    out: Outputs,
    #[cfg(feature = "planted-bugs")]
    planted: bugs::Planted,
}

#[derive(Debug, Default)]
struct Told {
    transferee: Option<u64>,
    committed: u64,
}

/// Why members cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The members do not allow it.
    #[error(transparent)]
    Refused(#[from] membership::Refused),
    /// Raft does not take it now.
    #[error(transparent)]
    Raft(#[from] driver::Error),
    /// Only the leader knows whether it may be: ask him.
    #[error("etcdserver: not leader")]
    NotLeader,
}

impl Core {
    /// A tick of the clock has passed.
    pub fn tick(&mut self) {
        self.silent_ticks = self.silent_ticks.saturating_sub(1);
        // It may end a transfer, and the lease must go although nobody has polled meanwhile.
        self.tell_of_transfer();
        self.driver.tick();
    }

    /// A message has come from another member. An error says that raft cannot use it, and nothing
    /// has changed.
    pub fn receive(&mut self, message: Message) -> driver::Result<()> {
        if self.silent_ticks > 0 && message.asks_for_a_vote() {
            return Ok(());
        }
        if message.is_snapshot() {
            // Raft would take it, and there would be nothing to install.
            return Err(driver::Error::Message(format!(
                "{message}: its copy did not come with it"
            )));
        }
        self.driver.step(message)
    }

    /// Proposes a request, which was [checked](crate::requests::check()). Its answer comes out under
    /// the id that is returned, or never, if the proposal gets lost: who waits has a time-out, and
    /// then [gives up](Core::give_up).
    pub fn propose(&mut self, mut request: InternalRaftRequest) -> driver::Result<u64> {
        if self.driver.committed().saturating_sub(self.progress.index) > APPLY_GAP_MAX {
            return Err(driver::Error::QueueFull);
        }
        self.name_lease(&mut request);
        let id = self.ids.next();
        request.header.get_or_insert_default().id = id;
        self.driver.propose(request.encode_to_vec().into())?;
        self.proposed.insert(id);
        Ok(id)
    }

    /// Whether a proposal would be taken now, here or by the leader to whom it is forwarded.
    pub fn takes_proposals(&self) -> bool {
        self.driver.leadership().leader != 0 && self.driver.transferee().is_none()
    }

    /// Proposes anew what another member has forwarded to this one, because it has led a moment ago. Who
    /// has proposed it waits for its answer there.
    pub fn pass_on(&mut self, proposal: &Message) -> driver::Result<()> {
        self.driver.pass_on(proposal)
    }

    /// The id of a proposal, and whether this member has made it.
    pub fn proposal_id(&self, message: &Message) -> Option<(u64, bool)> {
        let (kind, data) = message.proposed().pop()?;
        let id = start::id_of(kind, data)?;
        Some((id, self.ids.may_be_own(id)))
    }

    /// Proposes a change of members. It is checked here, and again when it is applied.
    pub fn change_members(&mut self, change: &Change) -> std::result::Result<u64, ChangeError> {
        let id = self.ids.next();
        let change = change.to_conf_change(id);
        self.members.check(&change)?;
        self.driver.propose_change(change.encode().into())?;
        self.proposed.insert(id);
        Ok(id)
    }

    /// Nobody waits for this answer any more.
    pub fn give_up(&mut self, id: u64) {
        self.proposed.remove(&id);
    }

    /// A reader comes. Its name must not be that of another who waits.
    pub fn read(&mut self, reader: u64) -> read_index::Result<()> {
        self.barrier.read(reader)
    }

    /// A reader gives up. Says whether it was still waiting.
    pub fn cancel_read(&mut self, reader: u64) -> bool {
        self.barrier.cancel(reader)
    }

    /// Wants to lead, without waiting for the time-out: for one who is the only voter.
    pub fn campaign(&mut self) {
        self.driver.campaign();
    }

    /// Hands leadership to another member, if it votes and this one leads.
    pub fn transfer_leader(&mut self, to: u64) {
        self.driver.transfer_leader(to);
    }

    /// A message to a member could not be sent.
    pub fn unreachable(&mut self, id: u64) {
        self.driver.unreachable(id);
    }

    /// What has become of [`Outputs::write`].
    pub fn written(&mut self, written: Written) -> Result<()> {
        for behind in self.queue.finish(written)? {
            match behind {
                Behind::Appended(number) => self.driver.persisted(number)?,
                Behind::Installed { number, position } => {
                    self.install(&position)?;
                    self.driver.persisted(number)?;
                    self.barrier.hear(Event::Applied { index: position.index });
                }
                Behind::Recorded(position) => {
                    let kept = position.index.saturating_sub(self.settings.catch_up_entries);
                    let bytes = self.settings.catch_up_bytes;
                    let kept = kept.max(self.driver.beyond_bytes(position.index, bytes));
                    let wanted = self.copying.values().copied().min().unwrap_or(u64::MAX);
                    self.driver.release(kept.min(wanted));
                    self.out.purge = Some(position.index);
                }
            }
        }
        Ok(())
    }

    /// Somebody has committed the store: more of it may be durable.
    pub fn store_committed(&mut self) -> Result<()> {
        self.wants_commit = false;
        // What is on its way out need not be recorded any more.
        if self.queue.installs().next().is_some() {
            return Ok(());
        }
        let durable = self.durable()?;
        self.driver.durable(durable.position())?;
        if durable.index > self.recorded && self.log_is_long(durable.index) {
            self.recorded = durable.index;
            self.unrecorded_bytes = 0;
            self.queue.record(durable.position())?;
        }
        Ok(())
    }

    /// Whether the log should be shortened at this index.
    fn log_is_long(&self, index: u64) -> bool {
        let entries = index - self.recorded.min(index);
        entries >= self.settings.snapshot_count
            || self.unrecorded_bytes >= self.settings.snapshot_bytes
    }

    /// Bytes of the log that the durable store does not have.
    pub fn bytes_to_apply_again(&self) -> u64 {
        self.driver.bytes_to_apply_again()
    }

    fn durable(&self) -> Result<Progress> {
        #[cfg(feature = "planted-bugs")]
        if self.has(Bug::ReleaseByApplied) {
            return Ok(self.progress.clone());
        }
        Progress::read(&*self.engine.snapshot()?)
    }

    /// A copy of another member's store is here, whole.
    pub fn copy_received(&mut self, copy: Received) -> Result<()> {
        let index = copy.index;
        if !self.ground.vault.kept()?.contains(&index) {
            // Another of the same index was refused or installed, and they were one in the vault.
            // Raft must not take what is not there: its record in the log could not be undone.
            return Ok(());
        }
        self.offered.insert(index);
        match self.driver.step(copy.message) {
            Ok(()) => Ok(()),
            Err(error @ driver::Error::Stopped(_)) => Err(error.into()),
            Err(_) => self.drop_copy(index),
        }
    }

    fn drop_copy(&mut self, index: u64) -> Result<()> {
        self.offered.remove(&index);
        // One of the same index may have come before, which raft has taken.
        if !self.queue.installs().any(|installed| installed == index) {
            self.ground.vault.discard(index)?;
        }
        Ok(())
    }

    /// A copy has arrived at another member, or has not.
    pub fn copy_sent(&mut self, to: u64, arrived: bool) {
        self.copying.remove(&to);
        self.driver.snapshot_sent(to, arrived);
    }

    /// Does what there is to do, and says what the owner has to do now. `now` counts from any fixed
    /// moment, on a clock that goes forward; it is looked up after the last input and before this
    /// call. After an error the process stops.
    pub fn poll(&mut self, now: Duration) -> Result<Outputs> {
        self.now = now;
        // An entry that removes the new leader ends the transfer.
        self.tell_of_transfer();
        let enough = self.progress.index + APPLIED_MAX;
        loop {
            while self.progress.index < enough
                && let Some(effects) = self.driver.effects()
            {
                self.carry_out(effects)?;
            }
            self.tell_barrier();
            let asked = self.act(now);
            if !self.propose_due() && !asked {
                break;
            }
        }
        self.out.is_more = self.progress.index >= enough;
        for refused in std::mem::take(&mut self.offered) {
            self.drop_copy(refused)?;
        }
        self.out.write = self.queue.begin();
        Ok(std::mem::take(&mut self.out))
    }

    /// When to poll again if nothing happens before.
    pub fn next_poll(&self) -> Option<Duration> {
        self.barrier.next_poll().into_iter().chain(self.next_lease()).min()
    }

    fn carry_out(&mut self, effects: Effects) -> Result<()> {
        let Effects { append, send, committed, reads, leadership } = effects;
        if let Some(now) = leadership {
            self.leadership_is(now);
        }
        for message in send {
            match message.is_snapshot() {
                true => {
                    self.copying.insert(message.to(), message.position().index);
                    self.out.copies.push(message);
                }
                false => self.out.send.push(message),
            }
        }
        if let Some(append) = append {
            self.append(append)?;
        }
        for read in reads {
            if let Ok(context) = <[u8; 8]>::try_from(&read.context[..]) {
                let context = u64::from_be_bytes(context);
                #[cfg(feature = "planted-bugs")]
                let context = self.spoil_answer(context);
                if read.index > self.progress.index {
                    self.known.entry(read.index).or_insert(self.now);
                }
                self.barrier.hear(Event::Answered { context, index: read.index });
            }
        }
        self.apply(committed)
    }

    fn append(&mut self, append: driver::Append) -> Result<()> {
        if let Some(position) = &append.install {
            self.offered.remove(&position.index);
        }
        #[cfg(feature = "planted-bugs")]
        let append = self.spoil(append)?;
        Ok(self.queue.append(append)?)
    }

    fn leadership_is(&mut self, now: Leadership) {
        let leader = (now.leader != 0).then_some(now.leader);
        self.barrier.hear(Event::Leader { leader, term: now.term });
        self.told.transferee = None;
        self.lead_leases(now);
        self.out.leadership = Some(now);
        if now.role != Role::Leader {
            // Who was sent a copy by this member is another's to look after.
            self.copying.clear();
        }
    }

    fn tell_of_transfer(&mut self) {
        let transferee = self.driver.transferee();
        if transferee != self.told.transferee {
            self.told.transferee = transferee;
            if transferee.is_some() && !self.keeps_lease() {
                self.barrier.hear(Event::TransferBegan);
            }
        }
    }

    /// What raft does not report by itself.
    fn tell_barrier(&mut self) {
        self.tell_of_transfer();
        let committed = self.driver.committed();
        if committed > self.told.committed {
            self.told.committed = committed;
            self.barrier.hear(Event::Committed { index: committed });
        }
    }

    /// Carries out what the barrier wants. Says whether raft has something to do now.
    fn act(&mut self, now: Duration) -> bool {
        let mut asked = false;
        for action in self.barrier.poll(now, &mut self.ids) {
            match action {
                Action::Ask { context, .. } => {
                    self.ask(context);
                    asked = true;
                }
                Action::Propose { context, .. } => {
                    // Lost or refused: the barrier's time-out sees to it.
                    let _ = self.driver.propose(log_read(context));
                    asked = true;
                }
                Action::Go { index, readers } => {
                    let later = self.known.split_off(&(index + 1));
                    let known = std::mem::replace(&mut self.known, later);
                    self.out.known_at = known.into_values().chain(self.out.known_at).min();
                    self.out.reads.push(Reads::Go(readers));
                }
                Action::Fail { error, readers } => {
                    self.out.reads.push(Reads::Fail(error, readers));
                }
            }
        }
        asked
    }

    fn ask(&mut self, context: u64) {
        #[cfg(feature = "planted-bugs")]
        let Some(context) = self.spoil_question(context) else { return };
        // Refused or forgotten by raft: the barrier asks again.
        let _ = self.driver.read_index(context.to_be_bytes().to_vec());
    }

    #[cfg(not(feature = "planted-bugs"))]
    fn keeps_lease(&self) -> bool {
        false
    }

    /// This member and its cluster.
    pub fn metadata(&self) -> Metadata {
        self.metadata
    }

    /// The store. It is another one after [`Outputs::store_replaced`].
    pub fn store(&self) -> &Arc<dyn Store<Progress>> {
        &self.store
    }

    /// The engine below the store.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// What is applied.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Who leads, as far as this member knows.
    pub fn leadership(&self) -> Leadership {
        self.driver.leadership()
    }

    /// Whether this member leads, nobody else votes, an entry of its term is applied, and with it all that is
    /// committed: others have heard of that, and may have acknowledged it, those who have just been removed
    /// among them. Then all that was ever acknowledged is applied here, and nobody can be elected before this
    /// member has let go.
    pub fn is_alone(&self) -> bool {
        let (leadership, members) = (self.driver.leadership(), &self.progress.members);
        leadership.role == Role::Leader
            && leadership.term == self.progress.term
            && self.driver.committed() == self.progress.index
            && members.voters == [self.metadata.node_id]
            && members.voters_outgoing.is_empty()
    }

    /// Who is a member, as far as this member has applied the log.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Which alarms are raised, as far as this member has applied the log.
    pub fn alarms(&self) -> &Arc<Alarms> {
        &self.alarms
    }

    /// The leases, as far as this member has applied the log.
    pub fn leases(&self) -> &Arc<Lessor> {
        &self.leases
    }

    /// Up to where the log is committed, as far as this member knows.
    pub fn committed(&self) -> u64 {
        self.driver.committed()
    }

    /// How far each other member's log is known to agree with this leader's.
    pub fn matched(&self) -> Vec<(u64, u64)> {
        self.driver.matched()
    }

    /// The first and the last entry that are kept in memory.
    pub fn kept(&self) -> (u64, u64) {
        self.driver.kept()
    }

    /// What the barrier has done so far.
    pub fn read_figures(&self) -> Figures {
        self.barrier.figures()
    }
}

/// The entry of a read in mode `log`: a range over nothing, which changes nothing.
fn log_read(id: u64) -> Bytes {
    let header = Some(RequestHeader { id, ..RequestHeader::default() });
    let range = Some(RangeRequest::default());
    InternalRaftRequest { header, range, ..InternalRaftRequest::default() }.encode_to_vec().into()
}

/// Jobs that a crash has interrupted go on.
fn resumed(job: Option<CompactionJob>) -> Vec<CompactionJob> {
    job.into_iter().collect()
}
