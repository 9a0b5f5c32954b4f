//! Records how time is spent, to the nanosecond.
//!
//! A process spends its time running, or waiting for a core, a disk, the network, or a named lock
//! or worker. The difference between a later and an earlier account of a process shows how it has
//! spent the time in between.

use std::ops::{AddAssign, Index, IndexMut};

use crate::world::World;

/// Maximum number of kinds of time in one world.
const KINDS: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeKind(u8);

impl TimeKind {
    pub const RUNNING: TimeKind = TimeKind(0);
    /// The process is runnable, but all cores are busy.
    pub const CORE: TimeKind = TimeKind(1);
    pub const DISK: TimeKind = TimeKind(2);
    pub const NETWORK: TimeKind = TimeKind(3);

    const FIXED: [&'static str; 4] = ["running", "waiting for a core", "disk", "network"];

    /// Returns the kind of time for waits for the resource or task of this name.
    ///
    /// # Panics
    ///
    /// Panics if the world already has too many names.
    pub fn named(world: &World, name: &'static str) -> TimeKind {
        let number = world.number_of(name) + TimeKind::FIXED.len();
        assert!(number < KINDS, "{name} is one name too many");
        TimeKind(number as u8)
    }

    pub(crate) fn all(world: &World) -> impl Iterator<Item = TimeKind> {
        (0..TimeKind::FIXED.len() + world.names().len()).map(|number| TimeKind(number as u8))
    }

    pub fn name(self, world: &World) -> &'static str {
        let number = usize::from(self.0);
        match number.checked_sub(TimeKind::FIXED.len()) {
            None => TimeKind::FIXED[number],
            Some(number) => world.names()[number],
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account([u64; KINDS]);

impl Account {
    pub fn total_ns(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns all kinds that have a time above 0. The kind with the largest time is first.
    pub fn entries(&self) -> Vec<(TimeKind, u64)> {
        let all = self.0.iter().enumerate().map(|(kind, ns)| (TimeKind(kind as u8), *ns));
        let mut entries: Vec<_> = all.filter(|(_, ns)| *ns > 0).collect();
        entries.sort_by_key(|(kind, ns)| (std::cmp::Reverse(*ns), *kind));
        entries
    }

    /// Reduces the total to `ns` if it is larger. Takes the time from the largest part, because
    /// this part most likely includes the step that started before the period of this account.
    pub(crate) fn cut_to(&mut self, ns: u64) {
        while let Some(too_much) = self.total_ns().checked_sub(ns).filter(|ns| *ns > 0) {
            let largest = self.0.iter_mut().max().expect("there are some");
            *largest = largest.saturating_sub(too_much);
        }
    }

    /// Returns the time spent since `earlier`, which is an account of the same process.
    pub fn since(&self, earlier: &Account) -> Account {
        let mut difference = *self;
        for (now, before) in difference.0.iter_mut().zip(earlier.0) {
            *now = now.saturating_sub(before);
        }
        difference
    }
}

impl Index<TimeKind> for Account {
    type Output = u64;

    fn index(&self, kind: TimeKind) -> &u64 {
        &self.0[usize::from(kind.0)]
    }
}

impl IndexMut<TimeKind> for Account {
    fn index_mut(&mut self, kind: TimeKind) -> &mut u64 {
        &mut self.0[usize::from(kind.0)]
    }
}

impl AddAssign for Account {
    fn add_assign(&mut self, other: Account) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }
}
