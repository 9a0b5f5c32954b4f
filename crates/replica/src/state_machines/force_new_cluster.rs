//! Turns one member into a cluster of one after a majority is lost: etcd's `--force-new-cluster`.
//!
//! Its log gets a few more entries, as if they had been agreed on:
//!
//! ```text
//!   log       1 … 40 committed │ 41 42
//!   becomes   1 … 40             41 42 │ 43 promote this one, if it is a learner
//!                                      │ 44 remove one other │ 45 remove the next   all committed
//! ```
//!
//! The entries after the commit index stay, as they would for a leader without other voters: the
//! log learns of a commit later than the clients, so they may be acknowledged. Only a removal of
//! this member is dropped, with all after it. The other members must not be started again: they do
//! not know that they were removed, and would be a second cluster of the same id.

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

/// Rewrites what lies on disk to a cluster of this member alone. The member must be stopped.
/// Returns the removed members.
pub fn force_new_cluster(storage: &StorageConfig) -> Result<Vec<u64>> {
    let snapshots = wal::valid_snapshots(&*storage.files, &storage.wal_dir)?;
    let newest =
        snapshots.iter().max_by_key(|snapshot| snapshot.index).cloned().unwrap_or_default();
    let start = (newest.index, newest.term);
    let (files, dir) = (Arc::clone(&storage.files), &storage.wal_dir);
    let (mut wal, contents) = Wal::open(files, dir, start, storage.wal)?;
    warn_lost_entries(&wal);
    let engine = raft_snapshot::open_at_start(&*storage.store_dir, newest.index)?;
    // Opening the store needs a lessor and users; neither is used.
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
    // A vote counts only in its term.
    let vote = if term == hard_state.term { hard_state.vote } else { 0 };
    let state = HardState { term, vote, commit };
    let members = opened.members.iter().map(|member| (member.id, member.is_learner));
    // Each with whether it is a learner.
    let mut known: BTreeMap<u64, bool> = members.collect();
    let behind = |entry: &&Entry| entry.index > applied && entry.index <= commit;
    for entry in found.iter().filter(behind) {
        apply_committed(&mut known, entry)?;
    }
    let is_learner = known.remove(&own).ok_or_else(|| {
        let why = format!("member {own:x} is not among the members that it knows");
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

/// Whether the entry removes a member.
fn removes(entry: &Entry, member: u64) -> bool {
    let change =
        (entry.kind == EntryKind::ConfChange).then(|| ConfChange::decode(&entry.data).ok());
    let change = change.flatten().and_then(|change| MemberChange::parse(&change).ok());
    matches!(change, Some(MemberChange::Remove { id }) if id == member)
}

/// An entry that is not applied yet. It counts even if it will be refused, but for one
/// that does not parse: the removal of a missing member is refused, too.
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
