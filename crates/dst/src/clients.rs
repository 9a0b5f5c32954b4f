//! Clients of the cluster: each asks for one thing at a time, and waits, but not for ever.
//!
//! There are few keys, so that clients get into each other's way, and every value is put once only,
//! so that a client that reads it knows which put wrote it. A client remembers what it saw last
//! under each key, and that is what it expects when it swaps: sometimes it is still there.
//!
//! A client stays with a member for a while and then goes elsewhere; at once if it was refused or
//! has stopped waiting. What it asks there is a new operation: it does not know what became of the
//! old one, and must not say the same twice.

use std::collections::BTreeMap;

use crate::event_queue::{MILLISECOND, Micros, SECOND};
use crate::history::{OperationOutcome, Record, Request};
use crate::rng::Rng;

/// How clients behave, in a seed.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// How many keys there are.
    pub keys: u64,
    /// The longest pause between an answer and the next question.
    pub pause_max: Micros,
    /// How many in a thousand operations are reads.
    pub reads_permille: u64,
    /// After so long a client gives up.
    pub timeout: Micros,
}

impl ClientConfig {
    /// Any habits.
    pub fn random(chance: &mut Rng) -> ClientConfig {
        ClientConfig {
            keys: chance.between(1, 6),
            pause_max: chance.log_uniform(20 * MILLISECOND, 500 * MILLISECOND),
            reads_permille: chance.between(200, 800),
            timeout: chance.between(SECOND, 8 * SECOND),
        }
    }
}

/// A client of the cluster.
#[derive(Debug)]
pub struct Client {
    /// Its number, from 1 on.
    pub id: u64,
    /// The operation whose answer it waits for.
    pub pending_operation: Option<usize>,
    config: ClientConfig,
    member: Option<u64>,
    last_values: BTreeMap<String, String>,
    request_count: u64,
    rng: Rng,
}

impl Client {
    /// A client that knows nothing yet.
    pub fn new(id: u64, habits: ClientConfig, chance: Rng) -> Client {
        let (waits_for, member, seen, asked) = (None, None, BTreeMap::new(), 0);
        Client {
            id,
            pending_operation: waits_for,
            config: habits,
            member,
            last_values: seen,
            request_count: asked,
            rng: chance,
        }
    }

    /// How long it rests before it asks.
    pub fn pause(&mut self) -> Micros {
        self.rng.log_uniform(100, self.config.pause_max)
    }

    /// How long it waits.
    pub fn timeout(&self) -> Micros {
        self.config.timeout
    }

    /// The member it asks, of those there are.
    pub fn choose_member(&mut self, members: &[u64]) -> Option<u64> {
        let stays = self.member.is_some_and(|member| members.contains(&member));
        if !stays || self.rng.permille(50) {
            self.member = self.rng.choose(members).copied();
        }
        self.member
    }

    /// What it asks for.
    pub fn request(&mut self) -> Request {
        self.request_count += 1;
        let key = format!("k{}", self.rng.between(1, self.config.keys));
        let value = format!("{}.{}", self.id, self.request_count);
        if self.rng.permille(self.config.reads_permille) {
            let key = (!self.rng.permille(200)).then_some(key);
            return Request::Read { key, serializable: self.rng.permille(200) };
        }
        match self.rng.between(0, 9) {
            0..=4 => Request::Put { key, value },
            5..=6 => Request::Delete { key },
            _ => Request::CompareAndSwap {
                expected: self.last_values.get(&key).cloned(),
                key,
                value,
            },
        }
    }

    /// A put, under a key that no other client uses.
    pub fn final_put(&mut self) -> Request {
        self.request_count += 1;
        Request::Put { key: "k0".into(), value: format!("{}.{}", self.id, self.request_count) }
    }

    /// It gets the outcome of an operation, or stops waiting for it.
    pub fn on_outcome(&mut self, request: &Request, outcome: &OperationOutcome) {
        self.pending_operation = None;
        let OperationOutcome::Completed(reply) = outcome else {
            self.member = None;
            return;
        };
        match request {
            Request::Read { key: None, .. } => self.last_values.clear(),
            Request::Read { key: Some(key), .. }
            | Request::Put { key, .. }
            | Request::Delete { key }
            | Request::CompareAndSwap { key, .. } => drop(self.last_values.remove(key)),
        }
        match request {
            Request::Put { key, value } | Request::CompareAndSwap { key, value, .. }
                if reply.changed =>
            {
                self.last_values.insert(key.clone(), value.clone());
            }
            Request::Delete { .. } if reply.changed => {}
            _ => self.last_values.extend(reply.records.iter().map(key_and_value)),
        }
    }
}

fn key_and_value(record: &Record) -> (String, String) {
    (record.key.clone(), record.value.clone())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::history::StoreModel;

    #[test]
    fn clients_meet_and_no_value_comes_twice() {
        let mut chance = Rng::new(3);
        let habits =
            ClientConfig { keys: 2, reads_permille: 300, ..ClientConfig::random(&mut chance) };
        let mut clients: Vec<Client> =
            (1..=3).map(|id| Client::new(id, habits, chance.split())).collect();
        let mut state = StoreModel::default();
        let (mut values, mut swapped, mut kept) = (BTreeSet::new(), 0, 0);
        for _ in 0..300 {
            for client in &mut clients {
                let request = client.request();
                let reply = state.apply(&request);
                if let Some(value) = request.value() {
                    assert!(values.insert(value.to_owned()), "{value} comes twice");
                }
                if matches!(request, Request::CompareAndSwap { .. }) {
                    *(if reply.changed { &mut swapped } else { &mut kept }) += 1;
                }
                client.on_outcome(&request, &OperationOutcome::Completed(reply));
            }
        }
        assert!(swapped > 20 && kept > 20, "{swapped} swaps came true, {kept} did not");
    }

    #[test]
    fn who_is_refused_goes_elsewhere() {
        let mut chance = Rng::new(3);
        let mut client = Client::new(1, ClientConfig::random(&mut chance), chance.split());
        let first = client.choose_member(&[1, 2, 3, 4, 5]).unwrap();
        client.on_outcome(&Request::Delete { key: "k1".into() }, &OperationOutcome::Rejected);
        let chosen: BTreeSet<u64> = (0..50)
            .map(|_| {
                client.member = None;
                client.choose_member(&[1, 2, 3, 4, 5]).unwrap()
            })
            .collect();
        assert!(chosen.len() > 3 && chosen.contains(&first));
        assert_eq!(client.choose_member(&[]), None);
    }
}
