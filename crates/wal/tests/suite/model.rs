//! Compares a log with a plain list: appends that replace entries, states, snapshots, cuts of
//! segments, purges, and reopening.

use clearlane_wal::files::SimulatedDisk;
use clearlane_wal::{ConfState, Entry, HardState, WalSnapshot};
use clearlane_wal::{Contents, Wal, read, valid_snapshots};
use proptest::prelude::*;

use crate::support::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Append {
        count: u8,
        size: u16,
    },
    /// Removes up to this number of uncommitted entries, and appends one entry in a new term.
    Replace {
        count: u8,
    },
    Commit {
        more: u8,
    },
    Vote {
        member: u8,
    },
    Snapshot {
        back: u8,
    },
    /// Receives a snapshot that is beyond the log.
    Receive {
        beyond: u8,
    },
    Purge,
    Sync,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..5_u8, 0..300_u16).prop_map(|(count, size)| Step::Append { count, size }),
        1 => (1..5_u8).prop_map(|count| Step::Replace { count }),
        2 => (0..6_u8).prop_map(|more| Step::Commit { more }),
        1 => (0..4_u8).prop_map(|member| Step::Vote { member }),
        1 => (0..8_u8).prop_map(|back| Step::Snapshot { back }),
        1 => (1..9_u8).prop_map(|beyond| Step::Receive { beyond }),
        1 => Just(Step::Purge),
        2 => Just(Step::Sync),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec(step, 1..60)
}

#[derive(Debug, Default)]
struct Model {
    /// The entries after `base`.
    entries: Vec<Entry>,
    base: (u64, u64),
    state: HardState,
    /// The newest snapshot. A start reads the entries after it.
    start: (u64, u64),
}

impl Model {
    fn last(&self) -> u64 {
        self.base.0 + self.entries.len() as u64
    }

    fn term_of(&self, index: u64) -> u64 {
        match index.checked_sub(self.base.0 + 1) {
            Some(place) => self.entries[place as usize].term,
            None => self.base.1,
        }
    }

    fn grow(&mut self, count: u8, size: u16) -> Vec<Entry> {
        self.state.term = self.state.term.max(1);
        let from = self.entries.len();
        for _ in 0..count {
            let text = "y".repeat(size.into());
            self.entries.push(entry(self.state.term, self.last() + 1, &text));
        }
        self.entries[from..].to_vec()
    }

    /// Returns the entries after the newest snapshot.
    fn after_start(&self) -> &[Entry] {
        &self.entries[(self.start.0 - self.base.0) as usize..]
    }
}

struct Race {
    disk: SimulatedDisk,
    wal: Wal,
    model: Model,
}

impl Race {
    fn step(&mut self, step: Step) {
        let Race { wal, model, .. } = self;
        match step {
            Step::Append { count, size } => {
                let entries = model.grow(count, size);
                wal.save(&entries, Some(&model.state)).unwrap();
            }
            Step::Replace { count } => {
                let free = model.last() - model.state.commit;
                let kept = model.entries.len() - (free.min(count.into())) as usize;
                model.entries.truncate(kept);
                model.state = state(model.state.term + 1, 0, model.state.commit);
                let entries = model.grow(1, 5);
                wal.save(&entries, Some(&model.state)).unwrap();
            }
            Step::Commit { more } => {
                model.state.term = model.state.term.max(1);
                model.state.commit = model.last().min(model.state.commit + u64::from(more));
                wal.save(&[], Some(&model.state)).unwrap();
            }
            Step::Vote { member } => {
                model.state = state(model.state.term + 1, member.into(), model.state.commit);
                wal.save(&[], Some(&model.state)).unwrap();
            }
            Step::Snapshot { back } => {
                let index = model.state.commit.saturating_sub(back.into());
                if index > model.start.0 {
                    model.start = (index, model.term_of(index));
                    save_snapshot(wal, snapshot(index, model.start.1)).unwrap();
                }
            }
            Step::Receive { beyond } => {
                let index = model.last() + u64::from(beyond);
                model.state = state(model.state.term + 1, 0, index);
                let received = snapshot(index, model.state.term);
                save_snapshot(wal, received.clone()).unwrap();
                wal.save(&[], Some(&model.state)).unwrap();
                *model = Model {
                    base: (index, received.term),
                    start: (index, received.term),
                    state: model.state,
                    entries: Vec::new(),
                };
            }
            Step::Purge => drop(wal.purge(model.start.0).unwrap()),
            Step::Sync => wal.sync().unwrap(),
            Step::Reopen => self.reopen(),
        }
    }

    fn reopen(&mut self) {
        self.wal.sync().unwrap();
        // This copy of the disk has no locks.
        self.disk = self.disk.after_kill();
        let starts = valid_snapshots(&self.disk, &dir()).unwrap();
        let start = starts.last().map(|start| (start.index, start.term));
        assert_eq!(start, Some(self.model.start));
        let (wal, contents) = open(&self.disk, self.model.start).unwrap();
        self.compare(&contents);
        self.wal = wal;
        assert_eq!(self.wal.last_index(), self.model.last());
    }

    fn compare(&self, contents: &Contents) {
        assert_eq!(contents.entries, self.model.after_start());
        assert_eq!(contents.hard_state, self.model.state);
        assert_eq!(contents.metadata, METADATA);
        assert_eq!(read(&self.disk, &dir(), self.model.start).as_ref().ok(), Some(contents));
    }
}

/// A new leader replaces the entries 1 and 2 with a new entry 1, and a snapshot at 1 follows. A
/// start at this snapshot must not return the old entry 2.
#[test]
fn what_was_replaced_below_the_start_does_not_come_back() {
    let disk = disk();
    let wal = create(&disk, options(700)).unwrap();
    let mut race = Race { disk, wal, model: Model::default() };
    race.step(Step::Append { count: 2, size: 0 });
    race.step(Step::Replace { count: 2 });
    race.step(Step::Commit { more: 1 });
    race.step(Step::Snapshot { back: 0 });
    race.reopen();
}

proptest! {
    #[test]
    fn a_log_holds_what_a_list_holds(steps in steps()) {
        let disk = disk();
        let wal = create(&disk, options(700)).unwrap();
        let mut race = Race { disk, wal, model: Model::default() };
        for step in steps {
            race.step(step);
        }
        race.reopen();
    }

    /// A segment with arbitrary bytes is rejected or read as some log, without a panic.
    #[test]
    fn no_segment_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        at in 0..400_usize,
    ) {
        let made = disk();
        let mut wal = create(&made, options(400)).unwrap();
        wal.save(&[entry(1, 1, "abc"), entry(1, 2, "def")], Some(&state(1, 2, 1))).unwrap();
        wal.close().unwrap();
        let (name, mut whole) = contents_of(&made).remove(0);
        whole.truncate(at);
        whole.extend(bytes);
        let disk = disk_with(&[(name, whole)]);
        let _ = valid_snapshots(&disk, &dir());
        let _ = open(&disk, (0, 0));
    }
}

#[test]
fn a_snapshot_keeps_its_members() {
    let disk = disk();
    let mut wal = create(&disk, options(700)).unwrap();
    let conf_state =
        ConfState { voters: vec![1], learners: vec![2, u64::MAX], ..Default::default() };
    let members = WalSnapshot { index: 1, term: 1, conf_state: Some(conf_state) };
    wal.save(&[entry(1, 1, "")], Some(&state(1, 0, 1))).unwrap();
    save_snapshot(&mut wal, members.clone()).unwrap();
    assert_eq!(valid_snapshots(&disk, &dir()).unwrap(), [WalSnapshot::default(), members]);
}
