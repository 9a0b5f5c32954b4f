//! Quorum probes that many readers share.
//!
//! A probe is a linearizable read upstream. Its revision shows how far the cache must be before it
//! may answer. A reader may use only a probe that starts after the reader has arrived. So a reader
//! that finds probes under way waits for the next one, together with all others that arrive until
//! it starts:
//!
//! ```text
//!   probe 1   ├──────────┤              probes in flight: at most two
//!   probe 2        ├──────────┤
//!   readers a starts 1 │ b starts 2 │ c, d, e wait ─▶ probe 3 starts when 1 ends
//! ```

use std::sync::Arc;
use std::time::Duration;

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{RangeRequest, ResponseHeader};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Status;

use crate::trace::ProxyTrace;
use crate::upstream::{Upstream, is_transport_error};

/// Maximum number of probes in flight.
const IN_FLIGHT_MAX: usize = 2;
/// Maximum time of a probe, with all attempts.
const PROBE_PATIENCE: Duration = Duration::from_secs(3);
/// Longest pause before a probe is repeated after an error of the connection.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Decides which probe a reader uses. Does no input or output.
#[derive(Debug, Default)]
pub struct ProbeBatches {
    in_flight: usize,
    has_waiting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// The caller must start a probe now.
    Start,
    /// The reader waits for the next probe, which does not exist yet.
    First,
    /// The reader waits for the next probe, together with others.
    Wait,
}

impl ProbeBatches {
    pub fn join(&mut self) -> Joined {
        if self.in_flight < IN_FLIGHT_MAX {
            self.in_flight += 1;
            return Joined::Start;
        }
        match std::mem::replace(&mut self.has_waiting, true) {
            true => Joined::Wait,
            false => Joined::First,
        }
    }

    /// A probe has ended. Returns true if the caller must start the waiting probe now.
    pub fn ended(&mut self) -> bool {
        let starts = std::mem::take(&mut self.has_waiting);
        if !starts {
            self.in_flight -= 1;
        }
        starts
    }
}

/// The result of a probe.
#[derive(Clone, Debug)]
pub struct Probe {
    pub header: ResponseHeader,
    /// The probe started at this time.
    pub started: Instant,
    /// The number in a recording, or 0 if nothing is recorded.
    pub(crate) number: u32,
}

type Outcome = Option<Result<Probe, Status>>;

/// Makes the probes of anonymous readers.
#[derive(Debug)]
pub struct Prober {
    upstream: Arc<Upstream>,
    trace: Arc<ProxyTrace>,
    state: Mutex<ProberState>,
}

#[derive(Debug, Default)]
struct ProberState {
    batches: ProbeBatches,
    waiting: Option<watch::Sender<Outcome>>,
}

impl Prober {
    pub fn new(upstream: Arc<Upstream>, trace: Arc<ProxyTrace>) -> Arc<Prober> {
        Arc::new(Prober { upstream, trace, state: Mutex::default() })
    }

    /// Makes a probe that starts after this call, or uses one that others make. The probe runs on
    /// the thread of the reader that starts it, and may also serve readers of other threads. So the
    /// runtime of a thread may end only after the readers of all threads have left.
    pub async fn probe(self: &Arc<Self>) -> Result<Probe, Status> {
        let mut result = {
            let mut state = self.state.lock();
            match state.batches.join() {
                Joined::Start => {
                    let (sender, result) = watch::channel(None);
                    tokio::spawn(Arc::clone(self).run(sender));
                    result
                }
                Joined::First | Joined::Wait => {
                    state.waiting.get_or_insert_with(|| watch::channel(None).0).subscribe()
                }
            }
        };
        let ended = result.wait_for(Option::is_some).await.map(|it| it.clone());
        ended.ok().flatten().unwrap_or_else(|| Err(Status::unavailable("the probe was given up")))
    }

    async fn run(self: Arc<Self>, mut batch: watch::Sender<Outcome>) {
        loop {
            let traced = self.trace.start_probe();
            let outcome = self.ask(traced.map_or(0, |(number, _)| number)).await;
            self.trace.end_probe(traced);
            batch.send_replace(Some(outcome));
            let mut state = self.state.lock();
            if !state.batches.ended() {
                return;
            }
            batch = state.waiting.take().expect("a waiting probe has a channel");
        }
    }

    async fn ask(&self, number: u32) -> Result<Probe, Status> {
        let started = Instant::now();
        let deadline = started + PROBE_PATIENCE;
        loop {
            let member = self.upstream.wait_and_pick().await;
            let Some((member, channel, generation)) = member.and_then(|member| {
                let (channel, generation) = member.connection_of_thread()?;
                Some((member, channel, generation))
            }) else {
                return Err(Status::unavailable("no member is connected"));
            };
            let request =
                RangeRequest { key: vec![0].into(), count_only: true, ..RangeRequest::default() };
            let mut client = KvClient::new(channel);
            let answer = tokio::select! {
                answer = timeout_at(deadline, client.range(request)) => answer,
                () = self.upstream.lost(&member, generation) => continue,
            };
            match answer {
                Ok(Ok(answer)) => {
                    let header = answer.into_inner().header.unwrap_or_default();
                    if header.revision <= 0 {
                        return Err(Status::unavailable("the probe has no revision"));
                    }
                    return Ok(Probe { header, started, number });
                }
                Ok(Err(status)) if is_transport_error(&status) && Instant::now() < deadline => {
                    member.doubt();
                    let _ = timeout(RETRY_DELAY, self.upstream.lost(&member, generation)).await;
                }
                Ok(Err(status)) => return Err(status),
                Err(_) => return Err(Status::unavailable("the probe was not answered in time")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_never_uses_a_probe_that_started_before_it() {
        let mut batches = ProbeBatches::default();
        assert_eq!(batches.join(), Joined::Start);
        assert_eq!(batches.join(), Joined::Start);
        assert_eq!(batches.join(), Joined::First);
        assert_eq!(batches.join(), Joined::Wait);
        assert!(batches.ended(), "the waiting probe starts");
        assert_eq!(batches.join(), Joined::First, "it has started, so it is too late to join it");
        assert!(batches.ended());
        assert!(!batches.ended());
        assert!(!batches.ended());
        assert_eq!(batches.join(), Joined::Start);
    }
}
