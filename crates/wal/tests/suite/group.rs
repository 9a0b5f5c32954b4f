//! Group sync: one sync for all waiting appends, in order, and the end after a failure.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use clearlane_wal::Error;
use clearlane_wal::files::{Fault, OsFileSystem};
use clearlane_wal::group_commit::{GroupCommit, run_writer};
use clearlane_wal::{Append, Options, Wal, read};
use proptest::prelude::*;

use crate::support::*;

fn append(index: u64) -> Append {
    Append { entries: vec![entry(1, index, "x")], ..Append::default() }
}

#[test]
fn what_gathers_during_a_sync_shares_the_next() {
    let disk = disk();
    let mut wal = create(&disk, options(65_536)).unwrap();
    let mut group = GroupCommit::new();
    assert!(group.take_batch().is_none());
    assert_eq!(group.submit(append(1)).unwrap(), 1);
    let first = group.take_batch().unwrap();
    let before = disk.syncs();
    for index in 2..=100 {
        assert_eq!(group.submit(append(index)).unwrap(), index);
    }
    assert!(group.take_batch().is_none(), "one batch at a time");
    assert_eq!((group.finish_batch(first.write(&mut wal)).unwrap(), group.durable()), (1, 1));
    let second = group.take_batch().unwrap();
    assert_eq!((second.len(), second.is_empty()), (99, false));
    assert_eq!(group.finish_batch(second.write(&mut wal)).unwrap(), 100);
    assert_eq!(disk.syncs() - before, 2);
    // Only the commit rose: no append waits for the disk.
    let commit = Append { hard_state: Some(state(1, 0, 100)), ..Append::default() };
    let elected = Append { hard_state: Some(state(1, 0, 1)), ..Append::default() };
    group.submit(elected).unwrap();
    let batch = group.take_batch().unwrap();
    assert_eq!(group.finish_batch(batch.write(&mut wal)).unwrap(), 101);
    assert_eq!(disk.syncs() - before, 3);
    group.submit(commit).unwrap();
    let batch = group.take_batch().unwrap();
    assert_eq!(group.finish_batch(batch.write(&mut wal)).unwrap(), 102);
    assert_eq!(disk.syncs() - before, 3);
}

#[test]
fn a_failed_batch_is_the_last() {
    let disk = disk();
    let mut wal = create(&disk, options(65_536)).unwrap();
    let mut group = GroupCommit::new();
    group.submit(append(1)).unwrap();
    let batch = group.take_batch().unwrap();
    group.submit(append(2)).unwrap();
    disk.fail_at(2, Fault::Error);
    let first = group.finish_batch(batch.write(&mut wal)).unwrap_err().to_string();
    assert_eq!(group.submit(append(3)).unwrap_err().to_string(), first);
    assert!(group.take_batch().is_none());
    assert_eq!(group.durable(), 0);
}

proptest! {
    /// Submissions, begins and finishes in any order: what is reported as durable is in the log of
    /// a disk whose power is cut at that moment.
    #[test]
    fn what_is_told_is_there(steps in proptest::collection::vec(0..4_u8, 1..80), seed: u64) {
        let disk = disk();
        let mut wal = create(&disk, options(2000)).unwrap();
        let (mut group, mut running, mut submitted) = (GroupCommit::new(), VecDeque::new(), 0);
        for step in steps {
            match step {
                0 | 1 => {
                    submitted += 1;
                    prop_assert_eq!(group.submit(append(submitted)).unwrap(), submitted);
                }
                2 => running.extend(group.take_batch()),
                _ => {
                    for batch in running.drain(..) {
                        group.finish_batch(batch.write(&mut wal)).unwrap();
                    }
                }
            }
            let found = read(&disk.after_power_cut(seed), &dir(), (0, 0)).unwrap();
            prop_assert!(found.entries.len() as u64 >= group.durable());
        }
    }
}

#[test]
fn a_thread_serves_many_writers() {
    const WRITERS: u64 = 20;
    const EACH: u64 = 50;
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("wal");
    let options = Options { segment_bytes: 16_384, segments_max: None };
    let mut wal = Wal::create(Arc::new(OsFileSystem), &dir, METADATA, options).unwrap();
    let (sender, appends) = mpsc::channel();
    let (told, durable) = mpsc::channel();
    thread::scope(|threads| {
        let log = &mut wal;
        let tell = move |ticket| told.send(ticket).unwrap();
        let server = threads.spawn(move || run_writer(log, &appends, tell));
        // As the raft loop would: each writer's next entry goes when its last one is durable.
        let (mut handed_over, mut done) = (0, 0);
        while done < WRITERS * EACH {
            while handed_over < (done + WRITERS).min(WRITERS * EACH) {
                handed_over += 1;
                sender.send(append(handed_over)).unwrap();
            }
            let ticket = durable.recv().unwrap();
            assert!(ticket > done && ticket <= handed_over);
            done = ticket;
        }
        drop(sender);
        server.join().unwrap().unwrap();
    });
    wal.close().unwrap();
    assert_eq!(read(&OsFileSystem, &dir, (0, 0)).unwrap().entries.len() as u64, WRITERS * EACH);
}

#[test]
fn a_thread_ends_at_the_first_failure() {
    let disk = disk();
    let mut wal = create(&disk, options(65_536)).unwrap();
    disk.fail_at(4, Fault::PowerCut);
    let (sender, appends) = mpsc::channel();
    (1..=10).for_each(|index| sender.send(append(index)).unwrap());
    let mut told = 0;
    // One batch with all of them succeeds; the next one does not.
    let mut first = true;
    let ended = run_writer(&mut wal, &appends, |ticket| {
        told = ticket;
        if std::mem::take(&mut first) {
            sender.send(append(11)).unwrap();
        }
    });
    assert!(matches!(ended, Err(Error::Failed { .. })), "{ended:?}");
    assert_eq!(told, 10);
}
