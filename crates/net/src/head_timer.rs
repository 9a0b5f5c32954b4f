//! How long may a client take to finish what it has begun to say?
//!
//! The time runs from the first look that finds nothing more to read until there is progress, so
//! one byte a second does not help, and a connection between two requests has no timer (over
//! HTTP/1.1, which hyper times, it has).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

#[derive(Debug)]
pub(crate) struct HeadTimer {
    limit: Duration,
    /// Made when it is first needed, which on most connections is at their beginning alone.
    sleep: Option<Pin<Box<Sleep>>>,
    /// What was reached when the time began.
    since: Option<u64>,
}

impl HeadTimer {
    pub(crate) fn new(limit: Duration) -> HeadTimer {
        HeadTimer { limit, sleep: None, since: None }
    }

    /// `progress` is how far the client has come with what it has not finished, or `None`. Ready
    /// when that has been the same for too long.
    pub(crate) fn poll_expired(
        &mut self,
        progress: Option<u64>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        if progress.is_none() {
            (self.since, self.sleep) = (None, None);
            return Poll::Pending;
        }
        let limit = self.limit;
        let timer = self.sleep.get_or_insert_with(|| Box::pin(sleep(limit)));
        if self.since != progress {
            timer.as_mut().reset(Instant::now() + limit);
            self.since = progress;
        }
        timer.as_mut().poll(context)
    }
}
