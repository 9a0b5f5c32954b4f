//! People who use the cluster: each asks for one thing at a time, and waits, but not for ever.
//!
//! There are few keys, so that clients get into each other's way, and every value is put once only, so
//! that whoever reads it knows whose it is. A client remembers what it saw last under each key, and
//! that is what it expects when it swaps: sometimes it is still there.
//!
//! A client stays with a member for a while and then goes elsewhere; at once if it was refused or has
//! lost its patience. What it asks there is a new operation: it does not know what became of the old
//! one, and must not say the same twice.

use std::collections::BTreeMap;

use crate::chance::Chance;
use crate::history::{Outcome, Record, Request};
use crate::world::{MILLISECOND, Micros, SECOND};

/// How clients behave, in a seed.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// How many keys there are.
    pub keys: u64,
    /// The longest pause between an answer and the next question.
    pub pause: Micros,
    /// How many in a thousand operations are reads.
    pub reads_permille: u64,
    /// After so long a client gives up.
    pub patience: Micros,
}

impl Habits {
    /// Any habits.
    pub fn any(chance: &mut Chance) -> Habits {
        Habits {
            keys: chance.between(1, 6),
            pause: chance.of_any_size(20 * MILLISECOND, 500 * MILLISECOND),
            reads_permille: chance.between(200, 800),
            patience: chance.between(SECOND, 8 * SECOND),
        }
    }
}

/// Somebody who uses the cluster.
#[derive(Debug)]
pub struct Client {
    /// Its number, from 1 on.
    pub id: u64,
    /// The operation whose answer it waits for.
    pub waits_for: Option<usize>,
    habits: Habits,
    member: Option<u64>,
    seen: BTreeMap<String, String>,
    asked: u64,
    chance: Chance,
}

impl Client {
    /// A client that knows nothing yet.
    pub fn new(id: u64, habits: Habits, chance: Chance) -> Client {
        let (waits_for, member, seen, asked) = (None, None, BTreeMap::new(), 0);
        Client { id, waits_for, habits, member, seen, asked, chance }
    }

    /// How long it rests before it asks.
    pub fn pause(&mut self) -> Micros {
        self.chance.of_any_size(100, self.habits.pause)
    }

    /// How long it waits.
    pub fn patience(&self) -> Micros {
        self.habits.patience
    }

    /// Whom it asks, of those there are.
    pub fn choose(&mut self, members: &[u64]) -> Option<u64> {
        let stays = self.member.is_some_and(|member| members.contains(&member));
        if !stays || self.chance.permille(50) {
            self.member = self.chance.one_of(members).copied();
        }
        self.member
    }

    /// What it asks for.
    pub fn request(&mut self) -> Request {
        self.asked += 1;
        let key = format!("k{}", self.chance.between(1, self.habits.keys));
        let value = format!("{}.{}", self.id, self.asked);
        if self.chance.permille(self.habits.reads_permille) {
            let key = (!self.chance.permille(200)).then_some(key);
            return Request::Read { key, serializable: self.chance.permille(200) };
        }
        match self.chance.between(0, 9) {
            0..=4 => Request::Put { key, value },
            5..=6 => Request::Delete { key },
            _ => Request::Swap { expected: self.seen.get(&key).cloned(), key, value },
        }
    }

    /// A put, under a key that nobody else uses.
    pub fn put(&mut self) -> Request {
        self.asked += 1;
        Request::Put { key: "k0".into(), value: format!("{}.{}", self.id, self.asked) }
    }

    /// It is told how an operation ended, or has lost its patience.
    pub fn hears(&mut self, request: &Request, outcome: &Outcome) {
        self.waits_for = None;
        let Outcome::Done(reply) = outcome else {
            self.member = None;
            return;
        };
        match request {
            Request::Read { key: None, .. } => self.seen.clear(),
            Request::Read { key: Some(key), .. }
            | Request::Put { key, .. }
            | Request::Delete { key }
            | Request::Swap { key, .. } => drop(self.seen.remove(key)),
        }
        match request {
            Request::Put { key, value } | Request::Swap { key, value, .. } if reply.changed => {
                self.seen.insert(key.clone(), value.clone());
            }
            Request::Delete { .. } if reply.changed => {}
            _ => self.seen.extend(reply.records.iter().map(of_record)),
        }
    }
}

fn of_record(record: &Record) -> (String, String) {
    (record.key.clone(), record.value.clone())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::history::State;

    #[test]
    fn clients_meet_and_no_value_comes_twice() {
        let mut chance = Chance::new(3);
        let habits = Habits { keys: 2, reads_permille: 300, ..Habits::any(&mut chance) };
        let mut clients: Vec<Client> =
            (1..=3).map(|id| Client::new(id, habits, chance.part())).collect();
        let mut state = State::default();
        let (mut values, mut swapped, mut kept) = (BTreeSet::new(), 0, 0);
        for _ in 0..300 {
            for client in &mut clients {
                let request = client.request();
                let reply = state.apply(&request);
                if let Some(value) = request.value() {
                    assert!(values.insert(value.to_owned()), "{value} comes twice");
                }
                if matches!(request, Request::Swap { .. }) {
                    *(if reply.changed { &mut swapped } else { &mut kept }) += 1;
                }
                client.hears(&request, &Outcome::Done(reply));
            }
        }
        assert!(swapped > 20 && kept > 20, "{swapped} swaps came true, {kept} did not");
    }

    #[test]
    fn who_is_refused_goes_elsewhere() {
        let mut chance = Chance::new(3);
        let mut client = Client::new(1, Habits::any(&mut chance), chance.part());
        let first = client.choose(&[1, 2, 3, 4, 5]).unwrap();
        client.hears(&Request::Delete { key: "k1".into() }, &Outcome::Refused);
        let chosen: BTreeSet<u64> = (0..50)
            .map(|_| {
                client.member = None;
                client.choose(&[1, 2, 3, 4, 5]).unwrap()
            })
            .collect();
        assert!(chosen.len() > 3 && chosen.contains(&first));
        assert_eq!(client.choose(&[]), None);
    }
}
