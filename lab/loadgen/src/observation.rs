//! Reads the metrics of the servers and the usage of a server process, before and after a load.
//! Adds both to the report.

use std::time::Duration;

use crate::Result;
use crate::process::{DriverUsage, Process};
use crate::report::{ClassReport, Report};
use crate::server_latency::ServerLatency;
use crate::target::OpenTarget;

/// The result of a load, as the driver has measured it.
pub(crate) struct LoadResult {
    pub(crate) is_open_loop: bool,
    pub(crate) classes: Vec<ClassReport>,
    /// How long requests were sent. In a closed loop, this includes the wait for the last response.
    pub(crate) window: Duration,
    pub(crate) driver: DriverUsage,
    /// Problems that did not end the run. The report lists them.
    pub(crate) notes: Vec<String>,
}

/// Waits for a load and returns its report. The report also has the latencies that the servers have
/// measured themselves, and the processor time and memory of `process`, a server's process.
pub(crate) async fn observe(
    target: &OpenTarget,
    process: Option<&Process>,
    seed: u64,
    load: impl Future<Output = Result<LoadResult>>,
) -> Result<Report> {
    let latency_before = ServerLatency::read(&target.endpoints).await;
    let usage_before = process.map(Process::usage).transpose()?;
    let LoadResult { is_open_loop, classes, window, driver, notes } = load.await?;
    // The server process may have ended during the load. Then the report has no usage.
    let usage = usage_before.zip(process.and_then(|process| process.usage().ok()));
    let mut server_latency = Vec::new();
    if let Some(before) = latency_before
        && let Some(after) = ServerLatency::read(&target.endpoints).await
    {
        let classes = classes.iter().map(|class| (class.operation, &class.metrics));
        server_latency = after.compare(&before, classes);
    }
    Ok(Report {
        endpoints: target.endpoints.text(),
        servers: target.servers.clone(),
        seed,
        window,
        is_open_loop,
        classes,
        usage,
        server_latency,
        driver,
        notes,
    })
}
