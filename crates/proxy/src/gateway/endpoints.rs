//! The endpoints of the gateway: whether each is up, and the choice for a new connection.
//!
//! The choice follows SRV records, as in etcd:
//!
//! 1. Endpoints that are up are preferred. If all are down, they are tried anyway.
//! 2. Among them, only endpoints with the lowest priority number are candidates.
//! 3. If no candidate has a weight, they take turns. Otherwise the choice is random, and each
//!    endpoint's share is its weight. Candidates without a weight then get 1 of 100 connections.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// In one of this many choices, an endpoint without a weight is chosen, although others have one.
const UNWEIGHTED_ONE_OF: u32 = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// HOST:PORT. The host is resolved again for each connection.
    pub address: String,
    /// An endpoint with a lower number is preferred.
    pub priority: u16,
    /// The endpoint's share of the connections, relative to endpoints of the same priority.
    pub weight: u16,
}

impl EndpointConfig {
    /// Returns an endpoint that takes turns with the others.
    pub fn new(address: impl Into<String>) -> EndpointConfig {
        EndpointConfig { address: address.into(), priority: 0, weight: 0 }
    }
}

/// One endpoint. It is up until a dial or a probe fails.
#[derive(Debug)]
pub struct Endpoint {
    config: EndpointConfig,
    is_up: watch::Sender<bool>,
    pub(super) failed_dials: AtomicU64,
    /// Number of open connections to this endpoint.
    pub(super) connections: AtomicU64,
}

impl Endpoint {
    fn new(config: EndpointConfig) -> Endpoint {
        Endpoint {
            config,
            is_up: watch::channel(true).0,
            failed_dials: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        }
    }

    pub fn address(&self) -> &str {
        &self.config.address
    }

    pub fn is_up(&self) -> bool {
        *self.is_up.borrow()
    }

    /// Returns a receiver that is notified when the endpoint goes up or down.
    pub fn changes(&self) -> watch::Receiver<bool> {
        self.is_up.subscribe()
    }

    pub(super) fn note_up(&self) {
        if self.is_up.send_if_modified(|is_up| !std::mem::replace(is_up, true)) {
            tracing::info!(endpoint = self.address(), "an endpoint is up again");
        }
    }

    pub(super) fn note_down(&self, error: &io::Error) {
        if self.is_up.send_if_modified(|is_up| std::mem::replace(is_up, false)) {
            tracing::warn!(endpoint = self.address(), %error, "an endpoint is down");
        }
    }

    /// Opens a connection. The time limit includes the resolution of the host.
    pub(super) async fn connect(&self, timeout: Duration) -> io::Result<TcpStream> {
        match tokio::time::timeout(timeout, TcpStream::connect(self.address())).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no connection within {timeout:?}"),
            )),
        }
    }
}

#[derive(Debug)]
pub struct Endpoints {
    all: Vec<Arc<Endpoint>>,
    /// Number of choices so far.
    choices: AtomicUsize,
    /// The seed of the first choice. Each choice has its own seed, so that none waits for a lock.
    seed: u64,
}

impl Endpoints {
    pub fn new(configs: Vec<EndpointConfig>, seed: u64) -> Endpoints {
        Endpoints {
            all: configs.into_iter().map(|config| Arc::new(Endpoint::new(config))).collect(),
            choices: AtomicUsize::new(0),
            seed,
        }
    }

    pub fn all(&self) -> &[Arc<Endpoint>] {
        &self.all
    }

    /// Returns the index of the endpoint to dial next. `tried` has the indexes of the endpoints
    /// that were dialled for the same client. Returns `None` if all were tried.
    pub(super) fn choose(&self, tried: &[usize]) -> Option<usize> {
        let mut candidates: Vec<usize> =
            (0..self.all.len()).filter(|index| !tried.contains(index)).collect();
        let is_up = |index: &usize| self.all[*index].is_up();
        let up: Vec<usize> = candidates.iter().copied().filter(is_up).collect();
        if !up.is_empty() {
            candidates = up;
        }
        let priority = |index: &usize| self.all[*index].config.priority;
        let best = candidates.iter().map(priority).min()?;
        candidates.retain(|index| priority(index) == best);
        Some(self.choose_by_weight(&candidates))
    }

    /// Chooses among candidates of one priority. There must be at least one.
    fn choose_by_weight(&self, candidates: &[usize]) -> usize {
        let weight = |index: &usize| u64::from(self.all[*index].config.weight);
        let (weighted, unweighted): (Vec<usize>, Vec<usize>) =
            candidates.iter().copied().partition(|index| weight(index) > 0);
        let total: u64 = weighted.iter().map(weight).sum();
        let choice = self.choices.fetch_add(1, Ordering::Relaxed);
        let mut random = StdRng::seed_from_u64(self.seed.wrapping_add(choice as u64));
        let takes_unweighted = weighted.is_empty()
            || (!unweighted.is_empty() && random.random_range(0..UNWEIGHTED_ONE_OF) == 0);
        if takes_unweighted {
            return unweighted[choice % unweighted.len()];
        }
        let mut left = random.random_range(0..total);
        for index in &weighted {
            match left.checked_sub(weight(index)) {
                Some(less) => left = less,
                None => return *index,
            }
        }
        unreachable!("the number is below the sum of the weights");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 7;
    const CHOICES: usize = 10_000;

    fn endpoints(all: &[(u16, u16)]) -> Endpoints {
        let config = |(priority, weight): &(u16, u16)| EndpointConfig {
            address: "127.0.0.1:1".to_owned(),
            priority: *priority,
            weight: *weight,
        };
        Endpoints::new(all.iter().map(config).collect(), SEED)
    }

    /// Returns how often each endpoint is chosen.
    fn counts(endpoints: &Endpoints) -> Vec<usize> {
        let mut counts = vec![0; endpoints.all().len()];
        for _ in 0..CHOICES {
            counts[endpoints.choose(&[]).unwrap()] += 1;
        }
        counts
    }

    fn fail(endpoints: &Endpoints, index: usize) {
        endpoints.all()[index].note_down(&io::Error::other("a test"));
    }

    #[test]
    fn endpoints_without_a_weight_take_turns() {
        let endpoints = endpoints(&[(0, 0), (0, 0), (0, 0)]);
        let chosen: Vec<_> = (0..6).map(|_| endpoints.choose(&[]).unwrap()).collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
        fail(&endpoints, 1);
        let chosen: Vec<_> = (0..4).map(|_| endpoints.choose(&[]).unwrap()).collect();
        assert_eq!(chosen, [0, 2, 0, 2]);
    }

    #[test]
    fn the_share_of_an_endpoint_is_its_weight() {
        let counts = counts(&endpoints(&[(0, 10), (0, 30), (0, 60)]));
        for (count, percent) in counts.iter().zip([10, 30, 60]) {
            let expected = CHOICES * percent / 100;
            assert!(count.abs_diff(expected) < CHOICES / 50, "{counts:?}");
        }
    }

    #[test]
    fn an_endpoint_without_a_weight_gets_few_connections_next_to_others() {
        let counts = counts(&endpoints(&[(0, 0), (0, 5)]));
        assert!((1..CHOICES / 50).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn the_lowest_priority_that_is_up_serves() {
        let endpoints = endpoints(&[(20, 0), (10, 1), (10, 1), (30, 9)]);
        let chosen = counts(&endpoints);
        assert!(chosen[0] == 0 && chosen[3] == 0 && chosen[1] > 0 && chosen[2] > 0, "{chosen:?}");
        fail(&endpoints, 1);
        assert_eq!(counts(&endpoints), [0, 0, CHOICES, 0]);
        fail(&endpoints, 2);
        assert_eq!(counts(&endpoints), [CHOICES, 0, 0, 0]);
        endpoints.all()[1].note_up();
        assert_eq!(counts(&endpoints), [0, CHOICES, 0, 0]);
    }

    #[test]
    fn endpoints_that_are_down_are_tried_if_no_other_is_left() {
        let endpoints = endpoints(&[(1, 0), (0, 0), (0, 0)]);
        (0..3).for_each(|index| fail(&endpoints, index));
        let mut tried = Vec::new();
        while let Some(index) = endpoints.choose(&tried) {
            tried.push(index);
        }
        assert_eq!(tried.len(), 3, "{tried:?}");
        assert_eq!(tried[2], 0, "the best priority is first: {tried:?}");
        endpoints.all()[0].note_up();
        assert_eq!(endpoints.choose(&[]), Some(0));
        assert!([Some(1), Some(2)].contains(&endpoints.choose(&[0])));
    }

    #[test]
    fn the_same_seed_gives_the_same_choices() {
        let choices = || {
            let endpoints = endpoints(&[(0, 1), (0, 2), (0, 3)]);
            (0..100).map(|_| endpoints.choose(&[]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(choices(), choices());
    }
}
