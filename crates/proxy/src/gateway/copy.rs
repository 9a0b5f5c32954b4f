//! Forwards the bytes of one connection in both directions.
//!
//! ```text
//!   client ── reads ─▶ one buffer ── writes ─▶ endpoint
//!          ◀─ writes ── one buffer ◀─ reads ──
//! ```
//!
//! Each half ends for itself. The end of a half is forwarded, and the other half continues until
//! it also ends. A failure of one half is treated as its end. So the late answer of an endpoint
//! arrives even if the endpoint no longer takes the client's data. (tokio's `copy_bidirectional`
//! ends both halves at the first failure.)
//!
//! Data that the receiver does not take is read and discarded. Otherwise closing the sender's
//! connection would reset it, and the sender would lose the end of the other half.
//!
//! A half has a buffer only while it forwards data. It reads again when the receiver has taken the
//! whole buffer.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;

use super::metrics::Metrics;

const BUFFER_BYTES: usize = 64 << 10;
/// After both halves have ended, data is discarded for at most this time.
const LINGER_TIME: Duration = Duration::from_secs(5);
/// The system checks whether the other end still exists after this idle time, as in Go.
const KEEP_ALIVE_TIME: Duration = Duration::from_secs(15);

/// Sends small messages at once, and detects that the other end has vanished.
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keep_alive = TcpKeepalive::new().with_time(KEEP_ALIVE_TIME).with_interval(KEEP_ALIVE_TIME);
    SockRef::from(stream).set_tcp_keepalive(&keep_alive)
}

/// Forwards until both halves have ended. After the end of one half, the connection also ends if
/// no data arrives for `half_closed_idle_max`.
pub(super) async fn both_ways(
    mut client: TcpStream,
    mut server: TcpStream,
    metrics: &Metrics,
    half_closed_idle_max: Duration,
) {
    let (client_reads, client_writes) = client.split();
    let (server_reads, server_writes) = server.split();
    let (bytes, ended) = (AtomicU64::new(0), watch::channel(0).0);
    let half = |total| Half { bytes: &bytes, total, ended: &ended };
    let to_endpoint = half(&metrics.bytes_to_endpoints);
    let to_client = half(&metrics.bytes_to_clients);
    let both = async {
        tokio::join!(
            to_endpoint.run(client_reads, server_writes),
            to_client.run(server_reads, client_writes),
        )
    };
    let is_idle = async {
        until_ended(&ended, 1).await;
        let mut before = None;
        while before != Some(bytes.load(Ordering::Relaxed)) {
            before = Some(bytes.load(Ordering::Relaxed));
            tokio::time::sleep(half_closed_idle_max).await;
        }
    };
    tokio::select! {
        _ = both => {}
        () = is_idle => {}
    }
}

async fn until_ended(ended: &watch::Sender<u8>, halves: u8) {
    // The sender exists, so waiting does not fail.
    let _ = ended.subscribe().wait_for(|ended| *ended >= halves).await;
}

struct Half<'a> {
    /// Number of bytes that this connection has forwarded in both directions.
    bytes: &'a AtomicU64,
    /// Number of bytes that all connections have forwarded in this direction.
    total: &'a AtomicU64,
    /// Number of halves of this connection that have ended.
    ended: &'a watch::Sender<u8>,
}

impl Half<'_> {
    async fn run(&self, from: ReadHalf<'_>, mut to: WriteHalf<'_>) {
        let forwarded = self.forward(&from, &mut to).await;
        // If `to` is closed already, it needs no end.
        let _ = to.shutdown().await;
        self.ended.send_modify(|ended| *ended += 1);
        if forwarded.is_err() {
            let lingered = async {
                until_ended(self.ended, 2).await;
                tokio::time::sleep(LINGER_TIME).await;
            };
            tokio::select! {
                _ = discard(&from) => {}
                () = lingered => {}
            }
        }
    }

    /// Forwards until `from` ends, or until reading or writing fails.
    async fn forward(&self, from: &ReadHalf<'_>, to: &mut WriteHalf<'_>) -> io::Result<()> {
        loop {
            from.readable().await?;
            let mut buffer = Vec::with_capacity(BUFFER_BYTES);
            loop {
                buffer.clear();
                match from.try_read_buf(&mut buffer) {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
                to.write_all(&buffer).await?;
                let length = buffer.len() as u64;
                self.bytes.fetch_add(length, Ordering::Relaxed);
                self.total.fetch_add(length, Ordering::Relaxed);
            }
        }
    }
}

/// Reads until `from` ends or fails.
async fn discard(from: &ReadHalf<'_>) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        from.readable().await?;
        buffer.clear();
        buffer.reserve(BUFFER_BYTES);
        match from.try_read_buf(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
