//! The state of a server at the end of an hour. Linux reports its memory, and the server reports
//! its counts and sizes.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::{LeaseLeasesRequest, RangeRequest};
use futures_util::TryFutureExt as _;
use serde::{Deserialize, Serialize};
use tonic::transport::Channel;

use super::{ANSWER_TIMEOUT, DayTarget};
use crate::connection::text;
use crate::server_latency::get_metrics;
use crate::waiting::answered;
use crate::{Error, Result};

const MB: f64 = 1e6;
/// The unit of `st_blocks`. It does not depend on the block size of the file system.
const BLOCK_BYTES: u64 = 512;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The number of the hour, starting with 1. The sample is taken at its end.
    pub hour: u64,
    /// Number of requests since the start of the first period.
    pub requests: u64,
    pub elapsed_ms: u64,
    pub resident_bytes: u64,
    pub db_bytes: u64,
    pub db_in_use_bytes: u64,
    /// Bytes that the files of the data directory use on the disk. `None` if the directory is not
    /// known.
    pub disk_bytes: Option<u64>,
    pub open_files: u64,
    #[serde(flatten)]
    pub live: LiveCounts,
}

/// Numbers of keys, leases and watches on the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveCounts {
    pub keys: u64,
    pub leases: u64,
    pub watchers: u64,
    pub watch_streams: u64,
}

impl fmt::Display for LiveCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LiveCounts { keys, leases, watchers, watch_streams } = self;
        write!(
            formatter,
            "{keys} keys, {leases} leases, {watchers} watchers, {watch_streams} watch streams"
        )
    }
}

impl Sample {
    /// Returns the names of the columns.
    pub(super) fn head() -> String {
        let columns = Sample::default().columns();
        columns.map(|(name, width, _)| format!("{name:>width$}")).join(" ")
    }

    pub(super) fn line(&self) -> String {
        self.columns().map(|(_, width, value)| format!("{value:>width$}")).join(" ")
    }

    /// Returns the name, width and value of each column.
    fn columns(&self) -> [(&'static str, usize, String); 12] {
        let mb = |bytes: u64| format!("{:.1}", bytes as f64 / MB);
        let LiveCounts { keys, leases, watchers, watch_streams } = self.live;
        [
            ("hour", 4, self.hour.to_string()),
            ("requests", 9, self.requests.to_string()),
            ("s", 7, format!("{:.1}", self.elapsed_ms as f64 / 1e3)),
            ("resident MB", 11, mb(self.resident_bytes)),
            ("db MB", 8, mb(self.db_bytes)),
            ("in use MB", 9, mb(self.db_in_use_bytes)),
            ("disk MB", 8, self.disk_bytes.map_or_else(|| "-".to_owned(), mb)),
            ("keys", 8, keys.to_string()),
            ("leases", 6, leases.to_string()),
            ("watchers", 8, watchers.to_string()),
            ("streams", 7, watch_streams.to_string()),
            ("files", 5, self.open_files.to_string()),
        ]
    }
}

#[derive(Debug)]
pub(super) struct Sampler {
    pub(super) target: DayTarget,
    pub(super) channel: Channel,
    pub(super) data_dir: Option<PathBuf>,
}

impl Sampler {
    pub(super) async fn sample(
        &self,
        hour: u64,
        requests: u64,
        elapsed: Duration,
    ) -> Result<Sample> {
        let page = self.page().await?;
        let live = self.counts_of(&page).await?;
        let disk_bytes = self.data_dir.as_deref().map(|dir| {
            let failed = |error| Error::Local(format!("--data-dir {}: {error}", dir.display()));
            fs::canonicalize(dir).and_then(|dir| disk_bytes(&dir)).map_err(failed)
        });
        Ok(Sample {
            hour,
            requests,
            elapsed_ms: elapsed.as_millis() as u64,
            resident_bytes: self.target.process.usage()?.resident_bytes,
            db_bytes: metric(&page, "etcd_mvcc_db_total_size_in_bytes")?,
            db_in_use_bytes: metric(&page, "etcd_mvcc_db_total_size_in_use_in_bytes")?,
            disk_bytes: disk_bytes.transpose()?,
            open_files: metric(&page, "process_open_fds")?,
            live,
        })
    }

    pub(super) async fn live_counts(&self) -> Result<LiveCounts> {
        self.counts_of(&self.page().await?).await
    }

    async fn counts_of(&self, page: &str) -> Result<LiveCounts> {
        // All keys: from the smallest key, without an end.
        let (key, range_end) = (Bytes::from_static(&[0]), Bytes::from_static(&[0]));
        let count = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
        let mut client = KvClient::new(self.channel.clone());
        let counted = client.range(count).map_err(text);
        let counted = answered("a count of all keys", ANSWER_TIMEOUT, counted).await?;
        Ok(LiveCounts {
            keys: counted.into_inner().count.unsigned_abs(),
            leases: self.leases().await?,
            watchers: metric(page, "etcd_debugging_mvcc_watcher_total")?,
            watch_streams: metric(page, "etcd_debugging_mvcc_watch_stream_total")?,
        })
    }

    /// Returns the number of leases.
    pub(super) async fn leases(&self) -> Result<u64> {
        let mut client = LeaseClient::new(self.channel.clone());
        let listed = client.lease_leases(LeaseLeasesRequest {}).map_err(text);
        let listed = answered("a list of leases", ANSWER_TIMEOUT, listed).await?;
        Ok(listed.into_inner().leases.len() as u64)
    }

    /// Returns the text of `/metrics`. The request uses a separate connection.
    async fn page(&self) -> Result<String> {
        let what = format!("/metrics of {}", self.target.endpoint.uri());
        answered(&what, ANSWER_TIMEOUT, get_metrics(&self.target.endpoint)).await
    }
}

fn metric(page: &str, name: &str) -> Result<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<f64>().ok();
    let value = page.lines().find_map(value);
    let missing = || Error::Server(format!("/metrics has no {name}"));
    value.map(|value| value as u64).ok_or_else(missing)
}

/// Returns the bytes that a file, or all files below a directory, use on the disk. For a file, the
/// result is at most its length, without the unused rest of its last block. A file with parts that
/// were never written uses less than its length. A file that is removed while this function reads
/// its directory is skipped.
fn disk_bytes(path: &Path) -> io::Result<u64> {
    let about = fs::symlink_metadata(path)?;
    if !about.is_dir() {
        return Ok(about.len().min(about.blocks() * BLOCK_BYTES));
    }
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        bytes += match entry.and_then(|entry| disk_bytes(&entry.path())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            on_disk => on_disk?,
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_whole_name() {
        let page = "# HELP a_b\na_b_c 7\na_b{x=\"1\"} 8\na_b 1.5e+07\n";
        assert_eq!(metric(page, "a_b"), Ok(15_000_000));
        let missing = Error::Server("/metrics has no a".to_owned());
        assert_eq!(metric(page, "a"), Err(missing));
    }

    #[test]
    fn a_line_stands_below_its_head() {
        let line = Sample { hour: 3, resident_bytes: 1_250_000, ..Sample::default() }.line();
        assert_eq!(line.len(), Sample::head().len(), "{line}");
        assert!(line.contains(" 1.2 ") || line.contains(" 1.3 "), "{line}");
    }

    #[test]
    fn files_of_all_levels_count() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("below")).expect("a directory");
        for name in ["a", "below/b"] {
            fs::write(dir.path().join(name), b"12345").expect("a file");
        }
        assert_eq!(disk_bytes(dir.path()).expect("it is there"), 10);
        let sparse = fs::File::create(dir.path().join("c")).expect("a file");
        sparse.set_len(1 << 20).expect("a length");
        let with_it = disk_bytes(dir.path()).expect("it is there");
        assert!(with_it < 1 << 20, "{with_it}");
        assert!(disk_bytes(&dir.path().join("gone")).is_err());
    }
}
