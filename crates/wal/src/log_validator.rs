//! The rules of a log's content, checked for every record that is read and before every write.
//!
//! The crc of a record covers its data only. One bit turns the type "entry" (2) into "state" (3),
//! and the crc still fits; what does not fit then is the content.
//!
//! * An entry: its index is at most one more than the last, and above what is committed. Its term
//!   is at least 1 and not below that of the entry before it. A change of configuration has data.
//! * A state: term and commit do not fall; a vote stays in its term. Term 0 has no vote and no
//!   commit; what is committed is in the log.
//! * A snapshot does not contradict a committed entry.
//!
//! See `docs/log.md`.

use crate::wire::{Entry, EntryKind, HardState, WalSnapshot};

#[derive(Clone, Debug, Default)]
pub(super) struct LogValidator {
    pub(super) last_index: u64,
    /// The first index of each term, rising in both. Entries before the first
    /// are not known: they are committed, or were never read.
    terms: Vec<(u64, u64)>,
    pub(super) hard_state: HardState,
}

impl LogValidator {
    /// A log whose entries up to `last` are unknown.
    pub(super) fn after(last: u64) -> LogValidator {
        LogValidator { last_index: last, ..LogValidator::default() }
    }

    /// `None` if the entry is not known.
    fn term(&self, index: u64) -> Option<u64> {
        let runs = self.terms.partition_point(|(first, _)| *first <= index);
        let run = self.terms[..runs].last().filter(|_| index <= self.last_index);
        run.map(|(_, term)| *term)
    }

    pub(super) fn accept_entry(&mut self, entry: &Entry) -> Result<(), String> {
        let Entry { kind, term, index, data } = entry;
        let (last, commit) = (self.last_index, self.hard_state.commit);
        if *index == 0 || *index > last.saturating_add(1) {
            return Err(format!("entry {index} after entry {last}"));
        }
        if *index <= commit {
            return Err(format!("entry {index} replaces one that is committed, up to {commit}"));
        }
        let before = self.term(index - 1).unwrap_or(1);
        if *term < before {
            return Err(format!("entry {index} of term {term} after one of term {before}"));
        }
        if *kind != EntryKind::Normal && data.is_empty() {
            return Err(format!("entry {index} changes the configuration and has no data"));
        }
        self.truncate(index - 1);
        if self.terms.last().is_none_or(|(_, last)| *last != *term) {
            self.terms.push((*index, *term));
        }
        self.last_index = *index;
        Ok(())
    }

    pub(super) fn accept_hard_state(&mut self, state: &HardState) -> Result<(), String> {
        let (old, HardState { term, vote, commit }) = (self.hard_state, *state);
        if term < old.term {
            return Err(format!("term {term} after term {}", old.term));
        }
        if commit < old.commit {
            return Err(format!("commit {commit} after commit {}", old.commit));
        }
        if term == old.term && old.vote != 0 && vote != old.vote {
            return Err(format!(
                "term {term} has a vote for {vote:x} after one for {:x}",
                old.vote
            ));
        }
        if term == 0 && (vote, commit) != (0, 0) {
            return Err(format!("a vote for {vote:x} or commit {commit} in term 0"));
        }
        if commit > self.last_index {
            return Err(format!("commit {commit} with entries up to {}", self.last_index));
        }
        self.hard_state = *state;
        // What is committed is not replaced, so only the term of its last entry matters.
        let runs = self.terms.partition_point(|(first, _)| *first <= commit);
        self.terms.drain(..runs.saturating_sub(1));
        Ok(())
    }

    /// Returns whether the log begins anew behind the snapshot. One that a member made of its own
    /// state is within its log and changes nothing. Behind one that it received, which is
    /// beyond the log or replaces entries that were not committed, the log begins anew:
    ///
    /// ```text
    ///   entries 1 2 3 4 5   snapshot 3         entries go on with 6
    ///   entries 1 2 3 4 5   snapshot 9         entries go on with 10
    /// ```
    pub(super) fn accept_snapshot(&mut self, snapshot: &WalSnapshot) -> Result<bool, String> {
        let WalSnapshot { index, term, .. } = snapshot;
        let is_committed = *index <= self.hard_state.commit;
        match self.term(*index) {
            Some(known) if known == *term => return Ok(false),
            None if is_committed => return Ok(false),
            Some(_) if is_committed => {
                return Err(format!(
                    "a snapshot of index {index} and term {term}, which is another"
                ));
            }
            // An uncommitted entry that is not known does not exist: it would be in a snapshot
            // before this one, which was never taken.
            _ => {}
        }
        self.last_index = *index;
        self.terms = vec![(*index, *term)];
        Ok(true)
    }

    /// Removes the entries after `last`.
    pub(super) fn truncate(&mut self, last: u64) {
        let runs = self.terms.partition_point(|(first, _)| *first <= last);
        self.terms.truncate(runs);
        self.last_index = self.last_index.min(last);
    }
}
