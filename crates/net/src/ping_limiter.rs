//! Closes the connection of a client that pings too often: gRPC's keepalive enforcement.
//!
//! A ping costs its sender nothing and must be answered. So a server sets a pause between two pings
//! (`--grpc-keepalive-min-time`). h2 answers pings itself and does not report them, so both
//! directions are scanned here: a ping too soon is a strike, an answer resets the strikes, and the
//! third strike sends `GOAWAY` with `too_many_pings`. That must not fall into the middle of a
//! frame: h2 may write up to the end of its last one.
//!
//! The scan also counts new streams: many at once are read in [turns](BulkTurns) of the thread, and
//! so is what comes first on a connection. Which streams are open is not followed: etcd allows a
//! ping in two hours on a connection without streams, and here the pause is the same with and
//! without (`docs/clearlane-and-etcd.md`).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::bulk_turn::{BulkTurn, BulkTurns};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// grpc-go's `maxPingStrikes`.
const PING_STRIKES_MAX: u32 = 2;
/// The end, in HTTP/2: a frame of 22 bytes, kind 7, of no stream; up to stream 2^31-1;
/// ENHANCE_YOUR_CALM; why.
const GOAWAY_FRAME: &[u8] = b"\0\0\x16\x07\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\x0btoo_many_pings";

/// How much the connection's task reads before the tasks of its streams run. h2 keeps what they
/// have not read yet, and ends a connection on which that is too many small frames.
const READ_BYTES_PER_POLL: usize = 64 << 10;
/// Reads of a new connection that take a turn each: the preface, the settings, and the first
/// request. Each costs some ten microseconds, and thousands of clients may come at once.
const FIRST_READS: u8 = 3;
/// New streams between two turns of the thread: each takes some ten microseconds.
const STREAMS_PER_TURN: usize = 32;
/// What is read in the turn after a read with more new streams than that: about as many.
const MANY_STREAMS_READ_BYTES: usize = 2 << 10;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PING: u8 = 6;
const ACK: u8 = 1;

#[derive(Debug)]
pub struct PingLimiter<C> {
    connection: C,
    min_interval: Duration,
    /// What is left of the preface; `None` if this is not HTTP/2.
    preface: Option<&'static [u8]>,
    incoming: FrameScanner,
    outgoing: FrameScanner,
    last_ping: Option<Instant>,
    strikes: u32,
    state: LimiterState,
    /// `Some` while only the writer can go on.
    reader_waker: Option<Waker>,
    bytes_since_pending: usize,
    streams_since_pending: usize,
    first_reads_left: u8,
    /// From a turn on until nothing is left to be read: each read is a small one.
    reads_few: bool,
    turns: BulkTurns,
    /// Nothing is read before it comes.
    next_turn: Option<BulkTurn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimiterState {
    Open,
    /// The number of bytes of the GOAWAY frame that are written.
    SendingGoAway(usize),
    Closed,
}

impl<C> PingLimiter<C> {
    /// An interval of zero does not limit pings.
    pub fn new(connection: C, min_interval: Duration, turns: BulkTurns) -> PingLimiter<C> {
        PingLimiter {
            connection,
            min_interval,
            preface: Some(PREFACE),
            incoming: FrameScanner::default(),
            outgoing: FrameScanner::default(),
            last_ping: None,
            strikes: 0,
            state: LimiterState::Open,
            reader_waker: None,
            bytes_since_pending: 0,
            streams_since_pending: 0,
            first_reads_left: FIRST_READS,
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
        let (mut pings, mut streams) = (0, 0);
        self.incoming.scan(bytes, |kind, flags| {
            pings += u32::from(kind == PING && flags & ACK == 0);
            streams += usize::from(kind == HEADERS);
        });
        self.streams_since_pending += streams;
        for _ in 0..pings {
            self.on_ping(Instant::now());
        }
    }

    fn on_ping(&mut self, now: Instant) {
        let last = self.last_ping.replace(now);
        if last.is_some_and(|last| now.duration_since(last) < self.min_interval) {
            self.strikes += 1;
        }
        if self.strikes > PING_STRIKES_MAX && self.state == LimiterState::Open {
            self.state = LimiterState::SendingGoAway(0);
        }
    }

    fn on_write(&mut self, bytes: &[u8]) {
        if self.preface.is_none() {
            return;
        }
        let mut has_answered = false;
        self.outgoing.scan(bytes, |kind, _| has_answered |= kind == DATA || kind == HEADERS);
        if has_answered {
            self.strikes = 0;
            self.last_ping = None;
        }
    }
}

impl<C: AsyncWrite + Unpin> PingLimiter<C> {
    /// Writes the GOAWAY frame once h2's last frame is complete.
    fn poll_goaway(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let LimiterState::SendingGoAway(written) = self.state {
            if self.outgoing.bytes_to_frame_end() > 0 {
                return Poll::Pending;
            }
            let rest = &GOAWAY_FRAME[written..];
            let length = ready!(Pin::new(&mut self.connection).poll_write(context, rest))?;
            self.state = LimiterState::SendingGoAway(written + length);
            if length == 0 || length == rest.len() {
                self.state = LimiterState::Closed;
                // What has been written goes out first; whether it did need not be reported.
                let _ = Pin::new(&mut self.connection).poll_shutdown(context);
            }
        }
        self.reader_waker.take().inspect(Waker::wake_by_ref);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "too_many_pings")))
    }
}

impl<C: AsyncRead + Unpin> PingLimiter<C> {
    /// Reads what may be read before other tasks of the thread run.
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
            ready!(self.poll_turn(context));
        } else if self.bytes_since_pending >= READ_BYTES_PER_POLL {
            self.start_slice();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let connection = Pin::new(&mut self.connection);
        let read = if self.reads_few {
            let length = buffer.remaining().min(MANY_STREAMS_READ_BYTES);
            let mut few = ReadBuf::new(buffer.initialize_unfilled_to(length));
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
        } else {
            self.first_reads_left = self.first_reads_left.saturating_sub(1);
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

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[derive(Debug, Default)]
struct FrameScanner {
    head: [u8; 9],
    head_len: usize,
    payload_left: usize,
}

impl FrameScanner {
    fn scan(&mut self, mut bytes: &[u8], mut found: impl FnMut(u8, u8)) {
        loop {
            let payload = self.payload_left.min(bytes.len());
            self.payload_left -= payload;
            bytes = &bytes[payload..];
            if bytes.is_empty() {
                return;
            }
            let head = bytes.len().min(self.head.len() - self.head_len);
            self.head[self.head_len..self.head_len + head].copy_from_slice(&bytes[..head]);
            self.head_len += head;
            bytes = &bytes[head..];
            if self.head_len == self.head.len() {
                let [a, b, c, kind, flags, ..] = self.head;
                self.head_len = 0;
                self.payload_left = u32::from_be_bytes([0, a, b, c]) as usize;
                found(kind, flags);
            }
        }
    }

    /// A lower bound of the bytes before another frame may begin.
    fn bytes_to_frame_end(&self) -> usize {
        match self.head_len {
            0 => self.payload_left,
            has => self.head.len() - has,
        }
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

    #[test]
    fn frames_are_found_wherever_they_are_cut() {
        let bytes = [frame(PING, 0, 8), frame(DATA, 1, 0), frame(HEADERS, 4, 200)].concat();
        for piece in 1..bytes.len() {
            let (mut frames, mut found) = (FrameScanner::default(), Vec::new());
            for part in bytes.chunks(piece) {
                frames.scan(part, |kind, flags| found.push((kind, flags)));
            }
            assert_eq!(found, [(PING, 0), (DATA, 1), (HEADERS, 4)], "in pieces of {piece}");
            assert_eq!(frames.bytes_to_frame_end(), 0);
        }
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn limiter(runtime: &Runtime) -> PingLimiter<()> {
        let _inside = runtime.enter();
        PingLimiter::new((), Duration::from_secs(5), BulkTurns::start())
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
            // An answer to a ping of ours is none.
            limiter.on_read(&frame(PING, ACK, 8));
            limiter.on_read(&ping);
        }
        assert_eq!((limiter.strikes, limiter.state), (2, LimiterState::Open));
        limiter.on_write(&frame(PING, ACK, 8));
        limiter.on_read(&ping);
        assert_eq!(limiter.state, LimiterState::SendingGoAway(0));
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
    fn what_is_not_http_2_is_let_through() {
        let mut limiter = limiter(&runtime());
        limiter.on_read(b"POST / HTTP/1.1\r\n");
        limiter.on_read(&[PREFACE, &frame(PING, 0, 8).repeat(9)].concat());
        assert_eq!(limiter.state, LimiterState::Open);
    }

    /// Another task runs after each batch of them.
    #[test]
    fn many_new_streams_are_read_in_turns() {
        let runtime = runtime();
        runtime.block_on(async {
            let streams = 1000;
            let sent = [PREFACE, &frame(HEADERS, 4, 40).repeat(streams)].concat();
            let (ours, mut theirs) = tokio::io::duplex(sent.len());
            theirs.write_all(&sent).await.unwrap();
            let turns = BulkTurns::start();
            let mut limiter = PingLimiter::new(ours, Duration::ZERO, turns.clone());
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

    /// Between two of them the thread looks at its sockets.
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
                let mut limiter = PingLimiter::new(ours, Duration::ZERO, turns.clone());
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
                // It goes on behind the next look at the sockets.
                tokio::task::yield_now().await;
                largest = largest.max(reads.get() - before);
                before = reads.get();
            }
            assert!(largest <= 2, "{largest} connections were read in a row");
        });
    }
}
