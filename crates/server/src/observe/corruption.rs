//! Compares the members' hashes, and finds the corrupt member. In etcd: `corrupt.go`. See
//! `docs/maintenance.md`.
//!
//! * [At startup](count_mismatches) a member that differs from the others does not serve.
//! * [Periodically](PeriodicCheck::find_corrupt_member) the leader compares hashes at its newest
//!   revision. The first member that differs from the leader is reported as corrupt. After the
//!   replies, the leader hashes its own newest revision again. If the revision is still the same
//!   and the hash is not, the leader itself is corrupt.
//! * [After compactions](compare_compaction_hashes) the leader compares the hashes that all members
//!   have stored. All members that differ from the majority are corrupt. If no hash has a majority,
//!   the corrupt members are unknown.
//!
//! Two hashes are compared only if they have the same revision and the same compact revision. A
//! member that does not respond, or cannot be compared, is not considered corrupt. The periodic
//! check has one exception: a member that is ahead of the leader, or has compacted further, is
//! corrupt. (The comparison uses the leader's state after the replies, so a healthy member is never
//! ahead.) [`PeerClients`](crate::threads::PeerClients) requests the hashes of the other members.

use std::collections::BTreeMap;

use clearlane_mvcc::HashKv;
use clearlane_replica::RequestError;
use clearlane_replica::apply::RequestRejection;

/// A member's hash, and its newest revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberHash {
    pub hash_kv: HashKv,
    pub revision: i64,
}

#[derive(Debug)]
pub struct PeerHash {
    pub id: u64,
    pub result: Result<MemberHash, RequestError>,
}

pub fn count_mismatches(own: &HashKv, others: &[PeerHash]) -> usize {
    let differs = |other: &&PeerHash| {
        let id = format!("{:x}", other.id);
        let said = match &other.result {
            Ok(said) => said.hash_kv,
            Err(why) => {
                warn_missing_hash(&id, own.hash_revision, why);
                return false;
            }
        };
        if said.hash == own.hash {
            return false;
        }
        let is_comparable = said.compact_revision == own.compact_revision;
        let what = if is_comparable { "hash" } else { "compact revision" };
        tracing::warn!(
            "remote-peer-id" = id,
            revision = own.hash_revision,
            "local-compact-revision" = own.compact_revision,
            "remote-compact-revision" = said.compact_revision,
            "local-hash" = own.hash,
            "remote-hash" = said.hash,
            "found different {what} values from remote peer"
        );
        is_comparable
    };
    others.iter().filter(differs).count()
}

fn warn_missing_hash(id: &str, revision: i64, why: &RequestError) {
    let words = match why {
        RequestError::Rejected(RequestRejection::FutureRevision) => {
            "cannot fetch hash from slow remote peer"
        }
        RequestError::Rejected(RequestRejection::Compacted) => {
            "cannot fetch hash from remote peer; local member is behind"
        }
        _ => "cannot fetch hash from remote peer",
    };
    tracing::warn!("remote-peer-id" = id, revision, error = %why, "{words}");
}

#[derive(Debug)]
pub struct PeriodicCheck<'h> {
    pub leader: u64,
    /// The leader's hash at its newest revision, computed before the requests to the other
    /// members.
    pub before: HashKv,
    /// The leader's hash, computed after the other members had responded and the leader had applied
    /// all entries committed by then.
    pub after: MemberHash,
    pub others: &'h [PeerHash],
}

impl PeriodicCheck<'_> {
    pub fn find_corrupt_member(&self) -> Option<u64> {
        let heard = |other: &PeerHash| Some((other.id, *other.result.as_ref().ok()?));
        let said: Vec<(u64, MemberHash)> = self.others.iter().filter_map(heard).collect();
        let own = self.has_changed().then_some(self.leader);
        // Check all members, so that the warnings about each member are logged.
        let wrong = said.iter().filter(|(id, said)| self.is_corrupt(*id, said));
        let wrong: Vec<u64> = wrong.map(|(id, _)| *id).collect();
        tracing::info!("number-of-peers-checked" = said.len(), "finished peer corruption check");
        own.or(wrong.first().copied())
    }

    fn has_changed(&self) -> bool {
        let (before, after) = (self.before, self.after.hash_kv);
        let is_same = before.hash_revision == after.hash_revision
            && before.compact_revision == after.compact_revision;
        let has_changed = is_same && before.hash != after.hash;
        if has_changed {
            tracing::warn!(
                revision = before.hash_revision,
                "compact-revision" = before.compact_revision,
                "hash-1" = before.hash,
                "hash-2" = after.hash,
                "found hash mismatch"
            );
        }
        has_changed
    }

    fn is_corrupt(&self, id: u64, said: &MemberHash) -> bool {
        let id = format!("{id:x}");
        let is_ahead = said.revision > self.after.revision;
        if is_ahead {
            tracing::warn!(
                "leader-revision" = self.after.revision,
                "follower-revision" = said.revision,
                "follower-peer-id" = id,
                "revision from follower must be less than or equal to leader's"
            );
        }
        let (compacted, follower) =
            (self.after.hash_kv.compact_revision, said.hash_kv.compact_revision);
        let has_compacted_more = follower > compacted;
        if has_compacted_more {
            tracing::warn!(
                "leader-compact-revision" = compacted,
                "follower-compact-revision" = follower,
                "follower-peer-id" = id,
                "compact revision from follower must be less than or equal to leader's"
            );
        }
        let is_comparable = follower == self.before.compact_revision;
        let differs = is_comparable && said.hash_kv.hash != self.before.hash;
        if differs {
            tracing::warn!(
                revision = self.before.hash_revision,
                "leader-compact-revision" = self.before.compact_revision,
                "leader-hash" = self.before.hash,
                "follower-compact-revision" = follower,
                "follower-hash" = said.hash_kv.hash,
                "follower-peer-id" = id,
                "same compact revision then hashes must match"
            );
        }
        is_ahead || has_compacted_more || differs
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashCheckResult {
    Equal,
    /// The members that could be compared agree, but other members did not respond or could not be
    /// compared. A comparison of the hashes of an earlier compaction may still be conclusive.
    Inconclusive,
    /// The IDs of the corrupt members. If no majority has the same hash, the corrupt members are
    /// unknown, and the list has only the ID 0.
    Corrupt(Vec<u64>),
}

pub fn compare_compaction_hashes(
    leader: u64,
    own: &HashKv,
    others: &[PeerHash],
) -> HashCheckResult {
    let mut camps: BTreeMap<u32, Vec<u64>> = BTreeMap::from([(own.hash, vec![leader])]);
    let mut compared = 0;
    for other in others {
        match comparable_hash(own, other) {
            Ok(hash) => {
                compared += 1;
                camps.entry(hash).or_default().push(other.id);
            }
            Err(reason) => tracing::warn!(
                "peer-id" = format!("{:x}", other.id),
                "leader-compact-revision" = own.compact_revision,
                revision = own.hash_revision,
                reason,
                "skipped the hash of a member"
            ),
        }
    }
    if camps.len() == 1 {
        return if compared == others.len() {
            HashCheckResult::Equal
        } else {
            HashCheckResult::Inconclusive
        };
    }
    let members = others.len() + 1;
    let quorum = members / 2 + 1;
    let majority = camps.iter().find(|(_, camp)| camp.len() >= quorum).map(|(hash, _)| *hash);
    let wrong = camps.iter().filter(|(hash, _)| Some(**hash) != majority);
    for (hash, camp) in wrong.clone() {
        tracing::error!(
            "leader-id" = format!("{leader:x}"),
            "leader-revision" = own.hash_revision,
            "leader-compact-revision" = own.compact_revision,
            "leader-hash" = own.hash,
            "peer-ids" = ?camp.iter().map(|id| format!("{id:x}")).collect::<Vec<_>>(),
            "peer-hash" = *hash,
            "quorum-exist" = majority.is_some(),
            "Detected compaction hash mismatch"
        );
    }
    HashCheckResult::Corrupt(match majority {
        Some(_) => wrong.flat_map(|(_, camp)| camp).copied().collect(),
        None => vec![0],
    })
}

fn comparable_hash(own: &HashKv, other: &PeerHash) -> Result<u32, String> {
    let said = other.result.as_ref().map_err(|why| format!("no response: {why}"))?.hash_kv;
    if said.compact_revision == own.compact_revision {
        Ok(said.hash)
    } else {
        Err(format!("it has compacted at {}", said.compact_revision))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(hash: u32, hash_revision: i64, compact_revision: i64) -> HashKv {
        HashKv { hash, compact_revision, hash_revision }
    }

    fn heard(id: u64, hash: u32, compacted: i64, revision: i64) -> PeerHash {
        PeerHash { id, result: Ok(MemberHash { hash_kv: sum(hash, 100, compacted), revision }) }
    }

    fn silent(id: u64) -> PeerHash {
        PeerHash { id, result: Err(RequestError::NoLeader) }
    }

    #[test]
    fn who_starts_is_compared_with_those_who_have_compacted_alike() {
        let own = sum(7, 100, 50);
        let others = [heard(2, 7, 50, 120), heard(3, 8, 60, 120), silent(4)];
        assert_eq!(count_mismatches(&own, &others), 0);
        assert_eq!(count_mismatches(&own, &[heard(2, 8, 50, 120), heard(3, 8, 50, 120)]), 2);
    }

    fn suspect(before: HashKv, after: MemberHash, others: &[PeerHash]) -> Option<u64> {
        PeriodicCheck { leader: 1, before, after, others }.find_corrupt_member()
    }

    #[test]
    fn the_leader_finds_who_differs_or_is_ahead() {
        let before = sum(7, 100, 50);
        let after = MemberHash { hash_kv: sum(9, 110, 60), revision: 110 };
        let fine = [heard(2, 7, 50, 110), heard(3, 5, 60, 105), silent(4)];
        assert_eq!(suspect(before, after, &fine), None);
        let differs = [heard(2, 7, 50, 110), heard(3, 8, 50, 100), heard(4, 8, 50, 100)];
        assert_eq!(suspect(before, after, &differs), Some(3), "the first");
        assert_eq!(suspect(before, after, &[heard(2, 7, 50, 111)]), Some(2), "a later revision");
        assert_eq!(suspect(before, after, &[heard(2, 3, 61, 110)]), Some(2), "a later compaction");
    }

    #[test]
    fn a_leader_that_changes_its_mind_is_wrong_itself() {
        let before = sum(7, 100, 50);
        let after = MemberHash { hash_kv: sum(8, 100, 50), revision: 100 };
        assert_eq!(suspect(before, after, &[heard(2, 9, 50, 100)]), Some(1));
        // The leader has compacted between its two hashes. So they cannot be compared, and the
        // leader is not considered corrupt.
        let after = MemberHash { hash_kv: sum(8, 100, 60), revision: 100 };
        assert_eq!(suspect(before, after, &[heard(2, 7, 50, 100)]), None);
    }

    #[test]
    fn behind_a_compaction_the_minority_is_wrong() {
        let own = sum(7, 100, 50);
        let of = |others: &[PeerHash]| compare_compaction_hashes(1, &own, others);
        assert_eq!(of(&[heard(2, 7, 50, 100), heard(3, 7, 50, 100)]), HashCheckResult::Equal);
        assert_eq!(
            of(&[heard(2, 7, 50, 100), heard(3, 8, 60, 100)]),
            HashCheckResult::Inconclusive
        );
        assert_eq!(of(&[heard(2, 7, 50, 100), silent(3)]), HashCheckResult::Inconclusive);
        assert_eq!(
            of(&[heard(2, 7, 50, 100), heard(3, 8, 50, 100)]),
            HashCheckResult::Corrupt(vec![3])
        );
        let leader = of(&[heard(2, 8, 50, 100), heard(3, 8, 50, 100)]);
        assert_eq!(leader, HashCheckResult::Corrupt(vec![1]), "the leader may be the one");
        // Each of the two hashes comes from only one of the three members, so neither has a
        // majority.
        assert_eq!(of(&[heard(2, 8, 50, 100), silent(3)]), HashCheckResult::Corrupt(vec![0]));
        assert_eq!(
            of(&[heard(2, 8, 50, 100)]),
            HashCheckResult::Corrupt(vec![0]),
            "two, and no majority"
        );
        let four = [heard(2, 7, 50, 100), heard(3, 8, 50, 100), heard(4, 8, 50, 100)];
        assert_eq!(of(&four), HashCheckResult::Corrupt(vec![0]), "two against two");
    }
}
