//! Compares the lessor with a simple model, which consists of a map of leases and a map of keys.
//! After each step, all leases and keys are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::TestLessor;
use clearlane_engine::KeyRange;
use clearlane_lease::{Config, Due, Renewal};
use proptest::prelude::*;

const ELECTION: Duration = Duration::from_secs(1);
const TTL_MIN: i64 = 2;

#[derive(Clone, Debug)]
enum Step {
    Grant(i64, i64),
    Revoke(i64),
    /// Puts keys with their leases, in one transaction.
    Put(Vec<(u8, i64)>),
    Delete(u8, u8),
    Renew(i64),
    Wait(u64),
    /// If true, carries out the revocations that are due. If false, reports that they were not
    /// proposed.
    Due(bool),
    Lead,
    Follow,
    Crash,
    Forget,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (id, key) = (1..6i64, b'a'..b'f');
    let put = proptest::collection::vec((key.clone(), 0..6i64), 1..4);
    let step = prop_oneof![
        3 => (id.clone(), 0..8i64).prop_map(|(id, ttl)| Step::Grant(id, ttl)),
        1 => id.clone().prop_map(Step::Revoke),
        4 => put.prop_map(Step::Put),
        1 => (key.clone(), key).prop_map(|(from, to)| Step::Delete(from, to)),
        3 => id.prop_map(Step::Renew),
        4 => (0..4_000u64).prop_map(Step::Wait),
        4 => any::<bool>().prop_map(Step::Due),
        1 => Just(Step::Lead),
        1 => Just(Step::Follow),
        1 => Just(Step::Crash),
        1 => Just(Step::Forget),
    ];
    proptest::collection::vec(step, 1..60)
}

#[derive(Default)]
struct Model {
    /// The granted TTL in seconds, and the expiry, of each lease. The expiry is valid only while
    /// this member is the leader.
    leases: BTreeMap<i64, (i64, Duration)>,
    keys: BTreeMap<u8, i64>,
    leads: bool,
    /// Leases whose revocation this leader has proposed but not yet applied.
    proposed: BTreeSet<i64>,
}

impl Model {
    fn keys_of(&self, id: i64) -> Vec<u8> {
        self.keys.iter().filter(|(_, lease)| **lease == id).map(|(key, _)| *key).collect()
    }

    fn revoke(&mut self, id: i64) -> bool {
        self.proposed.remove(&id);
        self.keys.retain(|_, lease| *lease != id);
        self.leases.remove(&id).is_some()
    }

    fn lead(&mut self, now: Duration) {
        (self.leads, self.proposed) = (true, BTreeSet::new());
        for (ttl, end) in self.leases.values_mut() {
            *end = now + ELECTION + Duration::from_secs(*ttl as u64);
        }
    }
}

struct Race {
    lessor: TestLessor,
    model: Model,
}

impl Race {
    fn step(&mut self, step: Step) {
        let (lessor, model) = (&mut self.lessor, &mut self.model);
        match step {
            Step::Grant(id, ttl) => {
                let granted = lessor.grant(id, ttl).is_ok();
                assert_eq!(granted, !model.leases.contains_key(&id));
                if granted {
                    let ttl = ttl.max(TTL_MIN);
                    model.leases.insert(id, (ttl, lessor.now + Duration::from_secs(ttl as u64)));
                }
            }
            Step::Revoke(id) => assert_eq!(lessor.revoke(id).is_ok(), model.revoke(id)),
            Step::Put(mut puts) => {
                puts.retain(|(_, lease)| *lease == 0 || model.leases.contains_key(lease));
                lessor
                    .write(|txn| puts.iter().for_each(|(k, id)| txn.put(&[*k], b"", *id).unwrap()));
                model.keys.extend(puts);
            }
            Step::Delete(from, to) => {
                let range = (&[from][..], &[to][..]);
                lessor.write(|txn| {
                    txn.delete_range(KeyRange::new(range.0, range.1)).unwrap();
                });
                model.keys.retain(|key, _| !(from..to).contains(key));
            }
            Step::Renew(id) => self.renew(id),
            Step::Wait(ms) => lessor.now += Duration::from_millis(ms),
            Step::Due(gets_through) => self.due(gets_through),
            Step::Lead => {
                lessor.inner.promote(lessor.now);
                model.lead(lessor.now);
            }
            Step::Follow => {
                lessor.inner.demote();
                model.leads = false;
            }
            Step::Crash => {
                lessor.store.commit().unwrap();
                lessor.crash();
                model.leads = false;
            }
            Step::Forget => {
                lessor.inner.forget_ended();
            }
        }
        self.same();
    }

    fn renew(&mut self, id: i64) {
        let (lessor, model) = (&self.lessor, &mut self.model);
        let expected = match model.leases.get_mut(&id) {
            _ if !model.leads => Renewal::NotLeading,
            Some((ttl, end)) if *end > lessor.now => {
                *end = lessor.now + Duration::from_secs(*ttl as u64);
                Renewal::Renewed(*ttl)
            }
            _ => Renewal::NotFound,
        };
        assert_eq!(lessor.inner.renew(id, lessor.now), expected);
    }

    fn due(&mut self, gets_through: bool) {
        let (lessor, model) = (&self.lessor, &mut self.model);
        let Due { revoke, checkpoints } = lessor.inner.due(lessor.now);
        assert!(checkpoints.is_empty(), "they are switched off");
        assert!(model.leads || revoke.is_empty());
        for id in revoke {
            assert!(model.leases[&id].1 <= lessor.now, "{id} lives");
            assert!(model.proposed.insert(id), "{id} is proposed already");
            if gets_through {
                assert!(lessor.revoke(id).is_ok() && model.revoke(id));
            } else {
                lessor.inner.not_proposed(id, lessor.now);
                model.proposed.remove(&id);
            }
        }
    }

    fn same(&self) {
        let (lessor, model) = (&self.lessor, &self.model);
        let contents = lessor.inner.lease_states();
        let ids: Vec<i64> = contents.iter().map(|lease| lease.id).collect();
        assert_eq!(ids, model.leases.keys().copied().collect::<Vec<_>>());
        for lease in contents {
            let keys: Vec<u8> = lease.keys.iter().map(|key| key[0]).collect();
            assert_eq!(keys, model.keys_of(lease.id), "of {}", lease.id);
            assert_eq!(lessor.inner.keys(lease.id), lease.keys);
            let (ttl, end) = model.leases[&lease.id];
            let left = end.saturating_sub(lessor.now).as_secs() as i64;
            let standing = lessor.inner.time_to_live(lease.id, lessor.now).unwrap();
            assert_eq!((lease.ttl, standing.remaining), (ttl, model.leads.then_some(left)));
        }
        let keys: Vec<u8> = lessor.keys().iter().map(|key| key.as_bytes()[0]).collect();
        assert_eq!(keys, model.keys.keys().copied().collect::<Vec<_>>());
    }

    /// Checks that a leader revokes all leases if no client renews them.
    fn all_end(&mut self) {
        self.step(Step::Lead);
        for _ in 0..60 {
            self.step(Step::Wait(500));
            self.step(Step::Due(true));
        }
        assert!(self.model.leases.is_empty(), "{:?}", self.model.leases);
        assert_eq!(self.lessor.inner.next_due(), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn it_does_what_the_model_does(steps in steps()) {
        let mut race =
            Race { lessor: TestLessor::new(Config::new(ELECTION)), model: Model::default() };
        steps.into_iter().for_each(|step| race.step(step));
        race.all_end();
    }
}
