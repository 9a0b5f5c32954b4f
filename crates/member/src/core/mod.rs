//! One member, as two state machines: the raft half and the apply half.
//!
//! [`Core`] is what the raft loop drives: raft, the write-ahead log's queue, reads, proposals. [`Applier`] is
//! what the apply loop drives: it turns committed entries into states of the store. They talk by [`ToApply`]
//! and [`Applied`], in order. Neither starts a thread, reads a clock or opens a file but the store's: the
//! server runs them on threads, the simulated cluster as steps in any order that threads allow.
//!
//! * A message that speaks of something leaves after that is on disk (the driver sees to it).
//! * A write is answered after this member has applied it. Before, a quorum has synced it.
//! * Entries are applied in order, each once: one that is not the next stops the member.
//! * Nothing in the log is let go of that the durable store does not have.
//!
//! etcd's counterparts are `raftNode.start` and `EtcdServer.applyAll`. The story is told in
//! `docs/raft-and-apply.md`.

mod alone;
mod applier;
mod apply;
#[cfg(feature = "planted-bugs")]
mod bugs;
#[cfg(not(feature = "planted-bugs"))]
#[path = "no_bugs.rs"]
mod bugs;
mod handover;
mod input;
mod leases;
mod outputs;
mod own_alarm;
mod request_queue;
mod sole_voter;
mod wal_pipeline;
mod slow;
mod start;
mod unproposed;
mod wait;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_lease::Lessor;
use clearlane_proto::etcdserverpb::{InternalRaftRequest, RangeRequest, RequestHeader};
use clearlane_raft_log::driver::{self, Driver, Effects, Leadership, Message, Role};
use clearlane_raft_log::wal::group::Written;
use clearlane_raft_log::{ConfState, Entry, EntryKind, Metadata, Position};
use clearlane_read_index::{Action, Event, Figures, ReadBarrier, RequestIds};
use prost::Message as _;

pub use self::alone::force_alone;
pub use self::applier::Applier;
#[cfg(feature = "planted-bugs")]
pub use self::bugs::Bug;
pub use self::handover::{Applied, AppliedChange, ToApply};
pub use self::input::Input;
pub use self::outputs::{
    Answer, ApplyEffects, ApplyOutputs, Completions, NewStore, Outputs, RaftEffects,
};
use self::own_alarm::ProposedAlarm;
pub use self::request_queue::{NEVER, Outcome, ROUND, RequestId, RequestQueue};
pub use self::slow::{Slow, Stopwatch};
use self::sole_voter::SoleVoter;
pub use self::start::{Compactions, Ground, Settings, bootstrap, start};
use self::unproposed::{Proposal, Unproposed};
pub use self::wait::Wait;
use self::wal_pipeline::{AfterSync, WalPipeline};
use crate::alarms::Alarms;
use crate::copies::{Received, Vault};
use crate::error::{Error, Result};
use crate::membership::{self, Members};
use crate::progress::Progress;

/// Committed entries that may wait to be applied. More proposals are refused: etcd's number.
const APPLY_GAP_MAX: u64 = 5000;
/// Ticks for which a member goes on that was removed: its last messages tell the others that the removal is
/// committed. If it led one other voter, that one has no quorum until it hears so.
const LAST_TICKS: usize = 10;
/// Bytes of committed entries that may wait to be applied. A leader takes no more proposals, and a follower no more
/// entries from its leader, which sends them again.
const APPLY_BYTES_MAX: u64 = 256 << 20;

/// The raft half of a member.
#[derive(Debug)]
pub struct Core {
    metadata: Metadata,
    settings: Settings,
    vault: Arc<dyn Vault>,
    driver: Driver,
    log: WalPipeline,
    /// As far as the apply loop has said.
    applied: (u64, u64),
    /// Raft's members.
    voting: ConfState,
    members: Arc<Members>,
    alarms: Arc<Alarms>,
    leases: Arc<Lessor>,
    /// The term in which this member has begun the leases' time, while it leads.
    leases_in: Option<u64>,
    /// Leases that ran out while this member led.
    leases_expired: u64,
    /// What the last poll was told.
    now: Duration,
    barrier: Box<dyn ReadBarrier<RequestId>>,
    ids: RequestIds,
    wait: Arc<Wait>,
    unproposed: Unproposed,
    proposed_alarm: Option<ProposedAlarm>,
    sole_voter: SoleVoter,
    /// What the barrier and the outputs were told last.
    told: Told,
    /// Up to where readers must see, and since when that is known, where it is not applied yet.
    known: BTreeMap<u64, Duration>,
    /// Ticks until this member may vote for another.
    silent_ticks: usize,
    /// This member was removed, and stops after so many ticks.
    last_ticks: Option<usize>,
    /// The last position that the log has on record.
    recorded: u64,
    /// Bytes of the entries that were applied since.
    unrecorded_bytes: u64,
    /// The log has grown so long that a commit of the store was asked for.
    wants_commit: bool,
    /// What the apply loop was given: the last index of each part, and its bytes.
    unapplied: VecDeque<(u64, u64)>,
    unapplied_bytes: u64,
    /// The position of the last raft snapshot that raft has taken: what was changed before counts no more.
    snapshot_index: u64,
    /// Committed at the start, and not applied yet: then a sole voter need not wait for others to lead.
    begins_behind: Option<u64>,
    /// Copies that have come, for the next poll.
    received: Vec<Received>,
    /// Copies that raft is offered, by index.
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
    /// Only the leader knows whether it may be.
    #[error("etcdserver: not leader")]
    NotLeader,
}

impl Core {
    /// A tick of the clock has passed.
    pub fn tick(&mut self) {
        self.silent_ticks = self.silent_ticks.saturating_sub(1);
        // It may end a transfer, and the lease must go before the next poll.
        self.tell_of_transfer();
        self.driver.tick();
        if let Some(last) = &mut self.last_ticks {
            *last = last.saturating_sub(1);
            self.out.stops |= *last == 0;
        }
    }

    /// A message has come from another member. An error says that raft cannot use it, and nothing
    /// has changed.
    pub fn receive(&mut self, message: Message) -> driver::Result<()> {
        // What it had promised to a leader's lease before it was started was in memory only.
        if self.silent_ticks > 0 && message.asks_for_a_vote() {
            return Ok(());
        }
        if message.is_snapshot() {
            // Raft would take it, and there would be nothing to install.
            return Err(driver::Error::Message(format!(
                "{message}: its copy did not come with it"
            )));
        }
        let is_behind = match (message.is_append(), message.is_proposal()) {
            (true, _) => self.unapplied_bytes > APPLY_BYTES_MAX,
            (_, true) => self.apply_is_behind(),
            _ => false,
        };
        if is_behind {
            return Err(driver::Error::QueueFull);
        }
        self.driver.step(message)
    }

    /// Whether a proposal would be taken now, here or by the leader to which it is forwarded.
    pub fn takes_proposals(&self) -> bool {
        self.driver.leadership().leader != 0 && self.driver.transferee().is_none()
    }

    /// Whether so much waits for the apply loop that no more may be proposed, here or by a member that forwards.
    fn apply_is_behind(&self) -> bool {
        let gap = self.driver.committed().saturating_sub(self.applied.0);
        gap > APPLY_GAP_MAX || self.unapplied_bytes > APPLY_BYTES_MAX
    }

    /// Gives a proposal to raft. It may get lost; then its request waits until its time is over.
    fn propose(&mut self, proposal: Proposal, of: RequestId) {
        let is_late = self.apply_is_behind();
        let id = self.ids.next();
        let proposed = match proposal {
            Proposal::Request(_) if is_late => Err(driver::Error::QueueFull),
            Proposal::Request(mut request) => {
                self.name_lease(&mut request);
                request.header.get_or_insert_default().id = id;
                self.wait.register(id, of);
                self.driver.propose(request.encode_to_vec().into())
            }
            Proposal::Members(change) => {
                self.wait.register(id, of);
                self.driver.propose_change(change.to_conf_change(id).encode().into())
            }
        };
        #[cfg(feature = "planted-bugs")]
        self.out.proposed.push((of, id));
        if let Err(error) = proposed {
            self.wait.give_up(of);
            self.complete(of, Outcome::NotProposed(error));
        }
    }

    /// Proposes what has waited for a leader. Says whether it has proposed anything.
    fn propose_waiting(&mut self) -> bool {
        let mut has_proposed = false;
        while self.takes_proposals()
            && let Some((proposal, of)) = self.unproposed.pop()
        {
            self.propose(proposal, of);
            has_proposed = true;
        }
        has_proposed
    }

    fn complete(&mut self, of: RequestId, outcome: Outcome) {
        self.out.completions.push((of, outcome));
    }

    /// Hands leadership to another member, if it votes and this one leads.
    pub fn transfer_leader(&mut self, to: u64) {
        self.driver.transfer_leader(to);
    }

    /// Wants to lead, without waiting for the time-out: for a sole voter.
    fn campaign_alone(&mut self) {
        if self.begins_behind.take_if(|index| *index <= self.applied.0).is_some()
            && self.voting.voters == [self.metadata.node_id]
        {
            self.driver.campaign();
        }
    }

    fn written(&mut self, written: Written) -> Result<()> {
        self.log.finish(written)?;
        self.after_sync()
    }

    /// What may happen now that more of the log is on disk.
    fn after_sync(&mut self) -> Result<()> {
        while let Some(behind) = self.log.next() {
            match behind {
                AfterSync::Appended(number) => self.driver.persisted(number)?,
                AfterSync::Install { number, position } => {
                    let index = position.index;
                    self.out.apply.push(ToApply::Install(position));
                    self.driver.persisted(number)?;
                    self.spoil_install(index)?;
                }
                AfterSync::Recorded(position) => {
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

    /// The apply loop has come further.
    fn applied(&mut self, applied: Applied) -> Result<()> {
        let Applied { index, term, changes, installed, log_reads, members, alarms, removed } =
            self.spoil_applied(applied);
        self.members = members.unwrap_or(Arc::clone(&self.members));
        if let Some(alarms) = alarms {
            self.alarms = alarms;
            self.proposed_alarm = None;
        }
        for change in changes {
            self.change_is_applied(change)?;
        }
        self.applied = (index, term);
        if let Some(position) = installed {
            self.is_installed(&position)?;
        }
        // With entries behind the snapshot, if there are some.
        self.driver.applied(index)?;
        for (context, index) in log_reads {
            self.barrier.hear(Event::Answered { context, index });
        }
        self.barrier.hear(Event::Applied { index });
        self.count_applied(index);
        if removed {
            self.last_ticks.get_or_insert(LAST_TICKS);
        }
        self.campaign_alone();
        Ok(())
    }

    /// Before raft hears that its entry is applied: it lets no other change be proposed until then.
    fn change_is_applied(&mut self, applied: AppliedChange) -> Result<()> {
        let AppliedChange { index, change, members } = applied;
        if index <= self.snapshot_index {
            return Ok(());
        }
        self.voting = self.driver.apply_change(change.as_ref())?;
        if self.voting != members {
            let why = format!("at entry {index} raft has {:?}, the store {members:?}", self.voting);
            return Err(Error::damaged("the members", why));
        }
        if let Some(change) = change
            && !members.voters.contains(&change.node_id)
            && !members.learners.contains(&change.node_id)
        {
            // What has become of a copy that was on its way there will not be told.
            self.copying.remove(&change.node_id);
        }
        Ok(())
    }

    fn is_installed(&mut self, position: &Position) -> Result<()> {
        self.recorded = position.index;
        self.voting = self.driver.members();
        self.log.installed(position.index);
        Ok(self.driver.installed(position.index)?)
    }

    /// Asks for a commit of the store if the log has grown long without one: it could never be shortened. Once:
    /// a commit is a sync.
    fn count_applied(&mut self, index: u64) {
        while let Some((_, bytes)) = self.unapplied.pop_front_if(|(last, _)| *last <= index) {
            self.unapplied_bytes -= bytes;
            self.unrecorded_bytes += bytes;
        }
        if self.log_is_long(index) && !std::mem::replace(&mut self.wants_commit, true) {
            self.out.commit_due = true;
        }
    }

    /// The store was committed.
    fn store_committed(&mut self, durable: &Progress) -> Result<()> {
        self.wants_commit = false;
        // What is on its way out need not be recorded any more.
        if self.log.installs().next().is_some() {
            return Ok(());
        }
        let durable = &self.spoil_durable(durable);
        self.driver.durable(durable.position())?;
        if durable.index > self.recorded && self.log_is_long(durable.index) {
            self.recorded = durable.index;
            self.unrecorded_bytes = 0;
            self.log.record(durable.position())?;
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

    fn copy_received(&mut self, copy: Received) -> Result<()> {
        let index = copy.index;
        if !self.vault.kept()?.contains(&index) {
            // Another of the same index was refused or installed, and they were one in the vault.
            // Raft must not take what is not there: its record in the log could not be undone.
            return Ok(());
        }
        self.offered.insert(index);
        self.received.push(copy);
        Ok(())
    }

    /// Offers raft the copies that have come. When it takes one its members are those of the snapshot: what the
    /// apply loop says of earlier changes counts no more from there on, and that is noted with the append.
    fn offer_copies(&mut self) -> Result<()> {
        for copy in std::mem::take(&mut self.received) {
            match self.driver.step(copy.message) {
                Ok(()) => {}
                Err(error @ driver::Error::Stopped(_)) => return Err(error.into()),
                Err(_) => self.drop_copy(copy.index)?,
            }
        }
        Ok(())
    }

    fn drop_copy(&mut self, index: u64) -> Result<()> {
        self.offered.remove(&index);
        // One of the same index may have come before, which raft has taken.
        if !self.log.installs().any(|installed| installed == index) {
            self.vault.discard(index)?;
        }
        Ok(())
    }

    fn copy_sent(&mut self, to: u64, arrived: bool) {
        self.copying.remove(&to);
        self.driver.snapshot_sent(to, arrived);
    }

    /// Does what there is to do, and says what the owner has to do now. `now` counts from any fixed
    /// moment, on a clock that goes forward; it is looked up after the last input and before this
    /// call. After an error the process stops.
    pub fn poll(&mut self, now: Duration) -> Result<Outputs> {
        self.now = now;
        // A change that removes the new leader ends the transfer.
        self.tell_of_transfer();
        self.offer_copies()?;
        loop {
            while let Some(effects) = self.driver.effects() {
                self.carry_out(effects)?;
            }
            self.tell_barrier();
            let asked = self.act(now);
            if !self.propose_due() && !asked && !self.propose_waiting() {
                break;
            }
        }
        for refused in std::mem::take(&mut self.offered) {
            self.drop_copy(refused)?;
        }
        self.out.write = self.log.begin();
        self.out.is_alone = self.is_alone();
        Ok(std::mem::take(&mut self.out))
    }

    /// When to poll again if nothing happens before.
    pub fn next_poll(&self) -> Option<Duration> {
        self.barrier.next_poll().into_iter().chain(self.next_lease()).min()
    }

    /// The index that something waits for to be applied; `u64::MAX` if nothing does. What the apply loop says
    /// below it is [not urgent](Applied::is_urgent).
    pub fn awaited(&self) -> u64 {
        self.barrier.awaited().into_iter().chain(self.begins_behind).min().unwrap_or(u64::MAX)
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
                let context = self.spoil_answer(u64::from_be_bytes(context));
                if read.index > self.applied.0 {
                    self.known.entry(read.index).or_insert(self.now);
                }
                self.barrier.hear(Event::Answered { context, index: read.index });
            }
        }
        self.hand_over(committed);
        Ok(())
    }

    /// Gives committed entries to the apply loop.
    fn hand_over(&mut self, committed: Vec<Entry>) {
        let Some(last) = committed.last() else { return };
        let bytes = committed.iter().map(|entry| entry.data.len() as u64).sum();
        self.unapplied.push_back((last.index, bytes));
        self.unapplied_bytes += bytes;
        let begins_a_term =
            |entry: &Entry| entry.kind == EntryKind::Normal && entry.data.is_empty();
        if committed.iter().any(begins_a_term) {
            // Raft can answer reads from here on.
            self.barrier.hear(Event::FirstCommit);
        }
        match self.out.apply.last_mut() {
            Some(ToApply::Entries(entries)) => entries.extend(committed),
            _ => self.out.apply.push(ToApply::Entries(committed.into())),
        }
    }

    fn append(&mut self, append: driver::Append) -> Result<()> {
        if let Some(position) = &append.install {
            self.offered.remove(&position.index);
            self.snapshot_index = position.index;
        }
        let append = self.spoil_append(append)?;
        Ok(self.log.append(append)?)
    }

    fn leadership_is(&mut self, now: Leadership) {
        let leader = (now.leader != 0).then_some(now.leader);
        self.barrier.hear(Event::Leader { leader, term: now.term });
        self.told.transferee = None;
        self.lead_leases(now);
        self.sole_voter.leadership_has_changed();
        self.out.leadership = Some(now);
        if now.role != Role::Leader {
            // Copies that this member has sent are for the next leader to look after.
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
                    let since = known.into_values().min();
                    let applying = since.map(|at| now.saturating_sub(at)).unwrap_or_default();
                    let go = |of| (of, Outcome::MayRead(applying));
                    self.out.completions.extend(readers.into_iter().map(go));
                }
                Action::Fail { error, readers } => {
                    let fail = |of| (of, Outcome::MayNotRead(error));
                    self.out.completions.extend(readers.into_iter().map(fail));
                }
            }
        }
        asked
    }

    fn ask(&mut self, context: u64) {
        let Some(context) = self.spoil_question(context) else { return };
        // Refused or forgotten by raft: the barrier asks again.
        let _ = self.driver.read_index(context.to_be_bytes().to_vec());
    }

    /// This member and its cluster.
    pub fn metadata(&self) -> Metadata {
        self.metadata
    }

    /// The last entry that is applied, as far as the apply loop has said, and its term.
    pub fn applied_to(&self) -> (u64, u64) {
        self.applied
    }

    /// The last entry that raft takes for applied: the same, or less.
    pub fn applied_in_raft(&self) -> u64 {
        self.driver.applied_index()
    }

    /// Raft's members, as far as the apply loop has said; `None` while a raft snapshot is being installed, of
    /// which raft has the members already.
    pub fn conf_state(&self) -> Option<&ConfState> {
        Some(&self.voting).filter(|_| self.applied.0 >= self.snapshot_index)
    }

    /// The leader, as far as this member knows.
    pub fn leadership(&self) -> Leadership {
        self.driver.leadership()
    }

    /// The table of members, as far as the apply loop has said.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// The alarms that are raised, as far as the apply loop has said.
    pub fn alarms(&self) -> &Arc<Alarms> {
        &self.alarms
    }

    /// Requests that wait for their entry to be applied.
    pub fn wait(&self) -> &Arc<Wait> {
        &self.wait
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

    /// The newest id of a proposal or a question.
    pub fn last_id(&self) -> u64 {
        self.ids.last()
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
