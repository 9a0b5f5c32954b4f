//! Waits for work until the deadline of a request. A timer is created only if the work is not ready
//! at its first poll.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use clearlane_contention::now_ns;
use tokio::time::{Sleep, sleep};

/// A deadline, on the clock of [`now_ns`]. It may be infinite.
#[derive(Debug)]
pub struct Deadline {
    deadline_ns: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    pub fn new(until_ns: Option<u64>) -> Deadline {
        Deadline { deadline_ns: until_ns.unwrap_or(u64::MAX), timer: None }
    }

    /// Returns whether the deadline has passed. Reads the clock.
    pub fn has_passed(&self) -> bool {
        self.deadline_ns != u64::MAX && now_ns() >= self.deadline_ns
    }

    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.deadline_ns == u64::MAX {
            return Poll::Pending;
        }
        let until_ns = self.deadline_ns;
        let left = || Duration::from_nanos(until_ns.saturating_sub(now_ns()));
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(left())));
        timer.as_mut().poll(context)
    }
}

pub async fn within_deadline<T>(until_ns: Option<u64>, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut deadline) = (pin!(work), Deadline::new(until_ns));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => deadline.poll(context).map(|()| None),
    })
    .await
}
