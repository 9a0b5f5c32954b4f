//! Tests of group commit: one sync for all waiting appends, in order, and none after a failure.

use std::collections::VecDeque;

use clearlane_wal::files::Fault;
use clearlane_wal::group_commit::GroupCommit;
use clearlane_wal::{Append, read};
use proptest::prelude::*;

use crate::support::*;

fn append(index: u64) -> Append {
    Append { entries: vec![entry(1, index, "x")], ..Append::default() }
}

#[test]
fn what_gathers_during_a_sync_shares_the_next() {
    let disk = disk();
    let mut wal = create(&disk, options(65_536)).unwrap();
    let mut group = GroupCommit::default();
    assert!(group.take_batch().is_none());
    assert_eq!(group.submit(append(1)), 1);
    let first = group.take_batch().unwrap();
    let before = disk.syncs();
    for index in 2..=100 {
        assert_eq!(group.submit(append(index)), index);
    }
    assert!(group.take_batch().is_none(), "one batch at a time");
    assert_eq!(group.finish_batch(first.write(&mut wal)).unwrap(), 1);
    let second = group.take_batch().unwrap();
    assert_eq!(second.appends().len(), 99);
    assert_eq!(group.finish_batch(second.write(&mut wal)).unwrap(), 100);
    assert_eq!(disk.syncs() - before, 2);
    // `elected` needs a sync, because its term is new. `commit` needs none, because only the commit
    // index rises.
    let commit = Append { hard_state: Some(state(1, 0, 100)), ..Append::default() };
    let elected = Append { hard_state: Some(state(1, 0, 1)), ..Append::default() };
    group.submit(elected);
    let batch = group.take_batch().unwrap();
    assert_eq!(group.finish_batch(batch.write(&mut wal)).unwrap(), 101);
    assert_eq!(disk.syncs() - before, 3);
    group.submit(commit);
    let batch = group.take_batch().unwrap();
    assert_eq!(group.finish_batch(batch.write(&mut wal)).unwrap(), 102);
    assert_eq!(disk.syncs() - before, 3);
}

#[test]
fn a_failed_batch_is_the_last() {
    let disk = disk();
    let mut wal = create(&disk, options(65_536)).unwrap();
    let mut group = GroupCommit::default();
    group.submit(append(1));
    let batch = group.take_batch().unwrap();
    group.submit(append(2));
    disk.fail_at(2, Fault::Error);
    let first = group.finish_batch(batch.write(&mut wal)).unwrap_err().to_string();
    let next = group.take_batch().unwrap();
    assert_eq!(group.finish_batch(next.write(&mut wal)).unwrap_err().to_string(), first);
}

proptest! {
    /// Runs random operations. After a power cut at any point, the log must contain all entries
    /// that were reported as durable.
    #[test]
    fn what_is_told_is_there(steps in proptest::collection::vec(0..4_u8, 1..80), seed: u64) {
        let disk = disk();
        let mut wal = create(&disk, options(2000)).unwrap();
        let (mut group, mut running) = (GroupCommit::default(), VecDeque::new());
        let (mut submitted, mut durable) = (0, 0);
        for step in steps {
            match step {
                0 | 1 => {
                    submitted += 1;
                    prop_assert_eq!(group.submit(append(submitted)), submitted);
                }
                2 => running.extend(group.take_batch()),
                _ => {
                    for batch in running.drain(..) {
                        durable = group.finish_batch(batch.write(&mut wal)).unwrap();
                    }
                }
            }
            let found = read(&disk.after_power_cut(seed), &dir(), (0, 0)).unwrap();
            prop_assert!(found.entries.len() as u64 >= durable);
        }
    }
}
