//! What a server has at the end of an hour: memory from Linux, counts and sizes from itself.

use std::fmt;
use std::fs::{self, DirEntry};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::{LeaseLeasesRequest, RangeRequest};
use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};

use super::{ANSWER_TIMEOUT, DayOptions, answered};
use crate::connection::text;
use crate::process::Process;
use crate::{Error, Result};

const MB: f64 = 1e6;
/// Of `st_blocks`, whatever the blocks of the file system are.
const BLOCK_BYTES: u64 = 512;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// From 1 on, at its end.
    pub hour: u64,
    /// Since the first period.
    pub requests: u64,
    pub elapsed_ms: u64,
    pub resident_bytes: u64,
    pub db_bytes: u64,
    pub db_in_use_bytes: u64,
    /// What the files of the directory take, if it is known.
    pub disk_bytes: Option<u64>,
    pub open_files: u64,
    pub live: LiveCounts,
}

/// What clients have there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// The names of the columns of a line.
    pub(super) fn head() -> String {
        format!(
            "{:>4} {:>9} {:>7} {:>11} {:>8} {:>9} {:>8} {:>8} {:>6} {:>8} {:>7} {:>5}",
            "hour",
            "requests",
            "s",
            "resident MB",
            "db MB",
            "in use MB",
            "disk MB",
            "keys",
            "leases",
            "watchers",
            "streams",
            "files"
        )
    }

    pub(super) fn line(&self) -> String {
        let Sample { hour, requests, open_files, live, .. } = self;
        let LiveCounts { keys, leases, watchers, watch_streams } = live;
        let mb = |bytes: u64| format!("{:.1}", bytes as f64 / MB);
        let (resident, db, in_use) =
            (mb(self.resident_bytes), mb(self.db_bytes), mb(self.db_in_use_bytes));
        let disk = self.disk_bytes.map_or_else(|| "-".to_owned(), mb);
        let seconds = self.elapsed_ms as f64 / 1e3;
        format!(
            "{hour:>4} {requests:>9} {seconds:>7.1} {resident:>11} {db:>8} {in_use:>9} {disk:>8} \
             {keys:>8} {leases:>6} {watchers:>8} {watch_streams:>7} {open_files:>5}"
        )
    }

    pub(super) fn json(&self) -> Value {
        let LiveCounts { keys, leases, watchers, watch_streams } = self.live;
        json!({
            "hour": self.hour,
            "requests": self.requests,
            "elapsed_ms": self.elapsed_ms,
            "resident_bytes": self.resident_bytes,
            "db_bytes": self.db_bytes,
            "db_in_use_bytes": self.db_in_use_bytes,
            "disk_bytes": self.disk_bytes,
            "open_files": self.open_files,
            "keys": keys,
            "leases": leases,
            "watchers": watchers,
            "watch_streams": watch_streams,
        })
    }

    /// The error is the name of the field that is missing.
    pub(super) fn from_json(value: &Value) -> std::result::Result<Sample, &'static str> {
        let field = |name: &'static str| value[name].as_u64().ok_or(name);
        Ok(Sample {
            hour: field("hour")?,
            requests: field("requests")?,
            elapsed_ms: field("elapsed_ms")?,
            resident_bytes: field("resident_bytes")?,
            db_bytes: field("db_bytes")?,
            db_in_use_bytes: field("db_in_use_bytes")?,
            disk_bytes: field("disk_bytes").ok(),
            open_files: field("open_files")?,
            live: LiveCounts {
                keys: field("keys")?,
                leases: field("leases")?,
                watchers: field("watchers")?,
                watch_streams: field("watch_streams")?,
            },
        })
    }
}

#[derive(Debug)]
pub(super) struct Sampler {
    endpoint: Endpoint,
    channel: Channel,
    process: Process,
    data_dir: Option<PathBuf>,
}

impl Sampler {
    pub(super) fn new(options: &DayOptions, channel: Channel) -> Sampler {
        let DayOptions { endpoint, process, data_dir, .. } = options.clone();
        Sampler { endpoint, channel, process, data_dir }
    }

    pub(super) async fn sample(
        &self,
        hour: u64,
        requests: u64,
        elapsed: Duration,
    ) -> Result<Sample> {
        let page = self.page().await?;
        let live = self.counts_of(&page).await?;
        let disk_bytes = self.data_dir.as_deref().map(|dir| {
            directory_bytes(dir)
                .map_err(|error| Error::Local(format!("--data-dir {}: {error}", dir.display())))
        });
        Ok(Sample {
            hour,
            requests,
            elapsed_ms: elapsed.as_millis() as u64,
            resident_bytes: self.process.usage()?.resident_bytes,
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
        // From the smallest key on, without an end.
        let (key, range_end) = (Bytes::from_static(&[0]), Bytes::from_static(&[0]));
        let count = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
        let mut client = KvClient::new(self.channel.clone());
        let counted = async { client.range(count).await.map_err(text) };
        let counted = answered("a count of all keys", ANSWER_TIMEOUT, counted).await?;
        Ok(LiveCounts {
            keys: counted.into_inner().count.unsigned_abs(),
            leases: self.leases().await?,
            watchers: metric(page, "etcd_debugging_mvcc_watcher_total")?,
            watch_streams: metric(page, "etcd_debugging_mvcc_watch_stream_total")?,
        })
    }

    /// How many there are.
    pub(super) async fn leases(&self) -> Result<u64> {
        let mut client = LeaseClient::new(self.channel.clone());
        let listed = async { client.lease_leases(LeaseLeasesRequest {}).await.map_err(text) };
        let listed = answered("a list of leases", ANSWER_TIMEOUT, listed).await?;
        Ok(listed.into_inner().leases.len() as u64)
    }

    /// `/metrics`, over a connection of its own.
    async fn page(&self) -> Result<String> {
        let address = self.endpoint.uri().authority().map_or("", |host| host.as_str()).to_owned();
        let got = async {
            let got = tokio::task::spawn_blocking(move || get_metrics(&address)).await;
            let got = got.expect("it neither panics nor is stopped");
            got.map_err(|error| error.to_string())
        };
        let what = format!("/metrics of {}", self.endpoint.uri());
        answered(&what, ANSWER_TIMEOUT, got).await
    }
}

/// By HTTP/1.0: its answer ends with the connection.
fn get_metrics(address: &str) -> io::Result<String> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    write!(socket, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    let (head, page) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        return Err(io::Error::other(format!("answered with {status:?}")));
    }
    Ok(page.to_owned())
}

fn metric(page: &str, name: &str) -> Result<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<f64>().ok();
    let value = page.lines().find_map(value);
    let missing = || Error::Server(format!("/metrics has no {name}"));
    value.map(|value| value as u64).ok_or_else(missing)
}

/// Of all files below. What is removed meanwhile does not count.
fn directory_bytes(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        bytes += match entry.and_then(|entry| entry_bytes(&entry)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            on_disk => on_disk?,
        };
    }
    Ok(bytes)
}

/// A file takes less than its length if parts of it were never written.
fn entry_bytes(entry: &DirEntry) -> io::Result<u64> {
    let about = entry.metadata()?;
    match about.is_dir() {
        true => directory_bytes(&entry.path()),
        false => Ok(about.len().min(about.blocks() * BLOCK_BYTES)),
    }
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
    fn a_sample_comes_back_from_json() {
        let live = LiveCounts { keys: 5, leases: 6, watchers: 7, watch_streams: 8 };
        let without = Sample { hour: 1, resident_bytes: 9, live, ..Sample::default() };
        for sample in [without, Sample { disk_bytes: Some(3), ..without }] {
            assert_eq!(Sample::from_json(&sample.json()), Ok(sample));
        }
        assert_eq!(Sample::from_json(&json!({ "hour": 1 })), Err("requests"));
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
        assert_eq!(directory_bytes(dir.path()).expect("it is there"), 10);
        let sparse = fs::File::create(dir.path().join("c")).expect("a file");
        sparse.set_len(1 << 20).expect("a length");
        let with_it = directory_bytes(dir.path()).expect("it is there");
        assert!(with_it < 1 << 20, "{with_it}");
        assert!(directory_bytes(&dir.path().join("gone")).is_err());
    }
}
