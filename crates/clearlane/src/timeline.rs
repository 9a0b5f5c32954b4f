//! The file of `--timeline`: which thread waited for which in this process, for `clearlane-sim
//! show`.
//!
//! ```text
//!   start ─ recording ─ SIGUSR1 ─ file ─ not recording ─ SIGUSR1 ─ recording ─ SIGTERM ─ file
//! ```
//!
//! [`TraceRecorder`](clearlane_server::trace::TraceRecorder) takes notes in memory, and keeps the
//! newest; here they are gathered, and written when the recording ends. A file that is there is
//! replaced as a whole, by a rename, so a reader does not find half of one.
//!
//! A signal, because a user that may send one may also stop the process. An address to ask would
//! have to be defended, for it makes the server write a file.

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

/// Number of notes that are kept: requests, steps of workers, waits for locks and holds. About 30
/// MB.
pub const TRACE_EVENTS_MAX: usize = 200_000;

const GATHER_INTERVAL: Duration = Duration::from_millis(20);

/// Called before anything else is done.
pub fn check_writable(file: &Path) -> io::Result<()> {
    let opened = OpenOptions::new().append(true).create(true).open(file);
    opened.map(drop).map_err(|error| {
        io::Error::new(error.kind(), format!("--timeline {}: {error}", file.display()))
    })
}

/// Returns only if SIGUSR1 cannot be handled.
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
        // By default the signal would end the process.
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
                    // One that panics has ended the process.
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

/// Ends the recording, if there is one.
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
        // The member goes on without the file.
        Err(error) => {
            tracing::error!(file = %file.display(), %error, "could not write the timeline");
        }
    }
}
