//! The counters of one network thread. The metrics page shows the sums over all threads.
//!
//! If all threads wrote to one counter, its cache line would move between cores, which costs more
//! than the lookup of a key. Here each counter has one writer, so counting is a load, an addition
//! and a store. The counters of one rpc are next to each other. Only the thread that owns the
//! counters may count: counts of another thread might be lost. See `docs/http.md`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clearlane_contention::now_ns;
use clearlane_server::threads::DurationHistogram;
use tonic::Code;

use super::rpcs::{RPCS, RpcMethod};

/// Number of gRPC's codes, from OK to Unauthenticated.
pub(super) const CODES: usize = 17;

/// The counters of one rpc. The alignment keeps the counters of different rpcs in different cache
/// lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct RpcCounters {
    pub(super) started: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) handled: [AtomicU64; CODES],
    /// The durations of failed calls (index 0) and of successful calls (index 1). The first such
    /// call allocates the histogram.
    pub(super) durations: [OnceLock<DurationHistogram>; 2],
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct GlobalCounters {
    pub(super) received_bytes: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    /// Number of requests of `/health` whose result was true.
    pub(super) health_success: AtomicU64,
    pub(super) health_failures: AtomicU64,
}

#[derive(Debug)]
pub(super) struct ThreadCounters {
    pub(super) rpcs: Box<[RpcCounters]>,
    pub(super) global: GlobalCounters,
}

#[derive(Clone, Debug)]
pub struct ThreadMetrics {
    pub(super) counters: Arc<ThreadCounters>,
}

impl ThreadMetrics {
    pub(super) fn new() -> ThreadMetrics {
        let rows = RPCS.all.iter().map(|_| RpcCounters::default()).collect();
        ThreadMetrics {
            counters: Arc::new(ThreadCounters { rpcs: rows, global: GlobalCounters::default() }),
        }
    }

    /// Counts a request of `/health`.
    pub(crate) fn health_check(&self, is_healthy: bool) {
        let GlobalCounters { health_success, health_failures, .. } = &self.counters.global;
        add(if is_healthy { health_success } else { health_failures }, 1);
    }

    #[inline]
    pub fn received(&self, method: RpcMethod, bytes: usize) {
        add(&self.counters.rpcs[usize::from(method.0)].received, 1);
        add(&self.counters.global.received_bytes, bytes as u64);
    }

    /// Counts the start of a call. [`CallMetrics::end`] counts its end; a call that is dropped is
    /// counted as canceled.
    #[inline]
    pub fn start_call(&self, method: RpcMethod) -> CallMetrics {
        add(&self.counters.rpcs[usize::from(method.0)].started, 1);
        CallMetrics { thread: self.clone(), method, begin_ns: now_ns(), is_ended: false }
    }
}

/// Adds without a locked instruction, because a counter has one writer.
#[inline]
fn add(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(more), Relaxed);
}

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

    #[inline]
    pub fn received(&self, bytes: usize) {
        self.thread.received(self.method, bytes);
    }

    #[inline]
    pub fn sent(&self, bytes: usize) {
        add(&self.counters().sent, 1);
        add(&self.thread.counters.global.sent_bytes, bytes as u64);
    }

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
