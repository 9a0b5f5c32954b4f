//! Tests of the requests that a log rejects, and of their errors.

use std::sync::Arc;

use clearlane_wal::files::{Fault, FileSystem};
use clearlane_wal::{Append, Wal, exists, read, valid_snapshots};
use clearlane_wal::{Entry, EntryKind, Error, WalSnapshot};

use crate::support::*;

#[test]
fn what_does_not_follow_is_not_written() {
    let disk = disk();
    let mut wal = create(&disk, options(4096)).unwrap();
    assert!(matches!(wal.save(&[entry(0, 1, "term 0")], None), Err(Error::Refused(_))));
    assert!(matches!(wal.save(&[], Some(&state(0, 1, 0))), Err(Error::Refused(_))));
    // The terms are 1, 1, 2, 2, 4, 4; 3 entries are committed.
    let entries = (1..).zip([1, 1, 2, 2, 4, 4]).map(|(index, term)| entry(term, index, "a"));
    let entries: Vec<_> = entries.collect();
    wal.save(&entries, Some(&state(4, 7, 3))).unwrap();
    wal.sync().unwrap();
    let before = contents_of(&disk);
    let change = Entry { kind: EntryKind::ConfChange, ..entry(4, 7, "") };
    for (entries, new) in [
        (vec![entry(4, 8, "gap")], None),
        (vec![entry(4, 7, "good"), entry(4, 9, "gap")], None),
        (vec![entry(3, 7, "old term")], None),
        (vec![entry(1, 4, "old term")], None),
        (vec![entry(4, 3, "committed")], None),
        (vec![change], None),
        (vec![entry(4, 7, "good")], Some(state(3, 7, 3))),
        (vec![], Some(state(4, 8, 3))),
        (vec![], Some(state(4, 0, 3))),
        (vec![], Some(state(4, 7, 2))),
        (vec![], Some(state(4, 7, 7))),
    ] {
        let refused = wal.save(&entries, new.as_ref());
        assert!(matches!(refused, Err(Error::Refused(_))), "{entries:?} {new:?}");
    }
    let without_members = WalSnapshot { index: 3, term: 2, conf_state: None };
    for refused in [without_members, snapshot(3, 3)] {
        assert!(matches!(save_snapshot(&mut wal, refused), Err(Error::Refused(_))));
    }
    wal.sync().unwrap();
    assert_eq!(contents_of(&disk), before);
    save_snapshot(&mut wal, snapshot(3, 2)).unwrap();
    wal.save(&[entry(5, 7, "good")], Some(&state(5, 0, 3))).unwrap();
    wal.save(&[entry(3, 5, "replaces")], None).unwrap();
    assert_eq!(wal.last_index(), 5);
}

#[test]
fn a_sync_is_needed_unless_only_the_commit_rose() {
    let mut wal = create(&disk(), options(4096)).unwrap();
    assert!(!wal.save(&[], None).unwrap());
    assert!(!wal.save(&[], Some(&state(0, 0, 0))).unwrap());
    assert!(wal.save(&[entry(1, 1, "")], None).unwrap());
    assert!(wal.save(&[], Some(&state(1, 0, 0))).unwrap());
    assert!(wal.save(&[], Some(&state(1, 3, 0))).unwrap());
    assert!(!wal.save(&[], Some(&state(1, 3, 1))).unwrap());
    let append = Append { snapshot: Some(snapshot(1, 1)), ..Append::default() };
    assert!(wal.append_all(&append).unwrap());
}

#[test]
fn a_second_opening_is_refused() {
    let disk = disk();
    let wal = create(&disk, options(4096)).unwrap();
    assert!(matches!(open(&disk, (0, 0)), Err(Error::Locked { .. })));
    assert!(matches!(create(&disk, options(4096)), Err(Error::Exists { .. })));
    assert!(read(&disk, &dir(), (0, 0)).is_ok(), "reading locks nothing");
    drop(wal);
    let (first, _) = open(&disk, (0, 0)).unwrap();
    assert!(matches!(open(&disk, (0, 0)), Err(Error::Locked { .. })));
    drop(first);
    assert!(open(&disk, (0, 0)).is_ok());
}

#[test]
fn what_is_not_there_is_said() {
    let disk = disk();
    assert!(!exists(&disk, &dir()).unwrap());
    assert!(matches!(valid_snapshots(&disk, &dir()), Err(Error::Missing { .. })));
    disk.create_dir(&dir()).unwrap();
    assert!(matches!(open(&disk, (0, 0)), Err(Error::Missing { .. })));
    let mut wal = create(&disk, options(4096)).unwrap();
    wal.save(&[entry(3, 1, "a"), entry(3, 2, "b")], Some(&state(3, 0, 2))).unwrap();
    save_snapshot(&mut wal, snapshot(2, 3)).unwrap();
    wal.close().unwrap();
    let error = open(&disk, (1, 3)).unwrap_err();
    assert_eq!(error.to_string(), "/member/wal: no record of the snapshot at index 1, term 3");
    let error = open(&disk, (2, 1)).unwrap_err().to_string();
    assert!(error.ends_with("the snapshot at 2 has term 3"), "{error}");
    assert_eq!(open(&disk, (2, 3)).unwrap().1.entries, []);
}

#[test]
fn a_snapshot_that_no_state_covers_is_not_valid() {
    let disk = disk();
    let mut wal = create(&disk, options(4096)).unwrap();
    wal.save(&[entry(1, 1, "a")], Some(&state(1, 0, 1))).unwrap();
    save_snapshot(&mut wal, snapshot(9, 1)).unwrap();
    assert_eq!(valid_snapshots(&disk, &dir()).unwrap(), [WalSnapshot::default()]);
    drop(wal);
    // The log continues after the last entry that was read. The snapshot at 9 was not taken, so
    // entry 10 does not follow.
    let (mut wal, contents) = open(&disk, (0, 0)).unwrap();
    assert_eq!((contents.entries.len(), wal.last_index()), (1, 1));
    assert!(matches!(wal.save(&[entry(1, 10, "")], None), Err(Error::Refused(_))));
    wal.save(&[entry(1, 2, "b")], None).unwrap();
    wal.close().unwrap();
    assert_eq!(read(&disk, &dir(), (0, 0)).unwrap().entries.len(), 2);
}

#[test]
fn a_snapshot_that_was_never_taken_does_not_count_when_the_log_has_passed_it() {
    let disk = disk();
    let mut wal = create(&disk, options(4096)).unwrap();
    wal.save(&[entry(1, 1, "a")], Some(&state(1, 0, 1))).unwrap();
    save_snapshot(&mut wal, snapshot(4, 1)).unwrap();
    drop(wal);
    let (mut wal, _) = open(&disk, (0, 0)).unwrap();
    for index in 2..=6 {
        wal.save(&[entry(1, index, "b")], Some(&state(1, 0, index))).unwrap();
        // The received snapshot at 4 was discarded earlier. It stays invalid, whatever is committed
        // now.
        assert_eq!(valid_snapshots(&disk, &dir()).unwrap(), [WalSnapshot::default()]);
    }
    wal.close().unwrap();
    let (mut wal, contents) = open(&disk, (0, 0)).unwrap();
    assert_eq!((contents.entries.len(), contents.snapshots.len()), (6, 1));
    // The member's own snapshot, made later, is valid.
    save_snapshot(&mut wal, snapshot(4, 1)).unwrap();
    wal.save(&[entry(1, 7, "c")], None).unwrap();
    assert_eq!(valid_snapshots(&disk, &dir()).unwrap(), [WalSnapshot::default(), snapshot(4, 1)]);
}

/// Another leader sends a snapshot with a smaller index, after a snapshot that was never taken. The
/// smaller snapshot must be taken.
#[test]
fn a_snapshot_is_taken_below_one_that_never_was() {
    for own in [1, 8] {
        let disk = disk();
        let mut wal = create(&disk, options(4096)).unwrap();
        let entries: Vec<_> = (1..=own).map(|index| entry(1, index, "own")).collect();
        wal.save(&entries, Some(&state(1, 0, 1))).unwrap();
        save_snapshot(&mut wal, snapshot(9, 2)).unwrap();
        drop(wal);
        let (mut wal, _) = open(&disk, (0, 0)).unwrap();
        assert_eq!(wal.last_index(), own);
        let (snapshot, state) = (Some(snapshot(7, 3)), Some(state(3, 0, 7)));
        wal.append_all(&Append { snapshot, hard_state: state, ..Append::default() }).unwrap();
        assert_eq!(wal.last_index(), 7);
        wal.close().unwrap();
        assert!(open(&disk, (0, 0)).is_err(), "from 2 to 7 the log has nothing that counts");
        let newest = valid_snapshots(&disk, &dir()).unwrap().pop().unwrap();
        assert_eq!((newest.index, newest.term), (7, 3));
        let (mut wal, contents) = open(&disk, (7, 3)).unwrap();
        assert_eq!((contents.entries, wal.last_index()), (vec![], 7), "{own} of its own");
        wal.save(&[entry(3, 8, "next")], None).unwrap();
    }
}

#[test]
fn what_lies_before_a_received_snapshot_is_no_start() {
    for (last, entries) in [(1, vec![]), (1, vec![entry(2, 10, "b")]), (12, vec![])] {
        let disk = disk();
        let mut wal = create(&disk, options(4096)).unwrap();
        // These entries are from a replaced leader. From entry 2 on, they differ from the committed
        // entries.
        let own: Vec<_> = (1..=last).map(|index| entry(1, index, "void")).collect();
        wal.save(&own, Some(&state(1, 0, 1))).unwrap();
        let state = state(2, 0, 9 + entries.len() as u64);
        let received = Append { snapshot: Some(snapshot(9, 2)), entries, hard_state: Some(state) };
        wal.append_all(&received).unwrap();
        wal.close().unwrap();
        let refused = read(&disk, &dir(), (0, 0)).unwrap_err();
        assert!(matches!(refused, Error::Refused(_) | Error::Corrupt { .. }), "{refused}");
        assert!(open(&disk, (0, 0)).is_err());
        let (wal, contents) = open(&disk, (9, 2)).unwrap();
        assert_eq!((contents.entries, wal.last_index()), (received.entries, state.commit));
    }
}

#[test]
fn entries_behind_a_received_snapshot_are_never_without_it() {
    let disk = disk();
    let mut wal = create(&disk, options(4096)).unwrap();
    wal.save(&[entry(1, 1, "a")], Some(&state(1, 0, 1))).unwrap();
    let append = Append {
        snapshot: Some(snapshot(9, 2)),
        entries: vec![entry(2, 10, "b"), entry(2, 11, "c")],
        hard_state: Some(state(2, 0, 11)),
    };
    wal.append_all(&append).unwrap();
    wal.sync().unwrap();
    let log = contents_of(&disk);
    // Wherever the log is cut, it has a valid snapshot, and it can be opened at that snapshot.
    for (_, end) in frames(&log[0].1).into_iter().skip(5) {
        let disk = disk_with(&[(log[0].0.clone(), log[0].1[..end].to_vec())]);
        let start = valid_snapshots(&disk, &dir()).unwrap().pop().unwrap();
        assert!(open(&disk, (start.index, start.term)).is_ok(), "cut at {end}");
    }
    assert_eq!(read(&disk, &dir(), (9, 2)).unwrap().entries, append.entries);
}

#[test]
fn every_failure_is_the_last_operation() {
    // Each write, each sync and each step of creating the next segment fails once. Every later call
    // must return the same error.
    for at in 1..=9 {
        let disk = disk();
        let mut wal = create(&disk, options(300)).unwrap();
        disk.fail_at(at, Fault::Error);
        let mut steps = 0_u64;
        let first = loop {
            steps += 1;
            let text = "x".repeat(200);
            let saved = wal.save(&[entry(1, steps, &text)], None).and_then(|_| wal.sync());
            if let Err(error) = saved {
                break error.to_string();
            }
        };
        assert!(first.contains("the log accepts no more writes"), "{first}");
        let operations = disk.operations();
        let later = [
            wal.save(&[], None).map(drop),
            wal.sync(),
            wal.purge(1).map(drop),
            save_snapshot(&mut wal, snapshot(1, 1)),
            wal.close(),
        ];
        for result in later {
            assert_eq!(result.unwrap_err().to_string(), first);
        }
        assert_eq!(disk.operations(), operations, "nothing touches the disk any more");
    }
}

#[test]
fn a_failed_making_leaves_no_log_and_can_be_repeated() {
    for at in 1..=8 {
        let disk = disk();
        disk.fail_at(at, Fault::Error);
        match create(&disk, options(300)) {
            Ok(_) => assert!(disk.operations() < at),
            Err(error) => {
                assert!(matches!(error, Error::Path { .. }), "{error}");
                if !exists(&disk, &dir()).unwrap() {
                    create(&disk, options(300)).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_purge_leaves_what_a_start_needs() {
    let disk = disk();
    let mut wal = create(&disk, options(300)).unwrap();
    for index in 1..=20 {
        let text = "x".repeat(200);
        wal.save(&[entry(1, index, &text)], Some(&state(1, 0, index))).unwrap();
        wal.sync().unwrap();
    }
    let all = wal.segment_count();
    assert_eq!(wal.purge(20).unwrap(), 0, "no snapshot is on record");
    save_snapshot(&mut wal, snapshot(11, 1)).unwrap();
    let removed = wal.purge(20).unwrap();
    assert!(removed > 3);
    assert_eq!(segments(&disk, &dir()).len(), all - removed);
    assert_eq!(wal.purge(20).unwrap(), 0);
    drop(wal);
    let start = valid_snapshots(&disk, &dir()).unwrap().pop().unwrap();
    let (mut wal, contents) = open(&disk, (start.index, start.term)).unwrap();
    assert_eq!((start.index, contents.entries.len()), (11, 9));
    assert_eq!(wal.purge(u64::MAX).unwrap(), 0);
    let keep =
        Wal::open(Arc::new(disk.after_kill()), &dir(), (11, 1), clearlane_wal::Options::default());
    assert_eq!(keep.unwrap().0.purge(11).unwrap(), 0, "five are kept anyway");
}

/// A segment starts with the last state. If that state were missing, the log would seem to be
/// committed only up to an index below the start. So such a start fails.
#[test]
fn a_start_at_what_is_not_committed_is_refused() {
    let disk = disk();
    let mut wal = create(&disk, options(2048)).unwrap();
    wal.save(&[entry(1, 1, ""), entry(1, 2, "")], Some(&state(1, 0, 1))).unwrap();
    save_snapshot(&mut wal, snapshot(2, 1)).unwrap();
    wal.close().unwrap();
    assert!(matches!(read(&disk, &dir(), (2, 1)), Err(Error::Refused(_))));
    assert!(matches!(open(&disk, (2, 1)), Err(Error::Refused(_))));
}
