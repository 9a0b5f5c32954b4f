//! Clients of the cluster. Each has one operation at a time.
//!
//! There are few keys, so that clients conflict. Values are unique, so that a read shows which put
//! wrote its value. In a compare-and-swap, a client expects the value that it last saw for the key.
//!
//! A client whose operation is rejected or times out starts a new operation, at a member that it
//! chooses at random. The client does not know whether an operation that timed out has taken
//! effect.

use std::collections::BTreeMap;

use crate::event_queue::{MILLISECOND, Micros, SECOND};
use crate::history::{OperationOutcome, Request};
use crate::rng::Rng;

#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    pub keys: u64,
    /// The longest pause between a response and the next request.
    pub pause_max: Micros,
    pub reads_permille: u64,
    pub timeout: Micros,
}

impl ClientConfig {
    pub fn random(rng: &mut Rng) -> ClientConfig {
        ClientConfig {
            keys: rng.between(1, 6),
            pause_max: rng.log_uniform(20 * MILLISECOND, 500 * MILLISECOND),
            reads_permille: rng.between(200, 800),
            timeout: rng.between(SECOND, 8 * SECOND),
        }
    }
}

#[derive(Debug)]
pub struct Client {
    /// The client's number. The first client has number 1.
    pub id: u64,
    pub pending_operation: Option<usize>,
    pub config: ClientConfig,
    member: Option<u64>,
    last_values: BTreeMap<String, String>,
    request_count: u64,
    rng: Rng,
}

impl Client {
    pub fn new(id: u64, config: ClientConfig, rng: Rng) -> Client {
        Client {
            id,
            pending_operation: None,
            config,
            member: None,
            last_values: BTreeMap::new(),
            request_count: 0,
            rng,
        }
    }

    pub fn pause(&mut self) -> Micros {
        self.rng.log_uniform(100, self.config.pause_max)
    }

    pub fn choose_member(&mut self, members: &[u64]) -> Option<u64> {
        let stays = self.member.is_some_and(|member| members.contains(&member));
        if !stays || self.rng.permille(50) {
            self.member = self.rng.choose(members).copied();
        }
        self.member
    }

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

    pub fn final_put(&mut self) -> Request {
        self.request_count += 1;
        Request::Put { key: "k0".into(), value: format!("{}.{}", self.id, self.request_count) }
    }

    /// Handles the end of an operation. `outcome` is `Unknown` if the client stops waiting, or if
    /// the member has crashed or has stopped waiting.
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
            _ => {
                let seen = reply.records.iter().map(|it| (it.key.clone(), it.value.clone()));
                self.last_values.extend(seen);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::history::StoreModel;

    #[test]
    fn clients_meet_and_no_value_comes_twice() {
        let mut rng = Rng::new(3);
        let config =
            ClientConfig { keys: 2, reads_permille: 300, ..ClientConfig::random(&mut rng) };
        let mut clients: Vec<Client> =
            (1..=3).map(|id| Client::new(id, config, rng.split())).collect();
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
}
