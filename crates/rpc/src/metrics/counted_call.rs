//! Counts the messages and the end of a call, outside of the service.
//!
//! tonic's services report neither the number of messages in a stream nor how the stream ended. But
//! the frames show both. [`call`] wraps the bodies of request and response, and reads the head of
//! each frame. A head has 5 bytes, and may be divided between two pieces of data.
//!
//! The body of a request also waits for a new turn of its network thread after each 64 KiB, so that
//! a large stream does not delay other connections (see `request_turns.rs`). So no service needs to
//! count the bytes of its messages.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use clearlane_replica::RequestError;
use clearlane_server::deadline::{Deadline, within_deadline};
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};
use tower_service::Service;

use super::rpcs::RpcMethod;
use super::thread::{CallMetrics, ThreadMetrics};
use crate::context::ThreadServices;
use crate::kv::message_bytes_max;
use crate::request_turns::RequestTurns;
use crate::{grpc_frame, gzip, status};

/// Serves a call and counts it. At the deadline `until_ns`, on the clock of
/// [`now_ns`](clearlane_contention::now_ns), the call ends, even in the middle of its stream.
pub(crate) async fn call(
    ThreadServices { server, mut grpc, metrics: thread, turns, .. }: ThreadServices,
    method: RpcMethod,
    request: Request<Body>,
    until_ns: Option<u64>,
) -> Response<Body> {
    let call = thread.start_call(method);
    let (scanner, limit) = (MessageScanner::default(), message_bytes_max(&server));
    let turns = RequestTurns::new(turns);
    let request = request
        .map(|body| Body::new(CountedRequestBody { body, scanner, thread, method, limit, turns }));
    let answered = async {
        let ready = poll_fn(|context| Service::<Request<Body>>::poll_ready(&mut grpc, context));
        let Ok(()) = ready.await;
        let Ok(response) = grpc.call(request).await;
        response
    };
    let late = || status::from_error(RequestError::DeadlineExceeded).into_http();
    let response = within_deadline(until_ns, answered).await.unwrap_or_else(late);
    if let Some(status) = Status::from_header_map(response.headers()) {
        // The status is in the head, so the response has no message and no trailers.
        call.end(status.code());
        return response;
    }
    let (call, deadline, scanner) =
        (Some(call), Deadline::new(until_ns), MessageScanner::default());
    response.map(|body| Body::new(CountedResponseBody { body, scanner, call, deadline }))
}

#[derive(Debug, Default)]
struct MessageScanner {
    head: [u8; 5],
    head_len: usize,
    message_left: usize,
}

impl MessageScanner {
    /// Calls `found` with the flag and the length of each message.
    fn scan<E>(
        &mut self,
        mut piece: &[u8],
        mut found: impl FnMut(u8, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            let message = self.message_left.min(piece.len());
            piece.advance(message);
            self.message_left -= message;
            if piece.is_empty() {
                return Ok(());
            }
            let head = piece.len().min(self.head.len() - self.head_len);
            piece.copy_to_slice(&mut self.head[self.head_len..self.head_len + head]);
            self.head_len += head;
            if self.head_len == self.head.len() {
                let [flag, length @ ..] = self.head;
                (self.head_len, self.message_left) = (0, u32::from_be_bytes(length) as usize);
                found(flag, self.message_left)?;
            }
        }
    }
}

struct CountedRequestBody {
    body: Body,
    scanner: MessageScanner,
    thread: ThreadMetrics,
    method: RpcMethod,
    limit: usize,
    turns: RequestTurns,
}

impl http_body::Body for CountedRequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        ready!(this.turns.poll_turn(context));
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            this.scanner.scan(data, |flag, bytes| {
                grpc_frame::check_received_size(bytes, this.limit)?;
                // If the call has announced gzip, its messages are already decompressed. So a flag
                // other than 0 is an error, and `decompress` returns this error.
                if flag != 0 {
                    gzip::decompress(flag, &[], this.limit, false)?;
                }
                this.thread.received(this.method, bytes);
                Ok::<_, Status>(())
            })?;
            this.turns.record(data.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response. If it is dropped before its end, the call is counted as canceled.
struct CountedResponseBody {
    body: Body,
    scanner: MessageScanner,
    call: Option<CallMetrics>,
    deadline: Deadline,
}

impl CountedResponseBody {
    fn record_frame(&mut self, frame: Option<&Result<Frame<Bytes>, Status>>) {
        let Some(call) = &self.call else { return };
        let code = match frame {
            Some(Ok(frame)) => match (frame.data_ref(), frame.trailers_ref()) {
                (Some(data), _) => {
                    let Ok(()) = self.scanner.scan(data, |_, bytes| {
                        call.sent(bytes);
                        Ok::<_, Infallible>(())
                    });
                    return;
                }
                (None, trailers) => trailers
                    .and_then(Status::from_header_map)
                    .map_or(Code::Ok, |status| status.code()),
            },
            Some(Err(status)) => status.code(),
            None => Code::Unknown,
        };
        if let Some(call) = self.call.take() {
            call.end(code);
        }
    }
}

impl http_body::Body for CountedResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let in_time = if this.deadline.has_passed() {
            None
        } else {
            match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Ready(frame) => Some(frame),
                Poll::Pending => {
                    ready!(this.deadline.poll(context));
                    None
                }
            }
        };
        let frame = in_time.unwrap_or_else(|| {
            let had_ended = std::mem::take(&mut this.body).is_end_stream();
            (!had_ended).then(|| Ok(Frame::trailers(status::deadline_exceeded_trailers())))
        });
        this.record_frame(frame.as_ref());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use bytes::{BufMut as _, BytesMut};
    use clearlane_net::bulk_turn::BulkTurns;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::{FutureExt as _, stream};
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;
    use crate::grpc_frame::frame_bytes;
    use crate::metrics::RpcMetrics;
    use crate::request_turns::BYTES_PER_TURN;

    /// Reads the messages of a watch stream, which have all arrived. After each 64 KiB the body
    /// pauses, and waits for a turn. Returns the number of bytes that were read before each pause,
    /// and after the last one.
    async fn bytes_between_pauses(frames: Vec<Bytes>, is_packed: bool) -> Vec<usize> {
        let limit = 4 << 20;
        let frames = frames.into_iter().map(|frame| Ok::<_, Status>(Frame::data(frame)));
        let body = Body::new(StreamBody::new(stream::iter(frames)));
        let body = match is_packed {
            true => gzip::decompress_request(Request::new(body), limit).into_body(),
            false => body,
        };
        let mut body = CountedRequestBody {
            body,
            scanner: MessageScanner::default(),
            thread: RpcMetrics::new(false).register_thread(),
            method: RpcMethod::named("/etcdserverpb.Watch/Watch"),
            limit,
            turns: RequestTurns::new(BulkTurns::start()),
        };
        let mut read = vec![0];
        loop {
            match body.frame().now_or_never() {
                Some(Some(frame)) => {
                    let bytes = frame.unwrap().into_data().unwrap().len();
                    *read.last_mut().unwrap() += bytes;
                }
                Some(None) => return read,
                None => {
                    read.push(0);
                    // Another task of the runtime grants the turn.
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    #[test]
    fn a_body_waits_for_a_turn_after_its_bytes() {
        let message = 10_000;
        let read = block_on(async {
            bytes_between_pauses(vec![frame_bytes(&vec![7; message]); 100], false).await
        });
        assert_eq!(read.iter().sum::<usize>(), 100 * (message + 5));
        assert!(read.iter().all(|bytes| *bytes < BYTES_PER_TURN + message + 5), "{read:?}");
    }

    #[test]
    fn what_counts_is_the_unpacked_length_of_a_message() {
        let message = BYTES_PER_TURN + 1;
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        packed.write_all(&vec![0; message]).unwrap();
        let packed = packed.finish().unwrap();
        let mut frames = BytesMut::new();
        for _ in 0..20 {
            frames.put_u8(1);
            frames.put_u32(packed.len() as u32);
            frames.put_slice(&packed);
        }
        assert!(frames.len() < BYTES_PER_TURN, "{} bytes", frames.len());
        let read = block_on(async { bytes_between_pauses(vec![frames.freeze()], true).await });
        assert_eq!(read.iter().sum::<usize>(), 20 * (message + 5));
        assert!(read.iter().all(|bytes| *bytes <= message + 5), "{read:?}");
    }

    #[test]
    fn heads_are_seen_wherever_the_pieces_are_cut() {
        let mut stream = Vec::new();
        for length in [3u8, 0, 7] {
            stream.extend([0, 0, 0, 0, length]);
            stream.extend(std::iter::repeat_n(9, usize::from(length)));
        }
        for piece in 1..=stream.len() {
            let mut heads = MessageScanner::default();
            let mut found = Vec::new();
            for piece in stream.chunks(piece) {
                let Ok(()) = heads.scan(piece, |_, bytes| {
                    found.push(bytes);
                    Ok::<_, Infallible>(())
                });
            }
            assert_eq!(found, [3, 0, 7], "in pieces of {piece}");
        }
    }
}
