//! Applying: committed entries, in order and each once, become a state of the store.
//!
//! Each entry ends one transaction of the store, also if it changes nothing or is refused (puts in a
//! row end one together), and the transaction says how far the store has come with it. So a state of
//! the store and its place in the log are never apart: see [`progress`](crate::progress).
//!
//! | entry | what it does |
//! |---|---|
//! | empty | nothing: a new leader begins its term with it |
//! | a request | see [`requests`], and of leases [`requests::lease`] |
//! | a member's attributes | see [`membership`](crate::membership) |
//! | an alarm | see [`alarms`](crate::alarms); others may be refused because of one |
//! | the cluster's version | the same |
//! | a change of members | bucket `members`, and raft is told who is one now |
//!
//! What all members must decide alike is decided here, from the store's state and the entry alone.
//!
//! # Puts in a row
//!
//! To publish a state costs more than to put a key: who has it has all of the index, and the next put copies its way
//! through that. Raft hands over what was committed together, so puts that follow each other become visible together,
//! a [`Run`] at a time. No client can tell: their answers and events leave when all entries are applied. The lock of the
//! store's writer is held over a run, and nothing in between takes it; readers have no lock to wait for. In the old eras,
//! where they have, each put is a run of its own.

use std::sync::Arc;

use clearlane_mvcc::{Ended, Store, WriteTxn};
use clearlane_proto::etcdserverpb::{AlarmRequest, AlarmResponse, InternalRaftRequest, PutRequest};
use clearlane_proto::nested::decode_raft_request;
use clearlane_raft_log::{ConfChange, ConfChangeKind, Entry, EntryKind};
use clearlane_read_index::Event;

use super::{Answer, Core};
use crate::alarms::Alarms;
use crate::error::{Error, Result};
use crate::membership::Members;
use crate::progress::Progress;
use crate::requests::{self, Reply};

/// So many puts become visible together at most: a reader who comes meanwhile sees none of them yet.
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

impl Core {
    pub(super) fn apply(&mut self, entries: Vec<Entry>) -> Result<()> {
        let Some(last) = entries.last().map(|entry| entry.index) else { return Ok(()) };
        let mut lap = self.start_lap();
        let store = Arc::clone(&self.store);
        let mut run = Run { store: &*store, open: None };
        for entry in &entries {
            self.apply_entry(entry, &mut run)?;
            if entry.index == last {
                self.end_run(&mut run)?;
            }
            self.lap(&mut lap, entry);
        }
        self.driver.applied(last)?;
        self.barrier.hear(Event::Applied { index: last });
        // A log that grows without commits could never be shortened. Asked for once: a commit is a
        // sync.
        self.unrecorded_bytes += entries.iter().map(|entry| entry.data.len() as u64).sum::<u64>();
        if self.log_is_long(last) && !std::mem::replace(&mut self.wants_commit, true) {
            self.out.commit_due = true;
        }
        #[cfg(feature = "planted-bugs")]
        self.out.applied.extend(entries);
        Ok(())
    }

    fn apply_entry(&mut self, entry: &Entry, run: &mut Run<'_>) -> Result<()> {
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
            return self.apply_request(entry, progress, run);
        }
        self.end_run(run)?;
        match entry.kind {
            EntryKind::Normal => {
                // The first entry of a term: raft can answer reads from here on.
                self.barrier.hear(Event::FirstCommit);
                self.apply_nothing(progress)
            }
            EntryKind::ConfChange => self.apply_change(entry, progress),
            EntryKind::ConfChangeV2 => {
                let why = format!("entry {} changes several members at once", entry.index);
                Err(Error::damaged("the log", why))
            }
        }
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
    ) -> Result<()> {
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
            && !self.repeats()
        {
            return self.apply_put(id, put, progress, run);
        }
        self.end_run(run)?;
        self.apply_other(id, entry, &request, progress)
    }

    /// Whether a request is applied several times, by a bug that is there to be found.
    fn repeats(&self) -> bool {
        #[cfg(feature = "planted-bugs")]
        return self.applies_twice();
        #[cfg(not(feature = "planted-bugs"))]
        false
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

    /// From here on everybody sees what the row has put.
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
        let leased = requests::lease::apply(
            &*self.store,
            &self.leases,
            self.now,
            request,
            progress.clone(),
        )?;
        if let Some(applied) = leased {
            self.ended(applied.ended, progress);
            self.answer(id, || Answer::Request(applied.answer));
            return Ok(());
        }
        let leases = Arc::clone(&self.leases);
        let has_lease = |lease| leases.has(lease);
        #[cfg(feature = "planted-bugs")]
        for _ in 1..self.times() {
            requests::apply(&*self.store, &has_lease, request, progress.clone())?;
        }
        let applied = requests::apply(&*self.store, &has_lease, request, progress.clone())?;
        self.ended(applied.ended, progress);
        self.out.compactions.extend(applied.compaction);
        if is_log_read(request) {
            self.barrier.hear(Event::Answered { context: id, index: entry.index });
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
        self.proposed_alarm = None;
        if alarms != *self.alarms {
            self.alarms = Arc::new(alarms);
        }
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
        self.answer(id, || Answer::Members(Ok(Vec::new())));
        Ok(())
    }

    /// Answers whoever has proposed it, if he is here and still waits.
    fn answer(&mut self, id: u64, answer: impl FnOnce() -> Answer) {
        if self.proposed.remove(&id) {
            self.out.answers.push((id, answer()));
        }
    }

    fn apply_change(&mut self, entry: &Entry, mut progress: Progress) -> Result<()> {
        let change = ConfChange::decode(&entry.data).map_err(|error| {
            Error::damaged("the log", format!("entry {}: {error}", entry.index))
        })?;
        let mut txn = self.store.write()?;
        let applied = Arc::make_mut(&mut self.members).apply(&change, &mut *txn)?;
        progress.members = Arc::new(self.driver.apply_change(applied.ok())?);
        let ended = txn.end(progress.clone())?;
        self.ended(ended, progress);
        let is_removed =
            change.kind == ConfChangeKind::RemoveNode && change.node_id == self.metadata.node_id;
        self.out.removed |= is_removed && applied.is_ok();
        if change.kind == ConfChangeKind::RemoveNode {
            // Nobody will say what has become of a copy that was on its way.
            self.copying.remove(&change.node_id);
        }
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
