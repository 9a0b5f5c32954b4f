//! The rules for a log's contents. They are checked for every record that is read, and before every
//! write.
//!
//! The crc of a record covers only its data. So if one bit flips and turns the type "entry" (2)
//! into "state" (3), the crc still matches. The contents then break one of these rules:
//!
//! * An entry's index is at most one more than the last index, and above the commit index. Its term
//!   is at least 1 and not below the term of the previous entry. A change of the configuration has
//!   data.
//! * A state's term and commit index never fall. Once a term has a vote, the vote does not change
//!   in that term. Term 0 has no vote and no commit index. No commit index is above the index of
//!   the last entry.
//! * A snapshot does not contradict a committed entry.
//!
//! See `docs/log.md`.

use crate::wire::{Entry, EntryKind, HardState, WalSnapshot};

#[derive(Clone, Debug, Default)]
pub(super) struct LogValidator {
    pub(super) last_index: u64,
    /// For each term, a pair of the index of its first known entry and the term. Both numbers rise
    /// from pair to pair. Entries before the first pair are unknown: they are committed, were never
    /// read, or are before a received snapshot.
    terms: Vec<(u64, u64)>,
    pub(super) hard_state: HardState,
}

impl LogValidator {
    /// Returns a validator for a log whose entries up to `last` are unknown.
    pub(super) fn after(last: u64) -> LogValidator {
        LogValidator { last_index: last, ..LogValidator::default() }
    }

    /// Returns the term of an entry, or `None` if the entry is unknown.
    fn term(&self, index: u64) -> Option<u64> {
        let runs = self.terms.partition_point(|(first, _)| *first <= index);
        let run = self.terms[..runs].last().filter(|_| index <= self.last_index);
        run.map(|(_, term)| *term)
    }

    pub(super) fn accept_entry(&mut self, entry: &Entry) -> Result<(), String> {
        let Entry { kind, term, index, data } = entry;
        let (last, commit) = (self.last_index, self.hard_state.commit);
        if *index == 0 || *index > last.saturating_add(1) {
            return Err(format!("entry {index} cannot follow entry {last}"));
        }
        if *index <= commit {
            return Err(format!(
                "entry {index} replaces a committed entry; the commit index is {commit}"
            ));
        }
        let before = self.term(index - 1).unwrap_or(1);
        if *term < before {
            return Err(format!("entry {index} of term {term} follows an entry of term {before}"));
        }
        if *kind != EntryKind::Normal && data.is_empty() {
            return Err(format!("entry {index} changes the configuration, but has no data"));
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
            return Err(format!("term {term} follows term {}", old.term));
        }
        if commit < old.commit {
            return Err(format!("commit index {commit} follows commit index {}", old.commit));
        }
        if term == old.term && old.vote != 0 && vote != old.vote {
            return Err(format!(
                "term {term} has a vote for {vote:x} and an earlier vote for {:x}",
                old.vote
            ));
        }
        if term == 0 && (vote, commit) != (0, 0) {
            return Err(format!("a vote for {vote:x} or commit {commit} in term 0"));
        }
        if commit > self.last_index {
            return Err(format!(
                "the commit index is {commit}, but the last entry is {}",
                self.last_index
            ));
        }
        self.hard_state = *state;
        // Committed entries are never replaced. So of their terms, only the term of the last
        // committed entry matters.
        let runs = self.terms.partition_point(|(first, _)| *first <= commit);
        self.terms.drain(..runs.saturating_sub(1));
        Ok(())
    }

    /// Accepts a snapshot, or fails if it contradicts a committed entry. Returns whether the log
    /// restarts after it. A snapshot that a member made of its own state is within its log and
    /// changes nothing. A received snapshot is beyond the log or replaces entries that were not
    /// committed, and then the log restarts after it:
    ///
    /// ```text
    ///   entries 1 2 3 4 5   snapshot 3         entries continue with 6
    ///   entries 1 2 3 4 5   snapshot 9         entries continue with 10
    /// ```
    pub(super) fn accept_snapshot(&mut self, snapshot: &WalSnapshot) -> Result<bool, String> {
        let WalSnapshot { index, term, .. } = snapshot;
        let is_committed = *index <= self.hard_state.commit;
        match self.term(*index) {
            Some(known) if known == *term => return Ok(false),
            None if is_committed => return Ok(false),
            Some(_) if is_committed => {
                return Err(format!(
                    "a snapshot at {index} with term {term} contradicts a committed entry"
                ));
            }
            // The entry at the snapshot's index is not committed. Its term differs from the
            // snapshot's term, or its term is unknown: the index is after the end of the log, or is
            // below an earlier snapshot that was never taken.
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

#[cfg(test)]
mod tests {
    use super::LogValidator;
    use crate::wire::{Entry, EntryKind, HardState, WalSnapshot};

    fn entry(term: u64, index: u64) -> Entry {
        Entry { kind: EntryKind::Normal, term, index, data: "x".into() }
    }

    fn state(term: u64, vote: u64, commit: u64) -> HardState {
        HardState { term, vote, commit }
    }

    /// Returns a validator after the entries 1 to 6 with the terms 1, 1, 2, 2, 4, 4. The first
    /// three entries are committed.
    fn rules() -> LogValidator {
        let mut rules = LogValidator::after(0);
        for (term, index) in [(1, 1), (1, 2), (2, 3), (2, 4), (4, 5), (4, 6)] {
            rules.accept_entry(&entry(term, index)).unwrap();
        }
        rules.accept_hard_state(&state(4, 9, 3)).unwrap();
        rules
    }

    fn takes_entry(term: u64, index: u64) -> bool {
        rules().accept_entry(&entry(term, index)).is_ok()
    }

    #[test]
    fn entries_follow_and_replace() {
        assert!(takes_entry(4, 7) && takes_entry(5, 7) && takes_entry(5, 5) && takes_entry(3, 5));
        assert!(!takes_entry(4, 8), "a gap");
        assert!(!takes_entry(4, 3), "committed");
        assert!(!takes_entry(3, 7) && !takes_entry(1, 4) && !takes_entry(0, 7), "a falling term");
        let mut rules = rules();
        rules.accept_entry(&entry(3, 5)).unwrap();
        assert_eq!((rules.last_index, rules.term(4), rules.term(5)), (5, Some(2), Some(3)));
        assert!(LogValidator::after(0).accept_entry(&entry(0, 1)).is_err());
        let change = Entry { kind: EntryKind::ConfChange, data: "".into(), ..entry(4, 7) };
        assert!(rules.accept_entry(&change).is_err());
    }

    #[test]
    fn states_rise() {
        for (good, term, vote, commit) in [
            (true, 4, 9, 3),
            (true, 4, 9, 6),
            (true, 5, 0, 3),
            (false, 3, 9, 3),
            (false, 4, 9, 2),
            (false, 4, 8, 3),
            (false, 4, 0, 3),
            (false, 4, 9, 7),
        ] {
            let taken = rules().accept_hard_state(&state(term, vote, commit));
            assert_eq!(taken.is_ok(), good, "{term} {vote} {commit}");
        }
        assert!(LogValidator::after(5).accept_hard_state(&state(0, 1, 0)).is_err());
        assert!(LogValidator::after(5).accept_hard_state(&state(0, 0, 1)).is_err());
    }

    #[test]
    fn a_snapshot_lies_within_the_log_or_begins_it_anew() {
        let taken = |index, term| {
            let mut rules = rules();
            let anew = rules.accept_snapshot(&WalSnapshot { index, term, conf_state: None });
            anew.map(|anew| (anew, rules.last_index)).ok()
        };
        assert_eq!(taken(4, 2), Some((false, 6)));
        assert_eq!(taken(9, 4), Some((true, 9)));
        assert_eq!(taken(5, 5), Some((true, 5)));
        assert_eq!(taken(3, 3), None);
    }
}
