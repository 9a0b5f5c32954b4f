//! Applies entries to the store, one after another.
//!
//! Consecutive puts may share a transaction of the store. Any other entry has its own transaction.
//! A transaction ends with the [`applied_position`](crate::applied_position) of its last entry,
//! even if its entries change nothing or are rejected. A decision that must be the same at all
//! members depends only on the store's state and the entry.
//!
//! Consecutive puts become visible together, one [`PutBatch`] at a time: publishing a state costs
//! more than a put. In the old eras each put is a separate batch, because readers wait for the
//! locks that a batch holds.

use std::sync::Arc;

use clearlane_mvcc::{Store, TxnResult, WriteTxn};
use clearlane_proto::etcdserverpb::{
    AlarmRequest, AlarmResponse, AlarmType, InternalRaftRequest, PutRequest,
};
use clearlane_proto::nested::decode_raft_request;
use clearlane_wal::{ConfChange, ConfChangeKind, Entry, EntryKind};

use super::{AppliedConfChange, Applier, RequestId, RequestOutcome};
use crate::alarms::Alarms;
use crate::applied_position::AppliedPosition;
use crate::apply::{self, AppliedResponse, PartialResponse};
use crate::error::{Error, Result};
use crate::membership::Members;
use crate::quota;

/// Maximum number of puts that become visible together.
const PUT_BATCH_MAX: usize = 64;

/// Consecutive puts in one open transaction.
struct PutBatch<'s> {
    store: &'s dyn Store<AppliedPosition>,
    txn: Option<Box<dyn WriteTxn<AppliedPosition> + 's>>,
    /// Number of puts in the open transaction.
    puts: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryDuration {
    Short,
    Long,
    /// The entry may be slow and was not applied, because the completions of other entries in this
    /// step would have to wait.
    Deferred,
}

impl Applier {
    /// Applies entries, up to the first entry that may take a long time. Such an entry is applied
    /// only if it is the first one, and then no other entry follows in this step. Returns the
    /// number of applied entries.
    pub(super) fn apply(&mut self, entries: &[Entry]) -> Result<usize> {
        let mut timer = self.start_entry_timer();
        let store = Arc::clone(&self.store);
        let mut batch = PutBatch { store: &*store, txn: None, puts: 0 };
        let mut count = 0;
        for entry in entries {
            let applied = self.apply_entry(entry, &mut batch, count == 0)?;
            if applied == EntryDuration::Deferred {
                break;
            }
            count += 1;
            // The time of the last entry includes the end of its batch.
            if count == entries.len() {
                self.end_put_batch(&mut batch)?;
            }
            self.record_entry_time(&mut timer, entry);
            if applied == EntryDuration::Long {
                break;
            }
        }
        self.end_put_batch(&mut batch)?;
        Ok(count)
    }

    fn apply_entry(
        &mut self,
        entry: &Entry,
        batch: &mut PutBatch<'_>,
        is_first: bool,
    ) -> Result<EntryDuration> {
        if entry.index != self.applied_position.index + 1 {
            self.end_put_batch(batch)?;
            let why =
                format!("entry {} comes after entry {}", entry.index, self.applied_position.index);
            return Err(Error::damaged("the log", why));
        }
        let progress = AppliedPosition {
            index: entry.index,
            term: entry.term,
            conf_state: Arc::clone(&self.applied_position.conf_state),
        };
        if entry.kind == EntryKind::Normal && !entry.data.is_empty() {
            return self.apply_request(entry, progress, batch, is_first);
        }
        self.end_put_batch(batch)?;
        match entry.kind {
            // A new leader's first entry is empty. Raft also replaces a change of members with an
            // empty entry while another change is in progress.
            EntryKind::Normal => self.apply_empty(progress)?,
            EntryKind::ConfChange => self.apply_conf_change(entry, progress)?,
            EntryKind::ConfChangeV2 => {
                let why = format!("entry {} changes several members at once", entry.index);
                return Err(Error::damaged("the log", why));
            }
        }
        Ok(EntryDuration::Short)
    }

    fn apply_empty(&mut self, progress: AppliedPosition) -> Result<()> {
        let ended = self.store.begin_write()?.end(progress.clone())?;
        self.finish_txn(ended, progress);
        Ok(())
    }

    fn apply_request(
        &mut self,
        entry: &Entry,
        progress: AppliedPosition,
        batch: &mut PutBatch<'_>,
        is_first: bool,
    ) -> Result<EntryDuration> {
        let request = match decode_raft_request(entry.data.clone()) {
            Ok(request) => request,
            Err(error) => {
                // The puts before the invalid entry are kept.
                self.end_put_batch(batch)?;
                let why = format!("entry {} is not a request: {error}", entry.index);
                return Err(Error::damaged("the log", why));
            }
        };
        let id = request.header.as_ref().map_or(request.id, |header| header.id);
        if let Some(put) = &request.put
            && self.alarms.rejection(&request).is_none()
        {
            self.apply_put(id, (&request, put), progress, batch)?;
            return Ok(EntryDuration::Short);
        }
        self.end_put_batch(batch)?;
        let is_long = apply::may_take_long(&request);
        if is_long && !is_first {
            return Ok(EntryDuration::Deferred);
        }
        self.apply_other(id, entry, &request, progress)?;
        Ok(if is_long { EntryDuration::Long } else { EntryDuration::Short })
    }

    fn apply_put(
        &mut self,
        id: u64,
        (request, put): (&InternalRaftRequest, &PutRequest),
        progress: AppliedPosition,
        batch: &mut PutBatch<'_>,
    ) -> Result<()> {
        if put.lease != 0 && self.auth.is_enabled() {
            // The permission for the put depends on the keys of the lease. A batch attaches keys to
            // leases only at its end, and batches end at different entries on different members. So
            // the batch ends before the permission is checked.
            self.end_put_batch(batch)?;
        }
        let txn = match &mut batch.txn {
            Some(txn) => txn,
            none => none.insert(batch.store.begin_write()?),
        };
        let leases = &self.leases;
        let answer = match apply::auth::check(&self.auth, leases, request) {
            Ok(()) => {
                let response = apply::put(&mut **txn, &|lease| leases.contains(lease), put);
                apply::split_error(response.map(AppliedResponse::Put))?
            }
            Err(refused) => Err(refused),
        };
        batch.puts += 1;
        if answer.is_ok() {
            self.ready.report.growth_index = progress.index;
        }
        self.applied_position = progress;
        if batch.puts == PUT_BATCH_MAX || !txn.begin_next_revision() {
            self.end_put_batch(batch)?;
        }
        self.complete(id, || RequestOutcome::Applied(answer));
        Ok(())
    }

    /// Ends the transaction of the batch, so that its puts become visible.
    fn end_put_batch(&mut self, batch: &mut PutBatch<'_>) -> Result<()> {
        let Some(txn) = batch.txn.take() else { return Ok(()) };
        batch.puts = 0;
        // The transaction ends with the position of its last put.
        let progress = self.applied_position.clone();
        let ended = txn.end(progress.clone())?;
        self.finish_txn(ended, progress);
        Ok(())
    }

    fn apply_other(
        &mut self,
        id: u64,
        entry: &Entry,
        request: &InternalRaftRequest,
        progress: AppliedPosition,
    ) -> Result<()> {
        // The next two kinds of requests are handled before the alarms are checked, because no
        // alarm rejects the attributes of a member or the cluster's version.
        if let Some(attributes) = &request.cluster_member_attr_set {
            return self.update_members(id, progress, |members, txn| {
                members.set_attributes(attributes, txn)
            });
        }
        if let Some(version) = &request.cluster_version_set {
            return self.update_members(id, progress, |members, txn| {
                members.set_version(&version.ver, txn)
            });
        }
        let refused = self.alarms.rejection(request);
        let check = || apply::auth::check(&self.auth, &self.leases, request).err();
        if let Some(refused) = refused.or_else(check) {
            if let Some(revoke) = &request.lease_revoke {
                self.leases.revocation_rejected(revoke.id);
            }
            self.apply_empty(progress)?;
            self.complete(id, || RequestOutcome::Applied(Err(refused)));
            return Ok(());
        }
        if quota::cost(request) > 0 {
            self.ready.report.growth_index = progress.index;
        }
        if let Some(alarm) = &request.alarm {
            return self.apply_alarm(id, alarm, progress);
        }
        let about_users = apply::auth::apply(&*self.store, &self.auth, request, progress.clone())?;
        if let Some(applied) = about_users {
            self.ready.report.has_auth_changed |= clearlane_auth::is_change(request);
            self.finish_txn(applied.txn_result, progress);
            self.complete(id, || RequestOutcome::Applied(applied.result));
            return Ok(());
        }
        let leased = apply::lease::apply(&*self.store, &self.leases, request, progress.clone())?;
        if let Some(applied) = leased {
            if let Ok(AppliedResponse::LeaseGrant(granted)) = &applied.result {
                self.ready.granted.push(granted.id);
            }
            self.finish_txn(applied.txn_result, progress);
            self.complete(id, || RequestOutcome::Applied(applied.result));
            return Ok(());
        }
        if is_log_read(request) {
            self.ready.report.log_reads.push((id, entry.index));
        }
        self.apply_to_store(id, request, progress)
    }

    fn apply_to_store(
        &mut self,
        id: u64,
        request: &InternalRaftRequest,
        progress: AppliedPosition,
    ) -> Result<()> {
        // The waiting request is taken from the table before the entry is applied, because the
        // ranges of a transaction are read only if a request waits for them at this member.
        let waiting = self.wait.remove(id);
        let read_mode = self.era.txn_reads(waiting.is_some());
        let leases = Arc::clone(&self.leases);
        let has_lease = |lease| leases.contains(lease);
        let compares = waiting.as_ref().and_then(|waiting| waiting.compares.as_deref());
        let compares = compares.filter(|known| known.revision() > self.installed_revision);
        let store = &*self.store;
        let applied =
            apply::apply(store, &has_lease, request, progress.clone(), read_mode, compares)?;
        self.finish_txn(applied.txn_result, progress);
        self.ready.compactions.extend(applied.compaction);
        if let Some(waiting) = waiting {
            let outcome = match applied.result {
                Ok(response) if !applied.deferred_reads.is_empty() => {
                    let response = PartialResponse::new(response, applied.deferred_reads);
                    RequestOutcome::AppliedInPart(Box::new(response))
                }
                result => RequestOutcome::Applied(result),
            };
            self.complete_request(id, waiting.id, outcome);
        }
        Ok(())
    }

    fn apply_alarm(
        &mut self,
        id: u64,
        request: &AlarmRequest,
        progress: AppliedPosition,
    ) -> Result<()> {
        let index = progress.index;
        let mut txn = self.store.begin_write()?;
        // Most alarm requests only list the alarms. So the shared alarms are replaced only after a
        // change.
        let mut alarms = Alarms::clone(&self.alarms);
        let answer = alarms.apply(request, &mut *txn)?;
        let header = Some(apply::header(txn.revision()));
        let ended = txn.end(progress.clone())?;
        self.finish_txn(ended, progress);
        let is_raised =
            |alarms: &Alarms| alarms.is_raised_by(self.metadata.node_id, AlarmType::Nospace);
        if is_raised(&self.alarms) && !is_raised(&alarms) {
            self.ready.report.disarm_index = index;
        }
        if alarms != *self.alarms {
            self.alarms = Arc::new(alarms);
        }
        self.ready.report.alarms = Some(Arc::clone(&self.alarms));
        let reply = answer.map(|alarms| AppliedResponse::Alarm(AlarmResponse { header, alarms }));
        self.complete(id, || RequestOutcome::Applied(reply));
        Ok(())
    }

    /// Applies a request that changes the attributes of a member or the cluster's version, but not
    /// raft's configuration.
    fn update_members(
        &mut self,
        id: u64,
        progress: AppliedPosition,
        change: impl FnOnce(&mut Members, &mut dyn WriteTxn<AppliedPosition>) -> Result<()>,
    ) -> Result<()> {
        let mut txn = self.store.begin_write()?;
        change(Arc::make_mut(&mut self.members), &mut *txn)?;
        let ended = txn.end(progress.clone())?;
        self.finish_txn(ended, progress);
        self.ready.report.members = Some(Arc::clone(&self.members));
        self.complete(id, || RequestOutcome::MembersChanged(Ok(Vec::new())));
        Ok(())
    }

    /// Completes the request that waits for this entry at this member, if there is one.
    fn complete(&mut self, id: u64, outcome: impl FnOnce() -> RequestOutcome) {
        if let Some(request) = self.wait.remove(id) {
            self.complete_request(id, request.id, outcome());
        }
    }

    fn complete_request(&mut self, id: u64, request: RequestId, outcome: RequestOutcome) {
        self.last_completed = Some(id);
        self.ready.completions.push((request, outcome));
    }

    fn apply_conf_change(&mut self, entry: &Entry, mut progress: AppliedPosition) -> Result<()> {
        let change = ConfChange::decode(&entry.data).map_err(|error| {
            Error::damaged("the log", format!("entry {}: {error}", entry.index))
        })?;
        let mut txn = self.store.begin_write()?;
        let applied = Arc::make_mut(&mut self.members).apply(&change, &mut *txn)?;
        if applied.is_ok() && change.kind == ConfChangeKind::RemoveNode {
            let mut alarms = Alarms::clone(&self.alarms);
            if alarms.remove_nospace(change.node_id, &mut *txn)? {
                self.alarms = Arc::new(alarms);
                self.ready.report.alarms = Some(Arc::clone(&self.alarms));
            }
        }
        let before = &progress.conf_state;
        let after =
            applied.ok().map_or(Some((**before).clone()), |change| before.after_change(change));
        let after = after.ok_or_else(|| {
            Error::damaged("the log", format!("entry {} leaves no voter", entry.index))
        })?;
        progress.conf_state = Arc::new(after.clone());
        let ended = txn.end(progress.clone())?;
        self.finish_txn(ended, progress);
        let is_removed =
            change.kind == ConfChangeKind::RemoveNode && change.node_id == self.metadata.node_id;
        let report = &mut self.ready.report;
        report.is_removed |= is_removed && applied.is_ok();
        report.conf_changes.push(AppliedConfChange {
            index: entry.index,
            change: applied.ok().cloned(),
            conf_state: after,
        });
        report.members = Some(Arc::clone(&self.members));
        let members: Vec<_> = self.members.iter().cloned().collect();
        self.complete(change.id, || RequestOutcome::MembersChanged(applied.map(|_| members)));
        Ok(())
    }

    fn finish_txn(&mut self, ended: TxnResult, progress: AppliedPosition) {
        self.ready.changes.extend(ended.earlier_revisions);
        if !ended.changes.is_empty() {
            self.ready.changes.push((ended.revision, ended.changes));
        }
        self.ready.dropped_states.push(ended.dropped_states);
        self.ready.is_commit_due |= ended.commit_due;
        self.applied_position = progress;
    }
}

/// Returns whether the request is a read in mode `log`: see [`log_read`](super::log_read).
fn is_log_read(request: &InternalRaftRequest) -> bool {
    request.range.as_ref().is_some_and(|range| range.key.is_empty())
}
