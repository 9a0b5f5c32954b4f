//! Brings a log, at a start, to where the store is.
//!
//! ```text
//!   log  1 … 40 │ 41 … 60     store at 50     commit = 50 is written
//!   log  1 … 40               store at 50     of Clearlane: refused, the log has lost 41 … 50
//!                                             of etcd: a snapshot record at 50, and commit = 50;
//!                                             entries continue with 51
//! ```
//!
//! Clearlane applies an entry after it is synced, so its store is never ahead of its log. etcd
//! applies an entry while it writes its log. If it is killed then, its store may be ahead, and it
//! continues from there. The missing entries were acknowledged to no member: etcd acknowledges them
//! after the sync.
//!
//! The store's newest meta page shows which program wrote it; `docs/moving.md` explains how.

use clearlane_wal::{Append, Contents, Entry, HardState, Options, Wal};

use super::wal_pipeline::snapshot_record;
use crate::applied_position::AppliedPosition;
use crate::error::{Error, Result};

/// Returns the state and the entries that the member starts with. All of it is on disk. Fails if
/// the log has lost entries, unless the options accept that.
pub(super) fn reach_store(
    store: &AppliedPosition,
    wal: &mut Wal,
    log: Contents,
    options: &Options,
) -> Result<(HardState, Vec<Entry>)> {
    let Contents { hard_state, mut entries, .. } = log;
    let state = HardState { commit: hard_state.commit.max(store.index), ..hard_state };
    if store.index <= wal.last_index() {
        // A commit index alone is not synced, so the log may lack it. Raft would not write it
        // before the next entry is committed; until then a record of the store's position would
        // not count, since it is beyond the log's commit index, although a purge went by it.
        if state.commit > hard_state.commit {
            wal.save(&[], Some(&state))?;
        }
        return Ok((hard_state, entries));
    }
    let (last, index) = (wal.last_index(), store.index);
    // etcd ends a segment after it has synced all of it: there, its store is not ahead either.
    let is_of_etcd = options.etcd_wrote_last && !wal.ended_in_full_segment;
    if !is_of_etcd && !options.accept_loss {
        return Err(Error::LogBehindStore { last, first_missing: last + 1, applied: index });
    }
    if store.term == 0 {
        let why = format!("it ends at entry {last}, and the store is at {index}, of no known term");
        return Err(Error::damaged("the log", why));
    }
    tracing::warn!(
        "last-index" = last,
        "store-index" = index,
        "the log ends before the store; it continues after the store"
    );
    // A vote of a term that is not in the log was not sent: etcd does that when it is synced.
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
