//! Records where a slow request has spent its time. In etcd: `traceutil`. The stages differ from
//! etcd's.
//!
//! Each request carries a [`RequestTrace`] on the stack. The end of a stage costs one reading of
//! the clock. The stage that ends gets all the time since the end of the previous stage, so the
//! stages add up to the total.
//!
//! If a stage [ends with locks](RequestTrace::end_stage_with_locks), its time does not include its
//! waits for locks. These waits are recorded as [`Stage::Locks`], together with the task that [held
//! the lock](clearlane_contention) of the longest wait.
//!
//! [`RequestTrace::log_slow_request`] writes a log line, in etcd's words followed by the stages:
//! `docs/maintenance.md`.

use std::fmt;
use std::time::Duration;

use clearlane_contention::{BlockerState, LockWait, LockWaitMark, LockWaits, now_ns};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The time until the commit index was confirmed.
    ReadIndex,
    /// The time until this member had applied the write itself, or the entries that a read must
    /// see.
    Apply,
    /// The time until a thread started the work: a thread of a pool, or a separate thread.
    Pool,
    Locks,
    /// Looking up and reading the records.
    Backend,
    /// Comparing a password with its hash.
    Password,
    /// The time until this member had applied the entry with the token, or had signed the token.
    Token,
    Sending,
}

impl Stage {
    /// All stages, in the order of a read or an authentication.
    pub const ALL: [Stage; 8] = [
        Stage::ReadIndex,
        Stage::Apply,
        Stage::Pool,
        Stage::Locks,
        Stage::Backend,
        Stage::Password,
        Stage::Token,
        Stage::Sending,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Stage::ReadIndex => "read index",
            Stage::Apply => "apply",
            Stage::Pool => "pool",
            Stage::Locks => "locks",
            Stage::Backend => "backend",
            Stage::Password => "password",
            Stage::Token => "token",
            Stage::Sending => "sending",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RequestTrace {
    /// The number in a [recording](crate::observe::trace), or 0 if nothing is recorded.
    pub(crate) number: u32,
    /// The start of the request, on the clock of [`now_ns`].
    pub(crate) start_ns: u64,
    last_end_ns: u64,
    pub(crate) stage_ns: [u64; Stage::ALL.len()],
    longest_wait: Option<LockWait>,
}

impl RequestTrace {
    pub fn start() -> RequestTrace {
        RequestTrace::start_at(now_ns())
    }

    pub(crate) fn start_at(now_ns: u64) -> RequestTrace {
        RequestTrace {
            number: 0,
            start_ns: now_ns,
            last_end_ns: now_ns,
            stage_ns: Default::default(),
            longest_wait: None,
        }
    }

    pub fn with_number(self, number: u32) -> RequestTrace {
        RequestTrace { number, ..self }
    }

    /// Returns the point in time that is `time` after the start, on the clock of [`now_ns`].
    pub fn time_limit_ns(&self, time: Duration) -> u64 {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.start_ns.saturating_add(time_ns)
    }

    pub fn end_stage(&mut self, over: Stage) {
        self.end_stage_at(over, now_ns());
    }

    pub(crate) fn end_stage_at(&mut self, over: Stage, now_ns: u64) {
        self.stage_ns[over as usize] += now_ns.saturating_sub(self.last_end_ns);
        self.last_end_ns = now_ns;
    }

    /// Returns the trace of an applied entry. `took` is the time that applying it took, including
    /// waits for locks.
    pub(crate) fn of_apply(took: Duration, waits: LockWaits) -> RequestTrace {
        let mut trace = RequestTrace::start_at(0);
        trace.end_stage_at(Stage::Apply, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        trace.move_to_locks(Stage::Apply, waits);
        trace
    }

    /// Ends the wait of a linearizable read. The last part of the wait, `applying`, is recorded as
    /// [`Stage::Apply`]. If `applying` is `None`, the read did not wait, and nothing is recorded.
    pub fn end_read_index(&mut self, applying: Option<Duration>) {
        let Some(applying) = applying else { return };
        self.end_stage(Stage::ReadIndex);
        let applying_ns = u64::try_from(applying.as_nanos()).unwrap_or(u64::MAX);
        let moved = applying_ns.min(self.stage_ns[Stage::ReadIndex as usize]);
        self.stage_ns[Stage::ReadIndex as usize] -= moved;
        self.stage_ns[Stage::Apply as usize] += moved;
    }

    /// Ends a stage that ran on this thread only. Its waits for locks are recorded as
    /// [`Stage::Locks`].
    pub fn end_stage_with_locks(&mut self, over: Stage, now_ns: u64, before: LockWaitMark) {
        self.end_stage_at(over, now_ns);
        self.move_to_locks(over, before.waits());
    }

    fn move_to_locks(&mut self, from: Stage, waits: LockWaits) {
        let LockWaits { total_ns, longest: wait } = waits;
        let moved = total_ns.min(self.stage_ns[from as usize]);
        self.stage_ns[from as usize] -= moved;
        self.stage_ns[Stage::Locks as usize] += moved;
        let longest = |wait: &Option<LockWait>| wait.map_or(0, |wait| wait.waited_ns);
        if longest(&wait) > longest(&self.longest_wait) {
            self.longest_wait = wait;
        }
    }

    /// Returns the time from the start to the end of the last stage.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.last_end_ns.saturating_sub(self.start_ns))
    }

    /// Logs etcd's warning `request stats`, for a request that took longer than
    /// `--warning-unary-request-duration`.
    pub fn log_slow_request(&self, about: &SlowRequestFields<'_>) {
        tracing::warn!(
            "time spent" = ?self.elapsed(),
            stages = %self,
            remote = about.remote,
            "response type" = about.call,
            "request content" = %about.request,
            "response count" = about.response_count,
            "response size" = about.response_size,
            "request stats"
        );
    }

    /// Logs etcd's warning for a read that took longer than `--warning-apply-duration`, given as
    /// `expected`. The apply loop reports slow writes.
    pub fn log_slow_read(
        &self,
        prefix: &str,
        about: &SlowRequestFields<'_>,
        expected: Duration,
        error: &str,
    ) {
        let (count, size) = (about.response_count, about.response_size);
        let response = format!("range_response_count:{count} size:{size}");
        let (response, error) =
            if error.is_empty() { (response, None) } else { (String::new(), Some(error)) };
        tracing::warn!(
            took = ?self.elapsed(),
            "expected-duration" = ?expected,
            prefix,
            request = %about.request,
            response,
            error,
            stages = %self,
            "apply request took too long"
        );
    }
}

/// The fields of a log line about a request, except its time. They never contain values, which may
/// be secret.
#[derive(Clone, Copy)]
pub struct SlowRequestFields<'a> {
    /// The method, such as `/etcdserverpb.KV/Range`.
    pub call: &'a str,
    /// The client's address.
    pub remote: &'a str,
    /// The request in etcd's short form.
    pub request: &'a dyn fmt::Display,
    pub response_count: i64,
    pub response_size: usize,
}

impl fmt::Debug for SlowRequestFields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}: {}", self.call, self.remote, self.request)
    }
}

/// Prints the stages that took time, for example:
///
/// ```text
/// read index 1ms, locks 7ms (longest for readTx, held by put), backend 20ms
/// ```
impl fmt::Display for RequestTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gap = "";
        for stage in Stage::ALL {
            let spent_ns = self.stage_ns[stage as usize];
            if spent_ns == 0 {
                continue;
            }
            write!(f, "{gap}{} {:?}", stage.name(), Duration::from_nanos(spent_ns))?;
            gap = ", ";
            if let (Stage::Locks, Some(wait)) = (stage, self.longest_wait) {
                write_longest_wait(&wait, f)?;
            }
        }
        Ok(())
    }
}

/// Prints the lock of the longest wait, and the holder of this lock. A request may also wait for a
/// task that itself waits for the holder: for example, a reader waits for a queued writer.
fn write_longest_wait(wait: &LockWait, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, " (longest for {}", wait.lock)?;
    if let Some((actor, BlockerState::Waiting)) = wait.blocker {
        write!(f, ", behind {}", actor.name())?;
    }
    if let Some(holder) = wait.holder {
        write!(f, ", held by {}", holder.name())?;
    }
    write!(f, ")")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use clearlane_contention::{LockWaitMark, Registry, RwLock, TaskLabel};

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn all_time_belongs_to_a_stage() {
        let mut trace = RequestTrace::start_at(100 * MS);
        trace.end_stage_at(Stage::ReadIndex, 103 * MS);
        trace.end_stage_at(Stage::Apply, 103 * MS);
        trace.end_stage_at(Stage::Backend, 134 * MS);
        let holder = Some(TaskLabel::named("put"));
        let front = holder.map(|holder| (holder, BlockerState::Holding));
        let wait = LockWait { lock: "readTx", waited_ns: 7 * MS, blocker: front, holder };
        trace.move_to_locks(Stage::Backend, LockWaits { total_ns: 9 * MS, longest: Some(wait) });
        trace.end_stage_at(Stage::Sending, 135 * MS);
        assert_eq!(
            trace.to_string(),
            "read index 3ms, locks 9ms (longest for readTx, held by put), backend 22ms, sending 1ms"
        );
        assert_eq!(trace.stage_ns.iter().sum::<u64>(), 35 * MS);
        assert_eq!(trace.elapsed(), Duration::from_millis(35));
    }

    #[test]
    fn a_convoy_is_told_from_a_hold() {
        let front = Some((TaskLabel::named("put"), BlockerState::Waiting));
        let mut trace = RequestTrace::start_at(0);
        trace.end_stage_at(Stage::Backend, 2 * MS);
        let holder = Some(TaskLabel::named("range"));
        let wait = LockWait { lock: "readTx", waited_ns: MS, blocker: front, holder };
        // No more time can be moved than the stage has.
        trace.move_to_locks(Stage::Backend, LockWaits { total_ns: 3 * MS, longest: Some(wait) });
        let message = "locks 2ms (longest for readTx, behind put, held by range)";
        assert_eq!(trace.to_string(), message);
    }

    #[test]
    fn the_locks_of_the_stage_are_asked() {
        let registry = Registry::new();
        let lock = RwLock::new(&registry, "readTx", 0);
        let traced_line = thread::scope(|scope| {
            let held = {
                let _as = TaskLabel::named("expensive_read").enter();
                lock.write()
            };
            let waiting = scope.spawn(|| {
                let _as = TaskLabel::named("get").enter();
                let before = LockWaitMark::now();
                let mut trace = RequestTrace::start();
                drop(lock.read());
                trace.end_stage_with_locks(Stage::Backend, now_ns(), before);
                trace.to_string()
            });
            while registry.waiting().is_empty() {
                thread::yield_now();
            }
            drop(held);
            waiting.join().unwrap()
        });
        assert!(
            traced_line.contains("(longest for readTx, held by expensive_read)"),
            "{traced_line}"
        );
    }
}
