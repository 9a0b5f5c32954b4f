//! Closes connections of misbehaving clients: clients that ping too often, flood the server with
//! frames that request nothing, or do not complete the preface or a frame in time.
//!
//! h2 answers pings itself and does not report them, so this wrapper scans the bytes in both
//! directions.
//!
//! * *Pings* (gRPC's keepalive enforcement). A ping that follows the previous one sooner than
//!   `--grpc-keepalive-min-time` is a strike. Each part of a response that the server sends resets
//!   the strikes. The third strike sends `GOAWAY` with `too_many_pings`.
//! * *[Empty frames](EMPTY_FRAMES_MAX)* end a connection in the same way.
//! * *Incomplete heads* (the preface, a frame or a list of headers) end a connection after a
//!   timeout, without `GOAWAY`.
//!
//! `GOAWAY` must not be written into the middle of a frame. So h2 may first write the rest of its
//! current frame.
//!
//! The scan also counts new streams and resets. After many of these, the connection is read in
//! [turns](BulkTurns) of the network thread. The bytes of the first reads of a connection are also
//! handled in turns. A turn is requested only when there are bytes: hyper reads an idle connection
//! again whenever it is woken, and a turn wakes it.
//!
//! The scan does not track which streams are open. On a connection without streams etcd allows one
//! ping every two hours; here the interval is the same with and without streams
//! (`docs/clearlane-and-etcd.md`).

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::bulk_turn::{BulkTurn, BulkTurns};
use crate::frame_scanner::{ACK, DATA, END_STREAM, Frame, FrameScanner, HEADERS, PING, PRIORITY};
use crate::frame_scanner::{RST_STREAM, SETTINGS};
use crate::head_timer::HeadTimer;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum number of strikes that are allowed. It equals grpc-go's `maxPingStrikes`.
const PING_STRIKES_MAX: u32 = 2;
/// The GOAWAY frame that ends a connection: a frame of type 7 on stream 0, with last stream 2^31-1,
/// error code ENHANCE_YOUR_CALM, and the reason as text.
const GOAWAY_PINGS: &[u8] = b"\0\0\x16\x07\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\x0btoo_many_pings";
const GOAWAY_FRAMES: &[u8] =
    b"\0\0\x1d\x07\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\x0btoo_many_empty_frames";
/// Maximum number of empty frames between two HEADERS or DATA frames of the server. Empty frames
/// are SETTINGS frames, PRIORITY frames, and DATA frames that have no bytes and do not end a
/// stream. A client has little reason to send them, and each costs the server more work than the
/// client.
const EMPTY_FRAMES_MAX: u32 = 1000;

/// After this number of bytes the connection's task stops reading until the tasks of its streams
/// have run. h2 keeps the bytes that those tasks have not read, and ends a connection with too many
/// small unread frames.
const READ_BYTES_PER_POLL: usize = 64 << 10;
/// Number of reads of a new connection whose bytes are each handled in one turn: the preface, the
/// settings and the first request. This costs about ten microseconds for each read, and thousands
/// of clients may connect at once.
const FIRST_READS: u8 = 3;
/// Maximum number of bytes of such a read.
const FIRST_READ_BYTES: usize = 4 << 10;
/// After this number of new streams and resets, the next read waits for a turn. Each stream costs
/// about ten microseconds.
const STREAMS_PER_TURN: usize = 32;
/// Maximum number of bytes of each read after [`STREAMS_PER_TURN`] was reached, until there is
/// nothing left to read. A read of 2 KiB starts about [`STREAMS_PER_TURN`] streams.
const MANY_STREAMS_READ_BYTES: usize = 2 << 10;

#[derive(Debug)]
pub struct PingLimiter<C> {
    connection: C,
    min_interval: Duration,
    /// The rest of the preface that is still expected; `None` if this is not HTTP/2.
    preface: Option<&'static [u8]>,
    incoming: FrameScanner,
    outgoing: FrameScanner,
    last_ping: Option<Instant>,
    strikes: u32,
    empty_frames: u32,
    head_timer: HeadTimer,
    state: LimiterState,
    /// The waker of the reading task; `Some` while GOAWAY waits to be written.
    reader_waker: Option<Waker>,
    bytes_since_pending: usize,
    streams_since_pending: usize,
    first_reads_left: u8,
    /// The bytes of one of the first reads, while they wait for a turn.
    first_bytes: Vec<u8>,
    /// If true, each read takes at most [`MANY_STREAMS_READ_BYTES`] bytes.
    reads_few: bool,
    turns: BulkTurns,
    /// A requested turn, or `None` if no turn is requested. Nothing is read before the turn is
    /// granted.
    next_turn: Option<BulkTurn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimiterState {
    Open,
    /// The frame, and the number of its bytes that have been written.
    SendingGoAway(&'static [u8], usize),
    Closed,
}

impl<C> PingLimiter<C> {
    /// Creates a limiter. If `min_interval` is zero, pings are not limited. Within `head_timeout`,
    /// the preface and the first frame of HTTP/2 must arrive, and later the rest of each frame that
    /// has started, except the payload of DATA frames.
    pub fn new(
        connection: C,
        min_interval: Duration,
        head_timeout: Duration,
        turns: BulkTurns,
    ) -> PingLimiter<C> {
        PingLimiter {
            connection,
            min_interval,
            preface: Some(PREFACE),
            incoming: FrameScanner::default(),
            outgoing: FrameScanner::default(),
            last_ping: None,
            strikes: 0,
            empty_frames: 0,
            head_timer: HeadTimer::new(head_timeout),
            state: LimiterState::Open,
            reader_waker: None,
            bytes_since_pending: 0,
            streams_since_pending: 0,
            first_reads_left: FIRST_READS,
            first_bytes: Vec::new(),
            reads_few: false,
            turns,
            next_turn: None,
        }
    }

    fn on_read(&mut self, mut bytes: &[u8]) {
        let Some(preface) = self.preface else { return };
        let length = preface.len().min(bytes.len());
        if preface[..length] != bytes[..length] {
            self.preface = None;
            return;
        }
        self.preface = Some(&preface[length..]);
        bytes = &bytes[length..];
        let (mut pings, mut streams, mut empty) = (0, 0, 0);
        self.incoming.scan(bytes, |Frame { kind, flags, length }| match kind {
            PING if flags & ACK == 0 => pings += 1,
            HEADERS | RST_STREAM => streams += 1,
            SETTINGS | PRIORITY => empty += 1,
            DATA if length == 0 && flags & END_STREAM == 0 => empty += 1,
            _ => {}
        });
        self.streams_since_pending += streams;
        for _ in 0..pings {
            self.on_ping(Instant::now());
        }
        self.empty_frames += empty;
        if self.empty_frames > EMPTY_FRAMES_MAX {
            self.close(GOAWAY_FRAMES);
        }
    }

    fn close(&mut self, goaway: &'static [u8]) {
        if self.state == LimiterState::Open {
            self.state = LimiterState::SendingGoAway(goaway, 0);
        }
    }

    /// Returns true while the client must complete the preface, the first frame, a list of headers
    /// or another frame except DATA in a limited time. Returns false for HTTP/1.1, where hyper has
    /// its own limit.
    fn is_head_incomplete(&self) -> bool {
        self.preface.is_some_and(|rest| !rest.is_empty() || self.incoming.is_head_incomplete())
    }

    fn on_ping(&mut self, now: Instant) {
        let last = self.last_ping.replace(now);
        if last.is_some_and(|last| now.duration_since(last) < self.min_interval) {
            self.strikes += 1;
        }
        if self.strikes > PING_STRIKES_MAX {
            self.close(GOAWAY_PINGS);
        }
    }

    fn on_write(&mut self, bytes: &[u8]) {
        if self.preface.is_none() {
            return;
        }
        let mut has_answered = false;
        self.outgoing.scan(bytes, |frame| has_answered |= matches!(frame.kind, DATA | HEADERS));
        if has_answered {
            self.strikes = 0;
            self.empty_frames = 0;
            self.last_ping = None;
        }
    }
}

impl<C: AsyncWrite + Unpin> PingLimiter<C> {
    /// Writes the GOAWAY frame once h2's current frame is complete. Then fails with
    /// `ConnectionAborted`.
    fn poll_goaway(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let LimiterState::SendingGoAway(goaway, written) = self.state {
            if self.outgoing.bytes_to_frame_end() > 0 {
                return Poll::Pending;
            }
            let rest = &goaway[written..];
            let length = ready!(Pin::new(&mut self.connection).poll_write(context, rest))?;
            self.state = LimiterState::SendingGoAway(goaway, written + length);
            if length == 0 || length == rest.len() {
                self.state = LimiterState::Closed;
                // The shutdown still sends the written bytes. If it fails, the connection ends
                // anyway.
                let _ = Pin::new(&mut self.connection).poll_shutdown(context);
            }
        }
        self.reader_waker.take().inspect(Waker::wake_by_ref);
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "too many pings or frames",
        )))
    }
}

impl<C: AsyncRead + Unpin> PingLimiter<C> {
    /// Reads bytes into `buffer`. Returns `Pending` if nothing has arrived or if other tasks of the
    /// thread must run first. Fails with `TimedOut` if the client has not completed a head in time.
    fn poll_read_slice(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.streams_since_pending >= STREAMS_PER_TURN {
            ready!(self.poll_turn(context));
            self.start_slice();
            self.reads_few = true;
        } else if self.first_reads_left > 0 {
            return self.poll_first_read(context, buffer);
        } else if self.bytes_since_pending >= READ_BYTES_PER_POLL {
            self.start_slice();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let bytes_max = if self.reads_few { MANY_STREAMS_READ_BYTES } else { usize::MAX };
        self.poll_connection(context, buffer, bytes_max)
    }

    /// Reads bytes, and passes them on when the task has a turn.
    fn poll_first_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first_bytes.is_empty() {
            let before = buffer.filled().len();
            ready!(self.poll_connection(context, buffer, FIRST_READ_BYTES))?;
            let bytes = &buffer.filled()[before..];
            if bytes.is_empty() {
                // The client has left.
                return Poll::Ready(Ok(()));
            }
            self.first_bytes.extend_from_slice(bytes);
            buffer.set_filled(before);
        }
        ready!(self.poll_turn(context));
        let length = self.first_bytes.len().min(buffer.remaining());
        buffer.put_slice(&self.first_bytes[..length]);
        self.first_bytes.drain(..length);
        if self.first_bytes.is_empty() {
            self.first_reads_left -= 1;
            self.first_bytes = Vec::new();
        }
        Poll::Ready(Ok(()))
    }

    /// Reads at most `bytes_max` bytes.
    fn poll_connection(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        bytes_max: usize,
    ) -> Poll<io::Result<()>> {
        let connection = Pin::new(&mut self.connection);
        let read = if bytes_max < buffer.remaining() {
            let mut few = ReadBuf::new(buffer.initialize_unfilled_to(bytes_max));
            let read = connection.poll_read(context, &mut few);
            let length = few.filled().len();
            buffer.advance(length);
            read
        } else {
            connection.poll_read(context, buffer)
        };
        if read.is_pending() {
            self.start_slice();
            self.reads_few = false;
            let progress = self.is_head_incomplete().then(|| self.incoming.frames());
            if self.head_timer.poll_expired(progress, context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }

    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let turn = self.next_turn.get_or_insert_with(|| self.turns.request());
        ready!(Pin::new(turn).poll(context));
        self.next_turn = None;
        Poll::Ready(())
    }

    fn start_slice(&mut self) {
        self.bytes_since_pending = 0;
        self.streams_since_pending = 0;
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> AsyncRead for PingLimiter<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.state == LimiterState::Open {
            let before = buffer.filled().len();
            ready!(this.poll_read_slice(context, buffer))?;
            this.bytes_since_pending += buffer.filled().len() - before;
            this.on_read(&buffer.filled()[before..]);
            if this.state == LimiterState::Open {
                return Poll::Ready(Ok(()));
            }
            buffer.set_filled(before);
        }
        this.reader_waker = Some(context.waker().clone());
        this.poll_goaway(context)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for PingLimiter<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let bytes = match (this.state, this.outgoing.bytes_to_frame_end()) {
            (LimiterState::Open, _) => bytes,
            (_, 0) => return this.poll_goaway(context).map_ok(|()| 0),
            (_, rest) => &bytes[..rest.min(bytes.len())],
        };
        let written = ready!(Pin::new(&mut this.connection).poll_write(context, bytes))?;
        this.on_write(&bytes[..written]);
        if this.state != LimiterState::Open && this.outgoing.bytes_to_frame_end() == 0 {
            this.reader_waker.take().inspect(Waker::wake_by_ref);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.state != LimiterState::Open {
            let bytes = slices.iter().find(|slice| !slice.is_empty());
            return self.poll_write(context, bytes.map_or(&[], |slice| slice));
        }
        let this = &mut *self;
        let connection = Pin::new(&mut this.connection);
        let written = ready!(connection.poll_write_vectored(context, slices))?;
        let mut left = written;
        for slice in slices {
            let length = left.min(slice.len());
            this.on_write(&slice[..length]);
            left -= length;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0, 0, payload as u8, kind, flags, 0, 0, 0, 0];
        bytes.resize(9 + payload, 0xff);
        bytes
    }

    const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn limiter(runtime: &Runtime) -> PingLimiter<()> {
        let _inside = runtime.enter();
        PingLimiter::new((), Duration::from_secs(5), HEAD_TIMEOUT, BulkTurns::start())
    }

    fn open_limiter() -> PingLimiter<()> {
        let mut limiter = limiter(&runtime());
        limiter.on_read(&PREFACE[..7]);
        limiter.on_read(&PREFACE[7..]);
        limiter
    }

    #[test]
    fn the_third_strike_is_one_too_many() {
        let mut limiter = open_limiter();
        let ping = frame(PING, 0, 8);
        for _ in 0..3 {
            // A PING frame with ACK is the answer to a ping of the server, and must not be a
            // strike.
            limiter.on_read(&frame(PING, ACK, 8));
            limiter.on_read(&ping);
        }
        assert_eq!((limiter.strikes, limiter.state), (2, LimiterState::Open));
        limiter.on_write(&frame(PING, ACK, 8));
        limiter.on_read(&ping);
        assert_eq!(limiter.state, LimiterState::SendingGoAway(GOAWAY_PINGS, 0));
    }

    #[test]
    fn answers_and_pauses_are_forgiving() {
        let mut limiter = open_limiter();
        for _ in 0..10 {
            limiter.on_read(&[frame(PING, 0, 8), frame(PING, 0, 8), frame(PING, 0, 8)].concat());
            limiter.on_write(&frame(HEADERS, 0, 3));
        }
        assert_eq!(limiter.state, LimiterState::Open);
        let now = Instant::now();
        (1..10).for_each(|number| limiter.on_ping(now + 5 * number * Duration::from_secs(1)));
        assert_eq!((limiter.strikes, limiter.state), (0, LimiterState::Open));
    }

    #[test]
    fn frames_without_a_request_are_counted_until_there_is_an_answer() {
        let empty = [frame(SETTINGS, 0, 0), frame(DATA, 0, 0), frame(PRIORITY, 0, 5)].concat();
        let useful = [frame(DATA, 0, 1), frame(DATA, END_STREAM, 0), frame(HEADERS, 4, 9)].concat();
        let mut limiter = open_limiter();
        for _ in 0..10 {
            limiter.on_read(&useful.repeat(1000));
            limiter.on_read(&empty.repeat(333));
            assert_eq!(limiter.state, LimiterState::Open);
            limiter.on_write(&frame(HEADERS, 4, 3));
        }
        limiter.on_read(&empty.repeat(334));
        assert_eq!(limiter.state, LimiterState::SendingGoAway(GOAWAY_FRAMES, 0));
    }

    /// Sends the bytes `sent` as a client, and then nothing. Returns true if the server's read
    /// fails with `TimedOut`.
    fn ends_in_time(sent: &[u8]) -> bool {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let (ours, mut theirs) = tokio::io::duplex(1 << 10);
            let turns = BulkTurns::start();
            let mut limiter = PingLimiter::new(ours, Duration::ZERO, HEAD_TIMEOUT, turns);
            theirs.write_all(sent).await.unwrap();
            let mut all = Vec::new();
            let read = limiter.read_to_end(&mut all);
            match tokio::time::timeout(10 * HEAD_TIMEOUT, read).await {
                Ok(read) => read.unwrap_err().kind() == io::ErrorKind::TimedOut,
                Err(_) => false,
            }
        })
    }

    #[test]
    fn what_begins_must_end_in_time() {
        let settings = [PREFACE, &frame(SETTINGS, 0, 0)].concat();
        let then = |frame: &[u8]| [&settings, frame].concat();
        let headers = frame(HEADERS, 0, 9);
        assert!(ends_in_time(b""), "nothing");
        assert!(ends_in_time(&PREFACE[..3]), "a piece of the preface");
        assert!(ends_in_time(PREFACE), "the preface alone");
        assert!(ends_in_time(&settings[..settings.len() - 1]), "a piece of a head");
        assert!(ends_in_time(&then(&headers[..12])), "a piece of a frame");
        assert!(ends_in_time(&then(&headers)), "headers that go on");
        assert!(!ends_in_time(&settings), "an idle connection");
        assert!(!ends_in_time(&then(&frame(HEADERS, 4, 9))), "a call that is not finished");
        assert!(!ends_in_time(&then(&frame(DATA, 0, 9)[..12])), "a slow upload");
        assert!(!ends_in_time(b"GET / HT"), "hyper has a limit of its own");
    }

    #[test]
    fn what_is_not_http_2_is_let_through() {
        let mut limiter = limiter(&runtime());
        limiter.on_read(b"POST / HTTP/1.1\r\n");
        limiter.on_read(&[PREFACE, &frame(PING, 0, 8).repeat(9)].concat());
        assert_eq!(limiter.state, LimiterState::Open);
    }

    /// A client starts many streams at the same time. After the first 8 KiB, each read must have at
    /// most `MANY_STREAMS_READ_BYTES`.
    #[test]
    fn many_new_streams_are_read_in_turns() {
        let runtime = runtime();
        runtime.block_on(async {
            let streams = 1000;
            let sent = [PREFACE, &frame(HEADERS, 4, 40).repeat(streams)].concat();
            let (ours, mut theirs) = tokio::io::duplex(sent.len());
            theirs.write_all(&sent).await.unwrap();
            let turns = BulkTurns::start();
            let mut limiter = PingLimiter::new(ours, Duration::ZERO, HEAD_TIMEOUT, turns.clone());
            let (mut read, mut largest, mut buffer) = (0, 0, [0; 8 << 10]);
            while read < sent.len() {
                let length = limiter.read(&mut buffer).await.unwrap();
                read += length;
                if read > buffer.len() {
                    largest = largest.max(length);
                }
            }
            assert!(largest <= MANY_STREAMS_READ_BYTES, "{largest} bytes");
        });
    }

    /// hyper polls an idle HTTP/1.1 connection more than once when it is woken. The connection must
    /// not wake itself by that.
    #[test]
    fn an_idle_new_connection_is_not_woken() {
        for request in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", PREFACE] {
            let runtime = runtime();
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async {
                let (ours, mut theirs) = tokio::io::duplex(1 << 10);
                theirs.write_all(request).await.unwrap();
                let turns = BulkTurns::start();
                let mut limiter = PingLimiter::new(ours, Duration::ZERO, HEAD_TIMEOUT, turns);
                let seen = std::rc::Rc::new(std::cell::Cell::new((0, 0)));
                let seen_by_task = std::rc::Rc::clone(&seen);
                tokio::task::spawn_local(std::future::poll_fn(move |context| {
                    let (polls, mut read) = seen_by_task.get();
                    for _ in 0..2 {
                        let mut bytes = [0; 100];
                        let mut buffer = ReadBuf::new(&mut bytes);
                        let polled = Pin::new(&mut limiter).poll_read(context, &mut buffer);
                        assert!(!matches!(polled, Poll::Ready(Err(_))));
                        read += buffer.filled().len();
                    }
                    seen_by_task.set((polls + 1, read));
                    Poll::<()>::Pending
                }));
                for _ in 0..1000 {
                    tokio::task::yield_now().await;
                }
                let (polls, read) = seen.get();
                assert_eq!(read, request.len(), "all bytes arrive");
                assert!(polls <= 5, "{polls} polls");
            });
        }
    }

    /// The thread must check its sockets after at most two reads of new connections.
    #[test]
    fn new_connections_are_read_in_turns() {
        let runtime = runtime();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let turns = BulkTurns::start();
            let reads = std::rc::Rc::new(std::cell::Cell::new(0));
            let mut connections = Vec::new();
            for _ in 0..100 {
                let (ours, mut theirs) = tokio::io::duplex(1 << 10);
                theirs.write_all(PREFACE).await.unwrap();
                let mut limiter =
                    PingLimiter::new(ours, Duration::ZERO, HEAD_TIMEOUT, turns.clone());
                let reads = std::rc::Rc::clone(&reads);
                connections.push(theirs);
                tokio::task::spawn_local(async move {
                    let mut byte = [0; 1];
                    for _ in 0..FIRST_READS {
                        limiter.read_exact(&mut byte).await.unwrap();
                        reads.set(reads.get() + 1);
                    }
                });
            }
            let (mut before, mut largest) = (0, 0);
            while reads.get() < 100 * usize::from(FIRST_READS) {
                // The test continues after the next check of the sockets.
                tokio::task::yield_now().await;
                largest = largest.max(reads.get() - before);
                before = reads.get();
            }
            assert!(largest <= 2, "{largest} connections were read in a row");
        });
    }
}
