//! Extends a log at startup to the position of the store.
//!
//! ```text
//!   log  1 … 40 │ 41 … 60     store at 50     the commit index (│) rises to 50
//!   log  1 … 40               store at 50     Clearlane wrote both: rejected, the log has lost
//!                                             41 … 50
//!                                             etcd wrote both, or the options accept the loss: a
//!                                             snapshot record and the commit index 50 are written;
//!                                             entries continue with 51
//! ```
//!
//! Clearlane applies an entry after it is synced, so its store is never ahead of its log. etcd
//! applies an entry while it writes its log. If etcd is killed at that time, its store may be
//! ahead, and etcd continues from the store's position. The missing entries were acknowledged to no
//! member, because etcd acknowledges entries after the sync.
//!
//! The store's newest meta page shows which program wrote it; `docs/moving.md` explains how.

use clearlane_wal::{Append, Contents, Entry, HardState, Options, Wal};

use super::wal_pipeline::snapshot_record;
use crate::applied_position::AppliedPosition;
use crate::error::{Error, Result};

/// Returns the hard state and the entries with which the member starts. All of them are on disk.
/// Fails if the log lacks entries that the store has applied, unless etcd wrote the store last or
/// the options accept the loss.
pub(super) fn reach_store(
    store: &AppliedPosition,
    wal: &mut Wal,
    log: Contents,
    options: &Options,
) -> Result<(HardState, Vec<Entry>)> {
    let Contents { hard_state, mut entries, .. } = log;
    let state = HardState { commit: hard_state.commit.max(store.index), ..hard_state };
    if store.index <= wal.last_index() {
        // A change of only the commit index is not synced, so the commit index in the log may be
        // below the store's position. It is raised now, because raft would raise it in the log only
        // when the next entry is committed. If the member restarted before then, that start would
        // ignore a snapshot record at the store's position, because the record would be above the
        // log's commit index. But a purge might already have removed the segments below the record.
        if state.commit > hard_state.commit {
            wal.save(&[], Some(&state))?;
        }
        return Ok((hard_state, entries));
    }
    let (last, index) = (wal.last_index(), store.index);
    // etcd ends a segment after it has synced all of it. So if the log ends with a full segment,
    // etcd's store is not ahead of the log.
    let is_of_etcd = options.etcd_wrote_last && !wal.ended_in_full_segment;
    if !is_of_etcd && !options.accept_loss {
        return Err(Error::LogBehindStore { last, first_missing: last + 1, applied: index });
    }
    if store.term == 0 {
        let why = format!(
            "it ends at entry {last}, but the store is at entry {index}, whose term is unknown"
        );
        return Err(Error::damaged("the log", why));
    }
    tracing::warn!(
        "last-index" = last,
        "store-index" = index,
        "the log ends before the store; it continues after the store"
    );
    // If the store's term is newer than the log's, the member cannot have sent a vote in it,
    // because etcd syncs a vote to the log before it sends the vote.
    let state = match store.term > state.term {
        true => HardState { term: store.term, vote: 0, ..state },
        false => state,
    };
    let snapshot = Some(snapshot_record(&store.position()));
    wal.append_all(&Append { snapshot, entries: Vec::new(), hard_state: Some(state) })?;
    wal.sync()?;
    entries.clear();
    Ok((state, entries))
}
