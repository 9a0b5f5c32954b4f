//! Hostile clients that run while another process measures the latency of normal clients.
//! `benches/storms` uses it, and `docs/load.md` describes it.
//!
//! Each kind is meant to cost the client less than the server. One thread sends everything. The
//! number of attempts in progress is limited. At the limit, a new attempt starts when an earlier
//! attempt has ended. If a rate is set, a new attempt also waits until it is due.

mod kind;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use clap::builder::TypedValueParser as _;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

pub use self::kind::StormKind;
use crate::named::Named;
use crate::tls::TlsFiles;
use crate::within::within;
use crate::{Error, Result};

/// Maximum number of attempts in progress.
const ATTEMPTS_MAX: usize = 128;
/// Number of connections that the storm `slow-loris` holds open.
const SLOW_CONNECTIONS: usize = 2000;
const SLOW_BYTE_INTERVAL: Duration = Duration::from_secs(1);
const GARBAGE_BYTES: usize = 1024;
/// Maximum time for each step of an attempt. If the server has not answered by then, the attempt
/// ends.
const PATIENCE: Duration = Duration::from_secs(5);
/// The start of an HTTP/2 connection, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Number of frames in one write.
const FRAMES: usize = 500;
/// Maximum number of writes in one attempt.
const WRITES_MAX: u32 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct StormOptions {
    /// The server's address; its port has TLS or not, as the list of storms shows for each kind
    #[arg(long, value_name = "IP:PORT")]
    pub address: SocketAddr,
    /// Duration of the attempts, in seconds
    #[arg(long = "seconds", value_name = "N", default_value = "10")]
    #[arg(value_parser = within(1..=86_400).map(Duration::from_secs))]
    pub window: Duration,
    /// Attempts a second (0: a new attempt as soon as an earlier one has ended)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = within(0..=1_000_000))]
    pub rate: u64,
    /// Seed of the random bytes of the storm garbage
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// The kind of a storm, the server's address, and the prepared bytes. All attempts share them.
#[derive(Clone, Debug)]
struct StormPlan {
    kind: StormKind,
    address: SocketAddr,
    bytes: Bytes,
}

/// The number of attempts, and the number of failed attempts.
type StormCounters = Arc<[AtomicU64; 2]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StormReport {
    pub kind: StormKind,
    pub attempts: u64,
    /// Attempts that could not open a connection.
    pub failed: u64,
    pub elapsed: Duration,
}

impl StormReport {
    pub fn line(&self) -> String {
        let rate = self.attempts as f64 / self.elapsed.as_secs_f64();
        let StormReport { kind, attempts, failed, .. } = self;
        format!("{}: {attempts} attempts, {rate:.0} a second, {failed} failed", kind.name())
    }
}

pub async fn run(kind: StormKind, options: StormOptions) -> Result<StormReport> {
    let start = Instant::now();
    let plan = StormPlan { kind, address: options.address, bytes: bytes_of(kind, options.seed)? };
    let counters = StormCounters::default();
    // Attempts that are still in progress at the end of the window are dropped.
    let _ = timeout(options.window, send(plan, options.rate, &counters)).await;
    let [attempts, failed] = counters.each_ref().map(|count| count.load(Ordering::Relaxed));
    Ok(StormReport { kind, attempts, failed, elapsed: start.elapsed() })
}

/// Starts attempts forever. The caller drops this future.
async fn send(plan: StormPlan, rate: u64, counters: &StormCounters) {
    let most = if plan.kind == StormKind::SlowLoris { SLOW_CONNECTIONS } else { ATTEMPTS_MAX };
    let mut due = (rate > 0).then(|| interval(Duration::from_secs(1) / rate as u32));
    if let Some(due) = &mut due {
        due.set_missed_tick_behavior(MissedTickBehavior::Skip);
    }
    let mut under_way = JoinSet::new();
    loop {
        if let Some(due) = &mut due {
            due.tick().await;
        }
        if under_way.len() >= most {
            under_way.join_next().await;
        }
        let (plan, counters) = (plan.clone(), Arc::clone(counters));
        under_way.spawn(async move {
            let [attempts, failed] = &*counters;
            attempts.fetch_add(1, Ordering::Relaxed);
            if attempt(&plan).await.is_err() {
                failed.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(10)).await;
            }
        });
    }
}

/// Makes one attempt. Fails only if it cannot open a connection. Any later reaction of the server
/// is ignored.
async fn attempt(plan: &StormPlan) -> io::Result<()> {
    let mut stream = timeout(PATIENCE, TcpStream::connect(plan.address)).await??;
    stream.set_nodelay(true)?;
    let _ = match plan.kind {
        StormKind::SlowLoris => write_slowly(&mut stream, &plan.bytes).await,
        StormKind::Garbage | StormKind::Handshakes => say_and_hear(&mut stream, &plan.bytes).await,
        StormKind::Resets | StormKind::Settings | StormKind::EmptyData => {
            flood(&mut stream, plan).await
        }
    };
    Ok(())
}

/// Sends one byte per second, until all bytes are sent, or the server has answered or closed the
/// connection.
async fn write_slowly(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    for byte in bytes {
        stream.write_all(&[*byte]).await?;
        if let Ok(read) = timeout(SLOW_BYTE_INTERVAL, stream.read_u8()).await {
            return read.map(drop);
        }
    }
    Ok(())
}

/// Sends the bytes, and waits for the first bytes of an answer. These bytes show that the server
/// has done its part of a handshake.
async fn say_and_hear(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    let mut answer = [0; 256];
    timeout(PATIENCE, stream.read(&mut answer)).await??;
    Ok(())
}

async fn flood(stream: &mut TcpStream, plan: &StormPlan) -> io::Result<()> {
    stream.write_all(PREFACE).await?;
    let mut answer = [0; 16 << 10];
    for number in 0..WRITES_MAX {
        let frames = match plan.kind {
            StormKind::Resets => kind::resets(number * FRAMES as u32, FRAMES as u32),
            // The first write opens the stream of the empty data frames.
            StormKind::EmptyData if number == 0 => kind::open_stream(),
            _ => plan.bytes.clone(),
        };
        timeout(PATIENCE, stream.write_all(&frames)).await??;
        // Reads without waiting, so that the connection does not block. The server's answers are
        // ignored.
        while let Ok(read) = stream.try_read(&mut answer) {
            if read == 0 {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn bytes_of(kind: StormKind, seed: u64) -> Result<Bytes> {
    match kind {
        StormKind::SlowLoris | StormKind::Handshakes => client_hello(),
        StormKind::Garbage => {
            let mut random = SmallRng::seed_from_u64(seed);
            Ok((0..GARBAGE_BYTES).map(|_| random.random::<u8>()).collect())
        }
        StormKind::Resets => Ok(Bytes::new()),
        StormKind::Settings => Ok(kind::SETTINGS.repeat(FRAMES).into()),
        StormKind::EmptyData => Ok(kind::EMPTY_DATA.repeat(FRAMES).into()),
    }
}

/// Returns a TLS client hello. All attempts send the same bytes, so the client computes nothing. To
/// the server, each attempt is the start of a new handshake.
fn client_hello() -> Result<Bytes> {
    let name = ServerName::try_from("localhost").expect("a name of a host");
    let client = ClientConnection::new(TlsFiles::default().of_connections()?, name);
    let mut hello = Vec::new();
    let written =
        client.map_err(io::Error::other).and_then(|mut client| client.write_tls(&mut hello));
    written.map_err(|error| Error::Local(format!("cannot create a TLS handshake: {error}")))?;
    Ok(hello.into())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use tokio::sync::mpsc;

    use super::*;

    /// Runs a storm against a server that reads and does not answer. Returns the report, and the
    /// first bytes that one of the connections has sent, up to 24.
    fn run_against_listener(kind: StormKind) -> (StormReport, Vec<u8>) {
        let (sender, mut first) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(async move {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    let sender = sender.clone();
                    tokio::spawn(async move {
                        let mut bytes = vec![0; 24];
                        let read = stream.read(&mut bytes).await.unwrap_or(0);
                        bytes.truncate(read);
                        if read > 0 {
                            let _ = sender.send(bytes);
                        }
                        let _ = stream.read(&mut [0; 4096]).await;
                    });
                }
            });
            let (window, rate) = (Duration::from_millis(300), 0);
            let options = StormOptions { address, window, rate, seed: 1 };
            // On a busy machine no bytes may have arrived yet, so the storm is repeated.
            for _ in 0..20 {
                let report = run(kind, options).await.unwrap();
                if let Ok(first) = timeout(window, first.recv()).await {
                    return (report, first.unwrap());
                }
            }
            panic!("{kind:?} has said nothing");
        })
    }

    #[test]
    fn each_kind_connects_and_says_what_it_should() {
        for kind in StormKind::value_variants() {
            let (report, first) = run_against_listener(*kind);
            assert!(report.attempts > 0, "{report:?}");
            match kind {
                StormKind::SlowLoris => assert_eq!(first, [0x16]),
                StormKind::Handshakes => assert_eq!(first[0], 0x16),
                StormKind::Garbage => assert_eq!(first.len(), 24),
                _ => assert_eq!(first, PREFACE[..24]),
            }
        }
    }
}
