//! Open-loop puts and their times, phase by phase: 2,000 puts per second, to 100,000 keys in turn.
//!
//! Arrivals are random, and do not depend on the results of earlier puts.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_benches::pace::histogram;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::cluster::{Cluster, LongestTimes};

pub(crate) const PUTS_PER_SECOND: f64 = 2_000.0;
pub(crate) const VALUE_SIZE: usize = 256;
/// Number of keys that are put in turn.
const KEYS: u64 = 100_000;
/// Maximum number of puts in flight during a fill.
const FILL_BATCH: usize = 2_048;
/// The thread starts to spin this long before a put is due, because waking is inexact.
const SPIN_BEFORE: Duration = Duration::from_micros(80);
/// Maximum time of a phase. A longer phase has failed.
pub(crate) const PHASE_TIMEOUT: Duration = Duration::from_secs(120);

/// The puts of one phase, with their times.
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) time: Duration,
    /// The latencies of the puts that were due in this phase. A latency is the time from when a put
    /// was due until its response.
    pub(crate) latency: Histogram<u64>,
    /// Number of responses that arrived in this phase.
    pub(crate) answers: u64,
    pub(crate) longest: LongestTimes,
}

/// The source of the puts.
pub(crate) struct Load {
    gaps: SmallRng,
    due: Instant,
    number: u64,
    value: Bytes,
    /// The due time and the phase of each open put.
    waiting: HashMap<u64, (Instant, usize)>,
    pub(crate) phases: Vec<Phase>,
}

impl Load {
    pub(crate) fn new(seed: u64) -> Load {
        Load {
            gaps: SmallRng::seed_from_u64(seed),
            due: Instant::now(),
            number: 0,
            value: clearlane_benches::store::value(VALUE_SIZE),
            waiting: HashMap::new(),
            phases: Vec::new(),
        }
    }

    /// Makes `count` puts as fast as they complete, with at most `FILL_BATCH` puts in flight.
    pub(crate) fn fill(&mut self, cluster: &mut Cluster, count: u64) {
        let mut open = 0;
        let end = self.number + count;
        while self.number < end || open > 0 {
            while self.number < end && open < FILL_BATCH {
                self.put(cluster);
                open += 1;
            }
            cluster.run_until(Instant::now() + PHASE_TIMEOUT);
            open -= cluster.answered.drain(..).count();
        }
    }

    fn put(&mut self, cluster: &mut Cluster) -> u64 {
        self.number += 1;
        cluster.put(self.number % KEYS, &self.value)
    }

    /// Makes puts at random times, `PUTS_PER_SECOND` on average, until `is_over` returns true.
    pub(crate) fn phase(
        &mut self,
        name: &'static str,
        cluster: &mut Cluster,
        mut is_over: impl FnMut(&Cluster, Duration) -> bool,
    ) {
        let (latency, time, longest) = (histogram(), Duration::ZERO, LongestTimes::default());
        self.phases.push(Phase { name, time, latency, answers: 0, longest });
        let (begin, phase) = (Instant::now(), self.phases.len() - 1);
        if self.waiting.is_empty() {
            self.due = begin;
        }
        cluster.take_longest();
        while !is_over(cluster, begin.elapsed()) {
            assert!(begin.elapsed() < PHASE_TIMEOUT, "phase {name} comes to an end");
            while self.due <= Instant::now() {
                let id = self.put(cluster);
                self.waiting.insert(id, (self.due, phase));
                let gap = self.next_gap();
                self.due += gap;
            }
            cluster.run_until(self.due - SPIN_BEFORE);
            self.record_answers(cluster, phase);
        }
        self.phases[phase].time = begin.elapsed();
        self.phases[phase].longest = cluster.take_longest();
    }

    /// Waits for the responses to all open puts.
    pub(crate) fn finish(&mut self, cluster: &mut Cluster) {
        let last = self.phases.len() - 1;
        while !self.waiting.is_empty() {
            cluster.run_until(Instant::now() + PHASE_TIMEOUT);
            self.record_answers(cluster, last);
        }
    }

    fn record_answers(&mut self, cluster: &mut Cluster, phase: usize) {
        let now = Instant::now();
        for id in cluster.answered.drain(..) {
            let (due, of) = self.waiting.remove(&id).expect("an answer comes once");
            let latency = now.saturating_duration_since(due);
            self.phases[of].latency.saturating_record(latency.as_nanos() as u64);
            self.phases[phase].answers += 1;
        }
    }

    fn next_gap(&mut self) -> Duration {
        let uniform: f64 = self.gaps.random_range(f64::EPSILON..1.0);
        Duration::from_secs_f64(-uniform.ln() / PUTS_PER_SECOND)
    }
}
