//! Reads and discards the rest of a request's body if the service has not read all of it. Only
//! requests over HTTP/2 need this.
//!
//! If the response ends before its request does, h2 resets the stream. Some clients, such as curl
//! 7.88, report the reset as an error and lose the response. So up to 64 KiB of the rest are read
//! before the response is sent, for at most 1 s.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;

/// Maximum number of bytes that are read. A stream with a longer rest is reset.
const UNREAD_BYTES_MAX: usize = 64 << 10;
/// Longest time for which a response waits until the rest of its request is read.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the body until it ends, until more than [`UNREAD_BYTES_MAX`] bytes are read, or until
/// [`UNREAD_TIMEOUT`] has passed.
pub(crate) async fn discard<B: Body>(body: B) {
    let mut body = pin!(body);
    let mut read = 0;
    let reading = async {
        while read <= UNREAD_BYTES_MAX && !body.is_end_stream() {
            let Some(Ok(frame)) = body.frame().await else { return };
            let data = frame.data_ref();
            read += data.map_or(0, bytes::Buf::remaining);
        }
    };
    let _ = tokio::time::timeout(UNREAD_TIMEOUT, reading).await;
}

/// A request body. If it is dropped before its end, the rest of the body can still be read and
/// discarded.
#[derive(Debug)]
pub(crate) struct RecoverableBody<B: Body> {
    /// The original body. `Some` until this value is dropped.
    body: Option<B>,
    dropped: Option<oneshot::Sender<B>>,
}

/// Receives a body that was dropped before its end.
#[derive(Debug)]
pub(crate) struct UnreadBody<B>(oneshot::Receiver<B>);

pub(crate) fn recoverable<B: Body>(
    request: Request<B>,
) -> (Request<RecoverableBody<B>>, UnreadBody<B>) {
    let (dropped, unread) = oneshot::channel();
    let request = request.map(|body| RecoverableBody { body: Some(body), dropped: Some(dropped) });
    (request, UnreadBody(unread))
}

impl<B: Body> UnreadBody<B> {
    /// Reads the rest of the body. Does nothing if the body was read to its end, or is still in
    /// use.
    pub(crate) async fn discard(mut self) {
        if let Ok(body) = self.0.try_recv() {
            discard(body).await;
        }
    }
}

impl<B: Body> Drop for RecoverableBody<B> {
    fn drop(&mut self) {
        if let (Some(body), Some(dropped)) = (self.body.take(), self.dropped.take())
            && !body.is_end_stream()
        {
            let _ = dropped.send(body);
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for RecoverableBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Instant;

    use futures_util::{FutureExt as _, stream};
    use http_body_util::StreamBody;

    use super::*;

    /// Returns a body of `count` frames of 1 KiB. If `ends` is false, it never ends.
    fn frames(count: usize, ends: bool) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let mut left = count;
        StreamBody::new(stream::poll_fn(move |_| {
            if left == 0 && !ends {
                return Poll::Pending;
            }
            left = left.wrapping_sub(1);
            let frame = Frame::data(Bytes::from_static(&[0; 1024]));
            Poll::Ready((left < count).then_some(Ok(frame)))
        }))
    }

    #[test]
    fn a_body_is_read_up_to_its_end_its_limit_or_the_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for (count, ends) in [(3, true), (64, true), (65, false)] {
                assert!(discard(frames(count, ends)).now_or_never().is_some(), "{count} frames");
            }
            let begin = Instant::now();
            discard(frames(64, false)).await;
            assert!(begin.elapsed() >= UNREAD_TIMEOUT);
        });
    }

    #[test]
    fn only_a_body_that_was_dropped_early_is_discarded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (request, mut unread) = recoverable(Request::new(frames(2, true)));
            assert!(unread.0.try_recv().is_err(), "it is in use");
            let mut body = request.into_body();
            body.frame().await.unwrap().unwrap();
            drop(body);
            assert!(unread.0.try_recv().is_ok());

            let (request, mut unread) = recoverable(Request::new(http_body_util::Empty::new()));
            request.into_body().collect().await.unwrap();
            assert!(unread.0.try_recv().is_err(), "it was read to its end");
        });
    }
}
