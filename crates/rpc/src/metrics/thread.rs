//! The counters of one network thread. A query for the metrics page sums them over the threads.
//!
//! A request is counted in five places. A counter that all threads write to is a cache line that
//! travels between cores at each count, which costs more than the look-up of a key. Here a counter
//! has one writer, so counting is a load, an addition and a store, without a locked instruction;
//! the counters of one rpc lie together, apart from other threads'.
//!
//! Only its own thread counts on a [`ThreadMetrics`]. Another thread would break no memory, but
//! counts would be lost. See `docs/http.md`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clearlane_contention::now_ns;
use clearlane_server::threads::DurationHistogram;
use tonic::Code;

use super::rpcs::{RpcMethod, rpcs};

/// gRPC's codes, from OK to Unauthenticated.
pub(super) const CODES: usize = 17;

/// What a thread counts beside rpcs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Bytes of messages that clients sent.
    ReceivedBytes,
    /// Bytes of messages that clients got.
    SentBytes,
    /// Questions for `/health` that were answered with yes.
    HealthSuccess,
    /// And with no.
    HealthFailure,
}

const COUNTERS: usize = 4;

/// The counters of one rpc: two lines of cache on most machines, and what nearly all requests need
/// is on the first of them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct RpcCounters {
    pub(super) started: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) handled: [AtomicU64; CODES],
    /// By success. Made by the first call that ends so.
    pub(super) durations: [OnceLock<DurationHistogram>; 2],
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct GlobalCounters([AtomicU64; COUNTERS]);

/// The counters of one thread.
#[derive(Debug)]
pub(super) struct ThreadCounters {
    pub(super) rpcs: Box<[RpcCounters]>,
    global: GlobalCounters,
}

impl ThreadCounters {
    pub(super) fn count(&self, counter: Counter) -> u64 {
        self.global.0[counter as usize].load(Relaxed)
    }
}

/// Where one thread counts.
#[derive(Clone, Debug)]
pub struct ThreadMetrics {
    pub(super) counters: Arc<ThreadCounters>,
}

impl ThreadMetrics {
    pub(super) fn new() -> ThreadMetrics {
        let rows = rpcs().all.iter().map(|_| RpcCounters::default()).collect();
        ThreadMetrics {
            counters: Arc::new(ThreadCounters { rpcs: rows, global: GlobalCounters::default() }),
        }
    }

    /// Counts one.
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    fn add(&self, counter: Counter, more: u64) {
        add(&self.counters.global.0[counter as usize], more);
    }

    /// A message of so many bytes came from a client.
    #[inline]
    pub fn received(&self, method: RpcMethod, bytes: usize) {
        add(&self.counters.rpcs[usize::from(method.0)].received, 1);
        self.add(Counter::ReceivedBytes, bytes as u64);
    }

    /// A call begins. Ended by [`CallMetrics::end`], or it counts as cancelled when it is dropped.
    #[inline]
    pub fn start_call(&self, method: RpcMethod) -> CallMetrics {
        add(&self.counters.rpcs[usize::from(method.0)].started, 1);
        CallMetrics { thread: self.clone(), method, begin_ns: now_ns(), is_ended: false }
    }
}

/// The writer is alone: see on top.
#[inline]
fn add(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(more), Relaxed);
}

/// A call under way.
#[derive(Debug)]
pub struct CallMetrics {
    thread: ThreadMetrics,
    method: RpcMethod,
    begin_ns: u64,
    is_ended: bool,
}

impl CallMetrics {
    fn counters(&self) -> &RpcCounters {
        &self.thread.counters.rpcs[usize::from(self.method.0)]
    }

    /// A message of so many bytes came from the client.
    #[inline]
    pub fn received(&self, bytes: usize) {
        self.thread.received(self.method, bytes);
    }

    /// A message of so many bytes goes to the client.
    #[inline]
    pub fn sent(&self, bytes: usize) {
        add(&self.counters().sent, 1);
        self.thread.add(Counter::SentBytes, bytes as u64);
    }

    /// The call has ended.
    #[inline]
    pub fn end(mut self, code: Code) {
        self.record_end(code);
    }

    fn record_end(&mut self, code: Code) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        let row = self.counters();
        add(&row.handled[code as usize], 1);
        let took = &row.durations[usize::from(code == Code::Ok)];
        let took = took.get_or_init(|| DurationHistogram::new(Duration::from_micros(100), 20));
        took.record_ns(now_ns().saturating_sub(self.begin_ns));
    }
}

impl Drop for CallMetrics {
    fn drop(&mut self) {
        self.record_end(Code::Cancelled);
    }
}
