//! What an entry does to the store.
//!
//! Each entry ends one transaction of the store, also if it changes nothing or is refused (puts in a row end one
//! together), and the transaction says how far the store has come with it. So a state of the store and its place
//! in the log are never apart: see [`progress`](crate::progress). What all members must decide alike is decided
//! from the store's state and the entry alone.
//!
//! Puts that follow each other become visible together, a [`Run`] at a time: to publish a state costs more than
//! to put a key. Their outcomes leave at the end of a step, so no client can tell. In the old eras each put is a
//! run of its own, for readers wait for the locks that a run holds.

use std::sync::Arc;

use clearlane_mvcc::{Ended, Store, WriteTxn};
use clearlane_proto::etcdserverpb::{AlarmRequest, AlarmResponse, InternalRaftRequest, PutRequest};
use clearlane_proto::nested::decode_raft_request;
use clearlane_raft_log::{ConfChange, ConfChangeKind, Entry, EntryKind};

use super::{Answer, AppliedChange, Applier, Outcome};
use crate::alarms::Alarms;
use crate::error::{Error, Result};
use crate::membership::Members;
use crate::progress::Progress;
use crate::requests::{self, Reply};

/// Puts that become visible together: a reader that comes meanwhile sees none of them yet.
const RUN_MAX: usize = 64;

/// Puts in a row, and their open transaction.
struct Run<'s> {
    store: &'s dyn Store<Progress>,
    open: Option<Open<'s>>,
}

struct Open<'s> {
    txn: Box<dyn WriteTxn<Progress> + 's>,
    puts: usize,
}

/// How long an entry may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Short,
    Long,
    /// Long: it was not applied, for others of the step wait for their outcomes.
    NotNow,
}

impl Applier {
    /// Applies entries up to one that may take long, or that one alone. Says how many.
    pub(super) fn apply(&mut self, entries: &[Entry]) -> Result<usize> {
        let mut lap = self.start_lap();
        let store = Arc::clone(&self.store);
        let mut run = Run { store: &*store, open: None };
        let mut count = 0;
        for entry in entries {
            let applied = self.apply_entry(entry, &mut run, count == 0)?;
            if applied == Length::NotNow {
                break;
            }
            count += 1;
            if count == entries.len() {
                self.end_run(&mut run)?;
            }
            self.lap(&mut lap, entry);
            if applied == Length::Long {
                break;
            }
        }
        self.end_run(&mut run)?;
        Ok(count)
    }

    fn apply_entry(&mut self, entry: &Entry, run: &mut Run<'_>, is_first: bool) -> Result<Length> {
        if entry.index != self.progress.index + 1 {
            self.end_run(run)?;
            let why = format!("entry {} comes after entry {}", entry.index, self.progress.index);
            return Err(Error::damaged("the log", why));
        }
        let progress = Progress {
            index: entry.index,
            term: entry.term,
            members: Arc::clone(&self.progress.members),
        };
        if entry.kind == EntryKind::Normal && !entry.data.is_empty() {
            return self.apply_request(entry, progress, run, is_first);
        }
        self.end_run(run)?;
        match entry.kind {
            // A new leader begins its term with it.
            EntryKind::Normal => self.apply_nothing(progress)?,
            EntryKind::ConfChange => self.apply_change(entry, progress)?,
            EntryKind::ConfChangeV2 => {
                let why = format!("entry {} changes several members at once", entry.index);
                return Err(Error::damaged("the log", why));
            }
        }
        Ok(Length::Short)
    }

    fn apply_nothing(&mut self, progress: Progress) -> Result<()> {
        let ended = self.store.write()?.end(progress.clone())?;
        self.ended(ended, progress);
        Ok(())
    }

    fn apply_request(
        &mut self,
        entry: &Entry,
        progress: Progress,
        run: &mut Run<'_>,
        is_first: bool,
    ) -> Result<Length> {
        let request = match decode_raft_request(entry.data.clone()) {
            Ok(request) => request,
            Err(error) => {
                // What is before it is sound.
                self.end_run(run)?;
                let why = format!("entry {} is no request: {error}", entry.index);
                return Err(Error::damaged("the log", why));
            }
        };
        let id = request.header.as_ref().map_or(request.id, |header| header.id);
        if let Some(put) = &request.put
            && self.alarms.forbid(&request).is_none()
            && !self.applies_twice()
        {
            self.apply_put(id, put, progress, run)?;
            return Ok(Length::Short);
        }
        self.end_run(run)?;
        let is_long = requests::may_take_long(&request);
        if is_long && !is_first {
            return Ok(Length::NotNow);
        }
        self.apply_other(id, entry, &request, progress)?;
        Ok(if is_long { Length::Long } else { Length::Short })
    }

    /// A put of a row.
    fn apply_put(
        &mut self,
        id: u64,
        request: &PutRequest,
        progress: Progress,
        run: &mut Run<'_>,
    ) -> Result<()> {
        let open = match &mut run.open {
            Some(open) => open,
            none => none.insert(Open { txn: run.store.write()?, puts: 0 }),
        };
        let leases = &self.leases;
        let answer = requests::apply_put(&mut *open.txn, &|lease| leases.has(lease), request)?;
        open.puts += 1;
        self.progress = progress;
        if open.puts == RUN_MAX || !open.txn.go_on() {
            self.end_run(run)?;
        }
        self.answer(id, || Answer::Request(answer));
        Ok(())
    }

    /// From here on what the row has put is seen.
    fn end_run(&mut self, run: &mut Run<'_>) -> Result<()> {
        let Some(Open { txn, .. }) = run.open.take() else { return Ok(()) };
        // That of the last put.
        let progress = self.progress.clone();
        let ended = txn.end(progress.clone())?;
        self.ended(ended, progress);
        Ok(())
    }

    fn apply_other(
        &mut self,
        id: u64,
        entry: &Entry,
        request: &InternalRaftRequest,
        progress: Progress,
    ) -> Result<()> {
        if let Some(attributes) = &request.cluster_member_attr_set {
            return self
                .apply_to_members(id, progress, |members, txn| members.publish(attributes, txn));
        }
        if let Some(version) = &request.cluster_version_set {
            return self.apply_to_members(id, progress, |members, txn| {
                members.set_version(&version.ver, txn)
            });
        }
        if let Some(refused) = self.alarms.forbid(request) {
            self.apply_nothing(progress)?;
            self.answer(id, || Answer::Request(Err(refused)));
            return Ok(());
        }
        if let Some(alarm) = &request.alarm {
            return self.apply_alarm(id, alarm, progress);
        }
        let leased = requests::lease::apply(&*self.store, &self.leases, request, progress.clone())?;
        if let Some(applied) = leased {
            if let Ok(Reply::LeaseGrant(granted)) = &applied.answer {
                self.out.granted.push(granted.id);
            }
            self.ended(applied.ended, progress);
            self.answer(id, || Answer::Request(applied.answer));
            return Ok(());
        }
        let leases = Arc::clone(&self.leases);
        let has_lease = |lease| leases.has(lease);
        for _ in 1..self.times() {
            requests::apply(&*self.store, &has_lease, request, progress.clone())?;
        }
        let applied = requests::apply(&*self.store, &has_lease, request, progress.clone())?;
        self.ended(applied.ended, progress);
        self.out.compactions.extend(applied.compaction);
        if is_log_read(request) {
            self.out.applied.log_reads.push((id, entry.index));
        }
        self.answer(id, || Answer::Request(applied.answer));
        Ok(())
    }

    fn apply_alarm(&mut self, id: u64, request: &AlarmRequest, progress: Progress) -> Result<()> {
        let mut txn = self.store.write()?;
        // Most requests only ask.
        let mut alarms = Alarms::clone(&self.alarms);
        let answer = alarms.apply(request, &mut *txn)?;
        let header = Some(requests::header(txn.revision()));
        let ended = txn.end(progress.clone())?;
        self.ended(ended, progress);
        if alarms != *self.alarms {
            self.alarms = Arc::new(alarms);
        }
        self.out.applied.alarms = Some(Arc::clone(&self.alarms));
        let reply = answer.map(|alarms| Reply::Alarm(AlarmResponse { header, alarms }));
        self.answer(id, || Answer::Request(reply));
        Ok(())
    }

    /// What changes the table of members and is none of raft's business.
    fn apply_to_members(
        &mut self,
        id: u64,
        progress: Progress,
        change: impl FnOnce(&mut Members, &mut dyn WriteTxn<Progress>) -> Result<()>,
    ) -> Result<()> {
        let mut txn = self.store.write()?;
        change(Arc::make_mut(&mut self.members), &mut *txn)?;
        let ended = txn.end(progress.clone())?;
        self.ended(ended, progress);
        self.out.applied.members = Some(Arc::clone(&self.members));
        self.answer(id, || Answer::Members(Ok(Vec::new())));
        Ok(())
    }

    /// The outcome for the request that waits for this entry, if one does here.
    fn answer(&mut self, id: u64, answer: impl FnOnce() -> Answer) {
        if let Some(request) = self.wait.take(id) {
            self.answered = Some(id);
            let answer = answer();
            for _ in 1..self.answers() {
                self.out.completions.push((request, Outcome::Applied(answer.clone())));
            }
            self.out.completions.push((request, Outcome::Applied(answer)));
        }
    }

    fn apply_change(&mut self, entry: &Entry, mut progress: Progress) -> Result<()> {
        let change = ConfChange::decode(&entry.data).map_err(|error| {
            Error::damaged("the log", format!("entry {}: {error}", entry.index))
        })?;
        let mut txn = self.store.write()?;
        let applied = Arc::make_mut(&mut self.members).apply(&change, &mut *txn)?;
        let before = &progress.members;
        let after = applied.ok().map_or(Some((**before).clone()), |change| before.after(change));
        let after = after.ok_or_else(|| {
            Error::damaged("the log", format!("entry {} leaves no voter", entry.index))
        })?;
        progress.members = Arc::new(after.clone());
        let ended = txn.end(progress.clone())?;
        self.ended(ended, progress);
        let is_removed =
            change.kind == ConfChangeKind::RemoveNode && change.node_id == self.metadata.node_id;
        let told = &mut self.out.applied;
        told.removed |= is_removed && applied.is_ok();
        let accepted = applied.ok().cloned();
        told.changes.push(AppliedChange { index: entry.index, change: accepted, members: after });
        told.members = Some(Arc::clone(&self.members));
        let members: Vec<_> = self.members.iter().cloned().collect();
        self.answer(change.id, || Answer::Members(applied.map(|_| members)));
        Ok(())
    }

    fn ended(&mut self, ended: Ended, progress: Progress) {
        let Ended { revision, changes, earlier, retired, commit_due } = ended;
        self.out.changes.extend(earlier);
        if !changes.is_empty() {
            self.out.changes.push((revision, changes));
        }
        self.out.retired.push(retired);
        self.out.commit_due |= commit_due;
        self.progress = progress;
    }
}

/// Whether it is a read of mode `log`: see [`log_read`](super::log_read).
fn is_log_read(request: &InternalRaftRequest) -> bool {
    request.range.as_ref().is_some_and(|range| range.key.is_empty())
}
