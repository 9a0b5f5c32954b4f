//! Readers go when this member has applied enough, in every mode.

use std::time::Duration;

use clearlane_member::core::Settings;
use clearlane_read_index::ReadMode;

use crate::both::Reads;
use crate::lab::Lab;
use crate::settings;

fn in_mode(read_mode: ReadMode) -> Lab {
    let mut lab = Lab::new(3, Settings { read_mode, ..settings() });
    lab.leader();
    lab
}

#[test]
fn every_mode_lets_readers_go_at_every_member() {
    for mode in ReadMode::ALL {
        let mut lab = in_mode(mode);
        let leader = lab.leader();
        lab.put(leader, "a", "1");
        for id in 1..=3 {
            lab.call(id, |core| core.read(id));
            lab.run();
            lab.tick(2);
            let reads = std::mem::take(&mut lab.bench(id).reads);
            assert_eq!(reads, [Reads::Go(vec![id])], "{mode:?} at {id}");
            if mode != ReadMode::Serializable {
                assert_eq!(lab.bench(id).get("a").0.as_deref(), Some("1"), "{mode:?} at {id}");
            }
        }
    }
}

/// Its store is as far as the cluster, and nothing is written any more that it could apply.
#[test]
fn readers_go_at_a_member_that_comes_back_with_everything() {
    for mode in [ReadMode::ReadIndex, ReadMode::Lease, ReadMode::Serializable] {
        let mut lab = in_mode(mode);
        let leader = lab.leader();
        let other = leader % 3 + 1;
        lab.put(leader, "a", "1");
        lab.tick(2);
        lab.commit(other);
        lab.crash(other);
        lab.start(other);
        lab.tick(2);
        lab.call(other, |core| core.read(1));
        lab.run();
        lab.tick(2);
        let reads = std::mem::take(&mut lab.bench(other).reads);
        assert_eq!(reads, [Reads::Go(vec![1])], "{mode:?}");
        assert_eq!(lab.leader(), leader);
    }
}

/// Raft gives it up after some ticks, and the other is elected all the same if it hears of it then.
#[test]
fn a_transfer_that_ends_before_the_next_poll_takes_the_lease() {
    let mut lab = in_mode(ReadMode::Lease);
    let leader = lab.leader();
    lab.put(leader, "a", "1");
    lab.call(leader, |core| core.read(1));
    lab.run();
    lab.call(leader, |core| core.read(2));
    let reads = std::mem::take(&mut lab.bench(leader).reads);
    assert_eq!(reads, [Reads::Go(vec![1]), Reads::Go(vec![2])], "the second under the lease");
    let core = lab.bench(leader).core();
    core.raft.transfer_leader(leader % 3 + 1);
    for _ in 0..10 {
        core.tick();
    }
    core.read(3);
    lab.poll(leader);
    assert_eq!(lab.bench(leader).reads, [], "nobody goes without a round");
    lab.run();
    assert_ne!(lab.leader(), leader, "it was told to be elected");
}

/// Who waits wants to know for what: for others, or for this member.
#[test]
fn a_reader_that_waits_for_this_member_alone_is_told_since_when() {
    let mut lab = in_mode(ReadMode::ReadIndex);
    let leader = lab.leader();
    // The third member confirms before this one has what it missed.
    let other = (leader + 1) % 3 + 1;
    lab.cut.push(other);
    lab.put(leader, "a", "1");
    lab.cut.clear();
    for id in [other, leader] {
        lab.call(id, |core| core.read(1));
        lab.run();
        assert_eq!(std::mem::take(&mut lab.bench(id).reads), [Reads::Go(vec![1])]);
        // No time passes here but by ticks, and a follower hears with the next one what is committed.
        assert_eq!(lab.bench(id).applying, Some(Duration::ZERO), "at {id}, {leader} leads");
    }
}

/// Those who come together go together, by one round.
#[test]
fn one_round_serves_all_who_wait() {
    let mut lab = in_mode(ReadMode::ReadIndex);
    let leader = lab.leader();
    for reader in 0..100 {
        lab.bench(leader).core().read(reader);
    }
    lab.poll(leader);
    lab.run();
    let gone: usize = lab.bench(leader).reads.iter().map(readers).sum();
    assert_eq!(gone, 100);
    assert_eq!(lab.bench(leader).core().raft.read_figures().rounds, 1);
}

fn readers(reads: &Reads) -> usize {
    match reads {
        Reads::Go(readers) => readers.len(),
        Reads::Fail(error, _) => panic!("{error}"),
    }
}

/// A leader that is cut off does not know that others have gone on.
#[test]
fn a_leader_that_is_cut_off_answers_no_reads() {
    for mode in [ReadMode::Log, ReadMode::ReadIndex, ReadMode::Lease] {
        let mut lab = in_mode(mode);
        let old = lab.leader();
        lab.put(old, "a", "1");
        lab.cut.push(old);
        let new = lab.leader();
        assert_ne!(old, new);
        lab.put(new, "a", "2");
        lab.call(old, |core| core.read(1));
        lab.run();
        assert_eq!(lab.bench(old).reads, [], "{mode:?}");
        lab.cut.clear();
        lab.tick(80);
        let reads = std::mem::take(&mut lab.bench(old).reads);
        assert_eq!(reads.len(), 1, "{mode:?}");
        if let [Reads::Go(_)] = &reads[..] {
            assert_eq!(lab.bench(old).get("a").0.as_deref(), Some("2"), "{mode:?}");
        }
    }
}

#[test]
fn who_gives_up_hears_nothing() {
    let mut lab = in_mode(ReadMode::ReadIndex);
    let leader = lab.leader();
    lab.bench(leader).core().read(1);
    lab.bench(leader).core().cancel_read(1);
    lab.poll(leader);
    lab.run();
    assert_eq!(lab.bench(leader).reads, []);
}
