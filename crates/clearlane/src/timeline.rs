//! The file of `--timeline`: which thread of this process waited for which other thread.
//! `clearlane-sim show` displays it.
//!
//! ```text
//!   start ─ recording ─ SIGUSR1 ─ file ─ not recording ─ SIGUSR1 ─ recording ─ SIGTERM ─ file
//! ```
//!
//! [`TraceRecorder`](clearlane_server::observe::trace::TraceRecorder) records events in memory and
//! keeps the newest events. This module gathers the events every 20 ms, and writes them to the file
//! when the recording ends. An existing file is replaced by a rename, so a reader never finds an
//! incomplete file.
//!
//! The recording is controlled by a signal, because a user who can send signals to the process can
//! also stop it. An HTTP endpoint would need protection, because a request to it would make the
//! server write a file.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::Era;
use clearlane_contention::timeline::TimelineHeader;
use clearlane_server::threads::ServerThreads;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::interval;

/// Maximum number of recorded events: requests, steps of workers, waits for locks, and periods in
/// which locks are held. The events take about 30 MB.
pub const TRACE_EVENTS_MAX: usize = 200_000;

const GATHER_INTERVAL: Duration = Duration::from_millis(20);

/// Creates `file` if it does not exist. Fails if `file` cannot be written. The caller makes this
/// check before the member starts.
pub fn check_writable(file: &Path) -> io::Result<()> {
    let opened = OpenOptions::new().append(true).create(true).open(file);
    opened.map(drop).map_err(|error| {
        io::Error::new(error.kind(), format!("--timeline {}: {error}", file.display()))
    })
}

/// Starts and ends recordings on SIGUSR1. Returns only if the signal cannot be handled.
pub async fn record_on_signal(
    node: &Arc<ServerThreads>,
    era: Era,
    file: Option<&Path>,
) -> io::Error {
    let mut toggle = match signal(SignalKind::user_defined1()) {
        Ok(toggle) => toggle,
        Err(error) => return error,
    };
    let Some(file) = file else {
        // The signal is handled, because by default it would end the process.
        loop {
            toggle.recv().await;
            tracing::warn!("received SIGUSR1; without --timeline there is nothing to record");
        }
    };
    let mut due = interval(GATHER_INTERVAL);
    loop {
        tokio::select! {
            _ = due.tick() => node.trace().collect(),
            _ = toggle.recv() => match node.trace().is_on() {
                true => {
                    let (node, file) = (Arc::clone(node), file.to_owned());
                    // The result is ignored: a panic would already have ended the process.
                    let _ = tokio::task::spawn_blocking(move || write(&node, era, Some(&file))).await;
                }
                false => {
                    node.trace().start(TRACE_EVENTS_MAX);
                    tracing::info!("received SIGUSR1; recording a timeline");
                }
            },
        }
    }
}

/// Ends the recording, and writes it to `file`. Writes nothing if no recording is running, or if
/// `file` is `None`.
pub fn write(node: &ServerThreads, era: Era, file: Option<&Path>) {
    let Some((file, recorded)) = file.zip(node.trace().stop()) else { return };
    let beside = file.with_added_extension("new");
    let (recorder, era) = ("a server".to_owned(), Some(era.to_string()));
    let header = TimelineHeader { recorded: recorder, era, ..TimelineHeader::default() };
    let text = format!("{header}{}", recorded.timeline);
    let (spans, forgotten, lost) =
        (recorded.timeline.spans.len(), recorded.overwritten, recorded.lost);
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, file));
    match written {
        Ok(()) => {
            tracing::info!(file = %file.display(), spans, forgotten, lost, "wrote the timeline");
        }
        // The error is only logged, because a member does not need its timeline.
        Err(error) => {
            tracing::error!(file = %file.display(), %error, "could not write the timeline");
        }
    }
}
