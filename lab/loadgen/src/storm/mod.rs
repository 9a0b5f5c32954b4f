//! Clients that mean no good, while another process measures what the others feel:
//! `benches/storms`, and `docs/load.md`.
//!
//! Each costs the client less than the server, or is meant to. One thread sends all. An attempt
//! begins when one of some number has ended, or at its time if there is a rate.

mod kind;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

pub use self::kind::StormKind;
use crate::{Error, Result};

/// Attempts at a time.
const ATTEMPTS_MAX: usize = 128;
/// Held open by the storm `slow-loris`.
const SLOW_CONNECTIONS: usize = 2000;
const SLOW_BYTE_INTERVAL: Duration = Duration::from_secs(1);
const GARBAGE_BYTES: usize = 1024;
/// An attempt ends without an answer, too.
const PATIENCE: Duration = Duration::from_secs(5);
/// How an HTTP/2 connection begins, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// In one write.
const FRAMES: usize = 500;
/// In one attempt.
const WRITES_MAX: u32 = 100;

#[derive(Clone, Copy, Debug)]
pub struct StormOptions {
    pub address: SocketAddr,
    pub window: Duration,
    /// Attempts a second; 0 as fast as they end.
    pub rate: u64,
    pub seed: u64,
}

/// What is sent, the same for all attempts.
#[derive(Clone, Debug)]
struct StormPlan {
    kind: StormKind,
    address: SocketAddr,
    bytes: Bytes,
}

#[derive(Debug, Default)]
struct StormCounters {
    attempts: AtomicU64,
    failed: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StormReport {
    pub kind: StormKind,
    pub attempts: u64,
    /// No connection came about.
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
    let counters = Arc::new(StormCounters::default());
    let attempts = send(plan, options.rate, Arc::clone(&counters));
    // What is under way is cut off.
    let _ = timeout(options.window, attempts).await;
    Ok(StormReport {
        kind,
        attempts: counters.attempts.load(Ordering::Relaxed),
        failed: counters.failed.load(Ordering::Relaxed),
        elapsed: start.elapsed(),
    })
}

/// Does not return.
async fn send(plan: StormPlan, rate: u64, counters: Arc<StormCounters>) {
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
        let (plan, counters) = (plan.clone(), Arc::clone(&counters));
        under_way.spawn(async move {
            counters.attempts.fetch_add(1, Ordering::Relaxed);
            if attempt(&plan).await.is_err() {
                counters.failed.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(10)).await;
            }
        });
    }
}

/// An error if there is no connection. What the server does with it is its own business.
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

/// Until the server has closed the connection.
async fn write_slowly(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    for byte in bytes {
        stream.write_all(&[*byte]).await?;
        if let Ok(read) = timeout(SLOW_BYTE_INTERVAL, stream.read_u8()).await {
            return read.map(drop);
        }
    }
    Ok(())
}

/// Until the first bytes of an answer: then the server has done its part of a handshake.
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
            // The stream that they belong to.
            StormKind::EmptyData if number == 0 => kind::open_stream(),
            _ => plan.bytes.clone(),
        };
        timeout(PATIENCE, stream.write_all(&frames)).await??;
        // Not to block: what the server says is not awaited.
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
        StormKind::Settings => Ok(kind::settings().repeat(FRAMES).into()),
        StormKind::EmptyData => Ok(kind::empty_data().repeat(FRAMES).into()),
    }
}

/// Made once and sent again and again: the server cannot know, and the client computes nothing.
fn client_hello() -> Result<Bytes> {
    let error = |error: rustls::Error| Error::Local(format!("no TLS: {error}"));
    let roots = RootCertStore::empty();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("localhost").expect("a name of a host");
    let mut client = ClientConnection::new(Arc::new(config), name).map_err(error)?;
    let mut hello = Vec::new();
    client.write_tls(&mut hello).map_err(|error| Error::Local(format!("no TLS: {error}")))?;
    Ok(hello.into())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use tokio::sync::mpsc;

    use super::*;

    /// A server that reads all, and says how each connection began, unless it was cut off before.
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
            // The listener may not have read yet, and on a busy machine nothing may have come.
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
