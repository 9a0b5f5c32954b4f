//! The models: a list of all changes of a key, and a map of such lists.
//!
//! Compaction here follows etcd's rule, generation by generation, and not the shorter rule of
//! `KeyIndex`. The tests show that both rules have the same result.

use std::collections::BTreeMap;

use clearlane_engine::KeyRange;
use clearlane_mvcc::{EncodedLen, RecordKind, Revision, Version};

type HistoryChange = (Revision, RecordKind);

/// All changes of a key, including changes that a compaction has dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlainHistory {
    all: Vec<HistoryChange>,
    dropped: usize,
}

impl PlainHistory {
    pub(crate) fn put(&mut self, revision: Revision) -> Version {
        self.all.push((revision, RecordKind::Put));
        self.at(i64::MAX).unwrap()
    }

    pub(crate) fn tombstone(&mut self, revision: Revision) -> Option<Version> {
        let ended = self.at(i64::MAX)?;
        self.all.push((revision, RecordKind::Tombstone));
        Some(ended)
    }

    pub(crate) fn at(&self, at: i64) -> Option<Version> {
        let newest = self.all.iter().rposition(|(revision, _)| revision.main <= at)?;
        let (modified, mark) = self.all[newest];
        if newest < self.dropped || mark == RecordKind::Tombstone {
            return None;
        }
        let since = self.all[..newest].iter().rposition(|(_, mark)| *mark == RecordKind::Tombstone);
        let first = since.map_or(0, |tombstone| tombstone + 1);
        let created = self.all[first].0.main;
        Some(Version {
            modified,
            created,
            version: (newest - first + 1) as i64,
            encoded_len: EncodedLen::UNKNOWN,
        })
    }

    /// Returns the remaining changes, in generations. The last generation may be empty.
    fn generations(&self) -> Vec<Vec<HistoryChange>> {
        let mut generations = vec![Vec::new()];
        for change in &self.all[self.dropped..] {
            generations.last_mut().unwrap().push(*change);
            if change.1 == RecordKind::Tombstone {
                generations.push(Vec::new());
            }
        }
        generations
    }

    /// Returns the number of the generation that a compaction at `at` visits, and the newest change
    /// up to `at` in this generation.
    fn find(&self, at: i64) -> (usize, Option<HistoryChange>) {
        let generations = self.generations();
        let reaches =
            |changes: &Vec<HistoryChange>| changes.last().is_some_and(|last| last.0.main >= at);
        let number = generations.iter().position(reaches).unwrap_or(generations.len() - 1);
        let found = generations[number].iter().rfind(|(revision, _)| revision.main <= at);
        (number, found.copied())
    }

    pub(crate) fn kept_by_compaction(&self, at: i64) -> Option<Revision> {
        self.find(at).1.map(|(revision, _)| revision)
    }

    pub(crate) fn kept_by_hash(&self, at: i64) -> Option<Revision> {
        let (number, found) = self.find(at);
        let generations = self.generations();
        let is_last = number == generations.len() - 1;
        found
            .filter(|found| is_last || generations[number].last() != Some(found))
            .map(|found| found.0)
    }

    /// Compacts the history. Returns true if anything is left.
    pub(crate) fn compact(&mut self, at: i64) -> bool {
        let (number, found) = self.find(at);
        let generations = self.generations();
        let before: usize = generations[..number].iter().map(Vec::len).sum();
        let within = found.map_or(0, |found| {
            generations[number].iter().position(|change| *change == found).unwrap()
        });
        self.dropped += before + within;
        self.dropped < self.all.len()
    }

    pub(crate) fn is_lone_tombstone(&self) -> bool {
        matches!(self.all[self.dropped..], [(_, RecordKind::Tombstone)])
    }

    /// Shows the history in the format of a `KeyIndex`.
    pub(crate) fn show(&self) -> String {
        let word = |(revision, mark): &HistoryChange| match mark {
            RecordKind::Put => revision.to_string(),
            RecordKind::Tombstone => format!("{revision}t"),
        };
        let generations = self.generations().into_iter().filter(|changes| !changes.is_empty());
        let words = generations.map(|changes| {
            format!("{{{}}}", changes.iter().map(word).collect::<Vec<_>>().join(" "))
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PlainIndex(pub(crate) BTreeMap<Vec<u8>, PlainHistory>);

impl PlainIndex {
    pub(crate) fn versions(&self, range: KeyRange<'_>, at: i64) -> Vec<(Vec<u8>, Version)> {
        let keys = self.0.iter().filter(|(key, _)| range.contains(key));
        keys.filter_map(|(key, history)| Some((key.clone(), history.at(at)?))).collect()
    }

    pub(crate) fn compact(&mut self, at: i64) -> Vec<Revision> {
        let mut kept: Vec<Revision> =
            self.0.values().filter_map(|history| history.kept_by_compaction(at)).collect();
        kept.sort();
        self.0.retain(|_, history| history.compact(at));
        kept
    }
}
