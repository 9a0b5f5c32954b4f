//! The pages under `/debug/pprof/`: where the process spends its time, and which code holds its
//! memory.
//!
//! ```text
//!   go tool pprof http://localhost:2379/debug/pprof/profile?seconds=10
//!   go tool pprof http://localhost:2379/debug/pprof/heap
//! ```
//!
//! `--enable-pprof` switches the pages on. A CPU profile has a cost only while it is recorded, and
//! exists on Linux only. For the heap profile, the [allocator](crate::allocator) samples
//! allocations after `start` is called, which happens once the flags have been read.

#[cfg(target_os = "linux")]
mod cpu;
mod format;
pub(crate) mod heap;
mod stack;

use std::time::Duration;

use clearlane_rpc::http::{DebugPage, DebugPages};
use http::StatusCode;

const DEFAULT_SECONDS: u64 = 30;
const SECONDS_MAX: u64 = 3600;
const INDEX: &str = "/debug/pprof/\n\n\
    profile   processor time by stack; ?seconds=30 is the default\n\
    heap      memory in use by stack, sampled every 512 KiB\n\
    allocs    the same samples; pprof shows all allocations since the start first\n\
    cmdline   the program, without its arguments, which may contain a password\n\n\
    There are no pages goroutine, threadcreate, block, mutex and trace. For waiting threads and\n\
    locks, see the flag --timeline.\n";

/// Starts to sample allocations, and returns the pages. Must be called only once.
pub(crate) fn start() -> DebugPages {
    heap::start();
    DebugPages::new(|path, query| Box::pin(page(path, query)))
}

async fn page(path: String, query: String) -> DebugPage {
    match path.as_str() {
        "" => DebugPage::text(INDEX),
        "cmdline" => DebugPage::text(std::env::args().next().unwrap_or_default()),
        "profile" => match seconds(&query) {
            Ok(time) => cpu_profile(time).await,
            Err(error) => DebugPage::error(StatusCode::BAD_REQUEST, error),
        },
        "heap" | "allocs" if asks_for_text(&query) => DebugPage::error(
            StatusCode::BAD_REQUEST,
            "debug: there is no text form of this profile; use go tool pprof -text".to_owned(),
        ),
        "heap" => encode(|| heap::profile("inuse_space")).await,
        "allocs" => encode(|| heap::profile("alloc_space")).await,
        _ => DebugPage::error(StatusCode::NOT_FOUND, format!("Unknown profile\n\n{INDEX}")),
    }
}

fn value_of<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query
        .split('&')
        .filter_map(|part| part.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

fn asks_for_text(query: &str) -> bool {
    value_of(query, "debug").is_some_and(|level| level != "0")
}

fn seconds(query: &str) -> Result<Duration, String> {
    let Some(text) = value_of(query, "seconds") else {
        return Ok(Duration::from_secs(DEFAULT_SECONDS));
    };
    match text.parse() {
        Ok(seconds @ 1..=SECONDS_MAX) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("seconds must be a number from 1 to {SECONDS_MAX} (is {text:?})")),
    }
}

#[cfg(target_os = "linux")]
async fn cpu_profile(time: Duration) -> DebugPage {
    let begun = std::time::SystemTime::now();
    match cpu::record(time).await {
        Ok(samples) => encode(move || cpu::profile(samples, begun, time)).await,
        Err(error) => DebugPage::error(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

#[cfg(not(target_os = "linux"))]
async fn cpu_profile(_time: Duration) -> DebugPage {
    let error = "processor time can be recorded on Linux only".to_owned();
    DebugPage::error(StatusCode::NOT_IMPLEMENTED, error)
}

/// Encodes a profile on a separate thread, because reading the program's symbols takes long.
async fn encode(profile: impl FnOnce() -> format::Profile + Send + 'static) -> DebugPage {
    match tokio::task::spawn_blocking(move || profile().to_gzip()).await {
        Ok(bytes) => DebugPage::bytes(bytes),
        Err(error) => DebugPage::error(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
