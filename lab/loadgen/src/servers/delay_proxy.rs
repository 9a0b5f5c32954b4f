//! A TCP proxy that delays each direction by a fixed time, like a long network path.
//!
//! ```text
//!   reader ── a piece, and when it is due ──▶ queue ──▶ writer sleeps until then, and writes
//! ```
//!
//! The proxy keeps the order of bytes and the throughput, because pieces in flight do not wait for
//! each other. It uses threads instead of tasks: the timers of a runtime are exact only to a
//! millisecond, while a sleeping thread wakes within about 60 µs. [`DelayProxy::measure`] returns
//! the real time of a round trip.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clearlane_net::sched::SchedClass;
use parking_lot::Mutex;

use crate::{Error, Result};

const PIECE_BYTES: usize = 64 << 10;
/// Maximum number of pieces in flight in one direction of a connection: 64 MiB. At this limit the
/// reader waits for the writer.
const PIECES_ON_THE_WAY_MAX: usize = 1024;
const MEASURED_ROUND_TRIPS: usize = 31;

/// A running proxy. It ends when this value is dropped.
#[derive(Debug)]
pub struct DelayProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    /// The delay of one direction.
    delay: Duration,
    /// Both sockets of each open connection, so that another thread can end it. `None` once the
    /// proxy ends.
    open: Mutex<Option<HashMap<u64, [TcpStream; 2]>>>,
}

struct Piece {
    due: Instant,
    bytes: Vec<u8>,
}

impl DelayProxy {
    /// Starts a proxy that listens on a free port of 127.0.0.1 and forwards to `target`.
    pub fn start(target: SocketAddr, delay: Duration) -> Result<DelayProxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(none)?;
        let address = listener.local_addr().map_err(none)?;
        let open = Mutex::new(Some(HashMap::new()));
        let shared = Arc::new(Shared { target, delay, open });
        let of_acceptor = Arc::clone(&shared);
        let acceptor = thread::Builder::new().name("proxy".to_owned());
        let acceptor = acceptor.spawn(move || accept_all(&listener, &of_acceptor)).map_err(none)?;
        Ok(DelayProxy { address, shared, acceptor: Some(acceptor) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the median time of several round trips of one byte through a proxy with this round
    /// trip. Blocks the thread.
    pub fn measure(round_trip: Duration) -> Result<Duration> {
        let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(none)?;
        let proxy = DelayProxy::start(echo.local_addr().map_err(none)?, round_trip / 2)?;
        let mut near = TcpStream::connect(proxy.address()).map_err(none)?;
        let (mut far, _) = echo.accept().map_err(none)?;
        near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).map_err(none)?;
        let answering = thread::spawn(move || {
            let mut byte = [0];
            while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
        });
        let mut times = Vec::new();
        for _ in 0..MEASURED_ROUND_TRIPS {
            let begin = Instant::now();
            near.write_all(&[1]).and_then(|()| near.read_exact(&mut [0])).map_err(none)?;
            times.push(begin.elapsed());
        }
        drop((near, proxy));
        answering
            .join()
            .map_err(|_| Error::Local("the echo thread of the proxy failed".to_owned()))?;
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        let open = self.shared.open.lock().take();
        // This connection wakes the accepting thread.
        drop(TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for socket in open.iter().flat_map(HashMap::values).flatten() {
            // Shutting down a closed socket fails, which does not matter.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

fn none(error: io::Error) -> Error {
    Error::Local(format!("the delaying proxy: {error}"))
}

fn accept_all(listener: &TcpListener, shared: &Arc<Shared>) {
    for (number, near) in (0..).zip(listener.incoming()) {
        if shared.open.lock().is_none() {
            return;
        }
        let Ok(near) = near else { continue };
        let shared = Arc::clone(shared);
        // If no thread can be started, the connection is closed.
        let thread = thread::Builder::new().name("proxied".to_owned());
        let _ = thread.spawn(move || _ = pass_on(near, number, &shared));
    }
}

/// Forwards bytes in both directions until both directions have ended. If the target does not
/// accept a connection, the client's connection is closed.
fn pass_on(near: TcpStream, number: u64, shared: &Shared) -> io::Result<()> {
    let far = TcpStream::connect(shared.target)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let sockets = [near.try_clone()?, far.try_clone()?];
    match &mut *shared.open.lock() {
        Some(open) => open.insert(number, sockets),
        None => return Ok(()),
    };
    thread::scope(|scope| {
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (pieces, on_the_way) = mpsc::sync_channel(PIECES_ON_THE_WAY_MAX);
            scope.spawn(move || read_pieces(from, &pieces, shared.delay));
            scope.spawn(move || write_pieces(to, &on_the_way));
        }
    });
    if let Some(open) = &mut *shared.open.lock() {
        open.remove(&number);
    }
    Ok(())
}

fn read_pieces(mut from: &TcpStream, pieces: &SyncSender<Piece>, delay: Duration) {
    SchedClass::Latency.apply_to_thread();
    let mut buffer = vec![0; PIECE_BYTES];
    // The end of a direction is delayed like a piece: the queue closes, and the writer notices it
    // after the last piece.
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let piece = Piece { due: Instant::now() + delay, bytes: buffer[..length].to_vec() };
        if pieces.send(piece).is_err() {
            return;
        }
    }
}

fn write_pieces(mut to: &TcpStream, pieces: &Receiver<Piece>) {
    SchedClass::Latency.apply_to_thread();
    for Piece { due, bytes } in pieces {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            // The sender must also notice that the connection is broken. Shutting down both
            // directions also ends the reader of this socket.
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the received bytes, and when the first byte and the end have arrived.
    fn received_by(listener: TcpListener) -> JoinHandle<(Vec<u8>, Instant, Instant)> {
        thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("the proxy connects");
            let mut first = [0];
            socket.read_exact(&mut first).expect("there is a byte");
            let begin = Instant::now();
            let mut all = first.to_vec();
            socket.read_to_end(&mut all).expect("it ends");
            (all, begin, Instant::now())
        })
    }

    #[test]
    fn bytes_keep_their_order_and_come_so_much_later() {
        const DELAY: Duration = Duration::from_millis(100);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let target = listener.local_addr().expect("it has one");
        let proxy = DelayProxy::start(target, DELAY).expect("it starts");
        let receiving = received_by(listener);
        let mut socket = TcpStream::connect(proxy.address()).expect("it listens");
        let sent = (0..8_000_000_u32).map(|number| (number / 7) as u8).collect::<Vec<_>>();
        let begin = Instant::now();
        socket.write_all(&sent).expect("the proxy reads");
        drop(socket);
        let (received, first, end) = receiving.join().expect("it receives");
        assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
        assert!(first - begin >= DELAY, "{:?}", first - begin);
        // There are at least 123 pieces. If each piece waited for the previous one, the transfer
        // would take 12 s.
        assert!(end - begin < DELAY * 100, "{:?}", end - begin);
    }

    #[test]
    fn a_round_trip_takes_both_delays() {
        let round_trip = Duration::from_millis(20);
        let measured = DelayProxy::measure(round_trip).expect("there are sockets");
        assert!(measured >= round_trip, "{measured:?}");
    }

    #[test]
    fn a_connection_ends_with_the_proxy_and_without_a_target() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let target = listener.local_addr().expect("it has one");
        let proxy = DelayProxy::start(target, Duration::ZERO).expect("it starts");
        let mut near = TcpStream::connect(proxy.address()).expect("it listens");
        let (mut far, _) = listener.accept().expect("the proxy connects");
        near.write_all(b"x").expect("the proxy reads");
        far.read_exact(&mut [0]).expect("it is passed on");
        drop(listener);
        let mut other = TcpStream::connect(proxy.address()).expect("it listens");
        assert!(matches!(other.read(&mut [0]), Ok(0) | Err(_)));
        drop(proxy);
        for socket in [&mut near, &mut far] {
            assert!(matches!(socket.read(&mut [0]), Ok(0) | Err(_)));
        }
    }
}
