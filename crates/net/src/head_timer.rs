//! Limits the time that an HTTP/2 client may take to complete a *head*. The first head is the
//! preface and one frame. After that, each list of headers and each frame that the client starts to
//! send is a head, except for the payload of a DATA frame.
//!
//! The time starts when a head is incomplete and the server finds nothing more to read. It restarts
//! whenever the argument `progress` of `poll_expired` has changed since the previous call. So
//! `progress` must not count bytes: it rises when the nine-byte head of a frame is complete, except
//! for CONTINUATION frames. A client that sends one byte per second then gains nothing. A
//! connection between two requests has no timer. (Over HTTP/1.1 hyper has its own timer, which also
//! runs between requests.)

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

#[derive(Debug)]
pub(crate) struct HeadTimer {
    limit: Duration,
    /// The timer. It exists only while a head is incomplete, which on most connections is only at
    /// the start.
    sleep: Option<Pin<Box<Sleep>>>,
    /// The value of `progress` when the timer was last started. `None` if there is no timer.
    since: Option<u64>,
}

impl HeadTimer {
    pub(crate) fn new(limit: Duration) -> HeadTimer {
        HeadTimer { limit, sleep: None, since: None }
    }

    /// Becomes ready if `progress` has not changed for the time limit. `progress` is a number that
    /// grows while the client completes parts of a head; `None` if no head is incomplete.
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
