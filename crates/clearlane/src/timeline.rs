//! The file of `--timeline`: which thread or request of this process waited for which other one.
//! `clearlane-sim show` displays it.
//!
//! ```text
//!   start ─ recording ─ SIGUSR1 ─ file ─ not recording ─ SIGUSR1 ─ recording ─ SIGTERM ─ file
//! ```
//!
//! A [`Recorder`] records events in memory and keeps the newest events: those of a member, or of
//! the gRPC proxy. This module gathers the events every 20 ms, and writes them to the file when the
//! recording ends. An existing file is replaced by a rename, so a reader never finds an incomplete
//! file.
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
use clearlane_contention::event_log::RecordedTrace;
use clearlane_contention::timeline::TimelineHeader;
use clearlane_proxy::trace::ProxyTrace;
use clearlane_server::threads::ServerThreads;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::interval;

/// Maximum number of recorded events: requests, steps of workers, waits for locks, and periods in
/// which locks are held. The events take about 30 MB.
pub const TRACE_EVENTS_MAX: usize = 200_000;

const GATHER_INTERVAL: Duration = Duration::from_millis(20);

/// Records what a member or a proxy does, while it is switched on.
pub trait Recorder: Send + Sync + 'static {
    fn is_on(&self) -> bool;
    fn start(&self);
    fn collect(&self);
    /// Stops recording. Returns `None` if recording was off.
    fn stop(&self) -> Option<RecordedTrace>;
}

impl Recorder for ServerThreads {
    fn is_on(&self) -> bool {
        self.trace().is_on()
    }

    fn start(&self) {
        self.trace().start(TRACE_EVENTS_MAX);
    }

    fn collect(&self) {
        self.trace().collect();
    }

    fn stop(&self) -> Option<RecordedTrace> {
        self.trace().stop()
    }
}

impl Recorder for ProxyTrace {
    fn is_on(&self) -> bool {
        ProxyTrace::is_on(self)
    }

    fn start(&self) {
        ProxyTrace::start(self, TRACE_EVENTS_MAX);
    }

    fn collect(&self) {
        ProxyTrace::collect(self);
    }

    fn stop(&self) -> Option<RecordedTrace> {
        ProxyTrace::stop(self)
    }
}

/// Returns the first line of a member's file.
pub fn header_of_member(era: Era) -> TimelineHeader {
    let (recorded, era) = ("a server".to_owned(), Some(era.to_string()));
    TimelineHeader { recorded, era, ..TimelineHeader::default() }
}

/// Returns the first line of a proxy's file.
pub fn header_of_proxy() -> TimelineHeader {
    TimelineHeader { recorded: "a gRPC proxy".to_owned(), ..TimelineHeader::default() }
}

/// Creates `file` if it does not exist. Fails if `file` cannot be written. The caller makes this
/// check before the member or the proxy starts.
pub fn check_writable(file: &Path) -> io::Result<()> {
    let opened = OpenOptions::new().append(true).create(true).open(file);
    opened.map(drop).map_err(|error| {
        io::Error::new(error.kind(), format!("--timeline {}: {error}", file.display()))
    })
}

/// Starts and ends recordings on SIGUSR1, which is handled from this call on. The future returns
/// only if the signal cannot be handled. Must be called on a runtime.
pub fn record_on_signal<R: Recorder>(
    recorder: &Arc<R>,
    header: &TimelineHeader,
    file: Option<&Path>,
) -> impl Future<Output = io::Error> {
    let toggle = signal(SignalKind::user_defined1());
    async move {
        let mut toggle = match toggle {
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
                _ = due.tick() => recorder.collect(),
                _ = toggle.recv() => switch(recorder, header, file).await,
            }
        }
    }
}

/// Ends the recording, or starts one if none is running.
async fn switch<R: Recorder>(recorder: &Arc<R>, header: &TimelineHeader, file: &Path) {
    if recorder.is_on() {
        let (recorder, header, file) = (Arc::clone(recorder), header.clone(), file.to_owned());
        let written = move || write(&*recorder, &header, Some(&file));
        // The result is ignored: a panic would already have ended the process.
        let _ = tokio::task::spawn_blocking(written).await;
    } else {
        recorder.start();
        tracing::info!("received SIGUSR1; recording a timeline");
    }
}

/// Ends the recording, and writes it to `file`. Writes nothing if no recording is running, or if
/// `file` is `None`.
pub fn write(recorder: &impl Recorder, header: &TimelineHeader, file: Option<&Path>) {
    let Some((file, recorded)) = file.zip(recorder.stop()) else { return };
    let beside = file.with_added_extension("new");
    let text = format!("{header}{}", recorded.timeline);
    let (spans, forgotten, lost) =
        (recorded.timeline.spans.len(), recorded.overwritten, recorded.lost);
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, file));
    match written {
        Ok(()) => {
            tracing::info!(file = %file.display(), spans, forgotten, lost, "wrote the timeline");
        }
        // The error is only logged, because the process does not need its timeline.
        Err(error) => {
            tracing::error!(file = %file.display(), %error, "could not write the timeline");
        }
    }
}
