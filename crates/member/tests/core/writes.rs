//! Proposals are answered once they are applied, and everywhere the same is applied.

use clearlane_member::core::{Answer, ChangeError};
use clearlane_member::membership::{Change, Refused};
use clearlane_mvcc as mvcc;

use crate::lab::{Lab, member, put};
use crate::settings;

#[test]
fn the_only_member_answers_itself() {
    let mut lab = Lab::new(1, settings());
    assert_eq!(lab.leader(), 1);
    assert!(matches!(lab.put(1, "a", "1"), Answer::Request(Ok(_))));
    assert_eq!(lab.bench(1).get("a"), (Some("1".to_owned()), 2));
    let (revision, changes) = lab.bench(1).changes.pop().unwrap();
    assert_eq!(revision, 2);
    assert!(matches!(&changes[..], [mvcc::Change::Put(kv)] if kv.value == "1"));
}

#[test]
fn whoever_is_asked_the_write_is_the_same_everywhere() {
    let mut lab = Lab::new(3, settings());
    let leader = lab.leader();
    for id in 1..=3 {
        assert!(matches!(lab.put(id, &format!("k{id}"), "v"), Answer::Request(Ok(_))));
    }
    lab.tick(2);
    for id in 1..=3 {
        let bench = lab.bench(id);
        assert_eq!(bench.get("k2"), (Some("v".to_owned()), 4), "at {id}, {leader} leads");
        assert!(bench.answers.is_empty(), "nobody is answered who has not asked");
        assert_eq!(bench.core().progress().members.voters, [1, 2, 3]);
    }
}

#[test]
fn who_has_given_up_is_not_answered() {
    let mut lab = Lab::new(1, settings());
    lab.leader();
    let bench = lab.bench(1);
    let id = bench.core().propose(put("a", "1")).unwrap();
    bench.core().give_up(id);
    lab.poll(1);
    assert_eq!(lab.bench(1).get("a").1, 2);
    assert!(lab.bench(1).answers.is_empty());
}

#[test]
fn without_a_leader_nothing_is_taken() {
    let mut lab = Lab::new(3, settings());
    let refused = lab.call(1, |core| core.propose(put("a", "1")));
    assert_eq!(refused.unwrap_err().to_string(), "there is no leader");
}

#[test]
fn members_come_and_go() {
    let mut lab = Lab::new(1, settings());
    lab.leader();
    let joins = Change::Add { id: 2, peer_urls: member(2).peer_urls, is_learner: false };
    let asked = lab.call(1, |core| core.change_members(&joins)).unwrap();
    lab.add(2, &[]);
    lab.tick(20);
    let answer = lab.bench(1).answers.remove(&asked);
    assert!(matches!(answer, Some(Answer::Members(Ok(members))) if members.len() == 2));
    assert_eq!(lab.bench(2).core().progress().members.voters, [1, 2]);
    let again = lab.call(1, |core| core.change_members(&joins)).unwrap_err();
    assert_eq!(again, ChangeError::Refused(Refused::Exists));

    let leaves = Change::Remove { id: 2 };
    lab.call(1, |core| core.change_members(&leaves)).unwrap();
    lab.run();
    lab.tick(3);
    assert_eq!(lab.bench(1).core().progress().members.voters, [1]);
    assert!(lab.bench(2).removed, "it is told to stop");
    assert!(!lab.bench(1).removed);
    let again = lab.call(1, |core| core.change_members(&joins)).unwrap_err();
    assert_eq!(again, ChangeError::Refused(Refused::Removed));
}

/// Two changes are proposed and the first makes the second impossible: all members decide alike.
#[test]
fn a_change_is_checked_again_when_it_is_applied() {
    let mut lab = Lab::new(3, settings());
    let leader = lab.leader();
    let leaves = Change::Remove { id: leader % 3 + 1 };
    let first = lab.call(leader, |core| core.change_members(&leaves)).unwrap();
    let second = lab.call(leader, |core| core.change_members(&leaves)).unwrap();
    lab.run();
    lab.tick(3);
    let first = lab.bench(leader).answers.remove(&first);
    assert!(matches!(first, Some(Answer::Members(Ok(members))) if members.len() == 2));
    // Raft has made an empty entry of the second, as another was under way.
    assert!(lab.bench(leader).answers.remove(&second).is_none());
    assert!(matches!(lab.put(leader, "a", "1"), Answer::Request(Ok(_))));
}
