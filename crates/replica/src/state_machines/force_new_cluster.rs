//! Turns one member into a cluster of one after a majority is lost: etcd's `--force-new-cluster`.
//!
//! The log gets a few more entries, as if the members had agreed on them:
//!
//! ```text
//!   log       1 … 40 committed │ 41 42
//!   becomes   1 … 40             41 42 │ 43 promote this member, if it is a learner
//!                                      │ 44 remove another member │ 45 remove the next member
//!             all of these entries are committed
//! ```
//!
//! The entries above the commit index stay, as they would for a leader without other voters. They
//! may have been acknowledged to clients, because the commit index is written to the log later.
//! But an entry that removes this member is dropped, with all later entries. The other members
//! must not be restarted: they do not know that they were removed, and would form a second cluster
//! with the same id.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clearlane_auth::{AuthConfig, AuthStore};
use clearlane_lease::{self as lease, Lessor};
use clearlane_wal as wal;
use clearlane_wal::Wal;
use clearlane_wal::{ConfChange, Entry, EntryKind, HardState};

use super::reach_store::reach_store;
use super::start::{StorageConfig, warn_lost_entries};
use crate::error::{Error, Result};
use crate::membership::MemberChange;
use crate::raft_snapshot;

/// Extends the log on disk so that the cluster consists only of this member. The member must be
/// stopped. Returns the ids of the removed members.
pub fn force_new_cluster(storage: &StorageConfig) -> Result<Vec<u64>> {
    let snapshots = wal::valid_snapshots(&*storage.files, &storage.wal_dir)?;
    let newest =
        snapshots.iter().max_by_key(|snapshot| snapshot.index).cloned().unwrap_or_default();
    let start = (newest.index, newest.term);
    let (files, dir) = (Arc::clone(&storage.files), &storage.wal_dir);
    let (mut wal, contents) = Wal::open(files, dir, start, storage.wal)?;
    warn_lost_entries(&wal);
    let engine = raft_snapshot::open_at_start(&*storage.store_dir, newest.index)?;
    // Opening the store requires a lessor and an auth store, but neither is used afterwards.
    let leases = Lessor::new(lease::Config::new(Duration::ZERO), &storage.backend.locks);
    let auth = AuthStore::new(AuthConfig::default(), &storage.backend.locks);
    let opened = storage.open(&engine, &Arc::new(leases), &auth)?;
    let own = contents.metadata.node_id;
    let (hard_state, found) = reach_store(&opened.progress, &mut wal, contents, &storage.wal)?;
    let applied = opened.progress.index;
    let known_commit = hard_state.commit.max(applied);
    let is_kept = |entry: &&Entry| entry.index <= known_commit || !removes(entry, own);
    let commit = found.iter().take_while(is_kept).last().map_or(0, |entry| entry.index);
    let commit = commit.max(known_commit);
    // An entry may be on disk before the hard state with its term.
    let terms = found.iter().filter(|entry| entry.index <= commit);
    let term = terms.map(|entry| entry.term).fold(hard_state.term.max(1), u64::max);
    // A vote is valid only in its term.
    let vote = if term == hard_state.term { hard_state.vote } else { 0 };
    let state = HardState { term, vote, commit };
    let members = opened.members.iter().map(|member| (member.id, member.is_learner));
    // The members in the store, updated below with committed entries that the store has not
    // applied. The value is true for a learner.
    let mut known: BTreeMap<u64, bool> = members.collect();
    let behind = |entry: &&Entry| entry.index > applied && entry.index <= commit;
    for entry in found.iter().filter(behind) {
        apply_committed(&mut known, entry)?;
    }
    let is_learner = known.remove(&own).ok_or_else(|| {
        let why = format!("member {own:x} is not among the members in its store");
        Error::damaged("the data", why)
    })?;
    let others: Vec<u64> = known.into_keys().collect();
    let promotion = is_learner.then_some(MemberChange::Promote { id: own });
    let removals = others.iter().map(|id| MemberChange::Remove { id: *id });
    let entry = |(index, change): (u64, MemberChange)| {
        let data = change.to_conf_change(0).encode().into();
        Entry { kind: EntryKind::ConfChange, term: state.term, index, data }
    };
    let entries: Vec<Entry> =
        (commit + 1..).zip(promotion.into_iter().chain(removals)).map(entry).collect();
    let commit = commit + entries.len() as u64;
    wal.save(&entries, Some(&HardState { commit, ..state }))?;
    wal.sync()?;
    wal.close()?;
    Ok(others)
}

/// Returns whether the entry removes the member with this id.
fn removes(entry: &Entry, member: u64) -> bool {
    let change =
        (entry.kind == EntryKind::ConfChange).then(|| ConfChange::decode(&entry.data).ok());
    let change = change.flatten().and_then(|change| MemberChange::parse(&change).ok());
    matches!(change, Some(MemberChange::Remove { id }) if id == member)
}

/// Updates the known members with a committed entry that the store has not applied. Ignores a
/// change that contradicts its context, and makes no other check. For example, a running member
/// would reject the removal of a missing member; here the removal has no effect.
fn apply_committed(known: &mut BTreeMap<u64, bool>, entry: &Entry) -> Result<()> {
    if entry.kind != EntryKind::ConfChange {
        return Ok(());
    }
    let change = ConfChange::decode(&entry.data)
        .map_err(|error| Error::damaged("the log", format!("entry {}: {error}", entry.index)))?;
    match MemberChange::parse(&change) {
        Ok(MemberChange::Add(member)) => drop(known.insert(member.id, member.is_learner)),
        Ok(MemberChange::Promote { id }) => drop(known.get_mut(&id).map(|it| *it = false)),
        Ok(MemberChange::Remove { id }) => drop(known.remove(&id)),
        Ok(MemberChange::Update { .. }) | Err(_) => {}
    }
    Ok(())
}
