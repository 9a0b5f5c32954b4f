//! Compares the latencies that the servers report with the latencies that the driver has measured.
//!
//! etcd's histogram `etcd_server_request_duration_seconds` has a sum, a count, and buckets that
//! double. So means can be compared exactly. A median is known only by the bounds of its bucket. A
//! server starts its clock when it has decoded a request, and stops it when the response is ready.
//! The network time in both directions is only in the driver's latency. Requests of other clients
//! are only in the server's histogram.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, timeout};
use tonic::transport::Endpoint;

use crate::class_metrics::ClassMetrics;
use crate::connection::{self, Endpoints};

const METRIC: &str = "etcd_server_request_duration_seconds_";
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes that are read from a metrics page. Real pages are smaller.
const PAGE_BYTES_MAX: u64 = 4 << 20;

/// The sums of all servers together, by the label `type`. They cover the successful requests since
/// the servers started.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ServerLatency(BTreeMap<String, DurationSums>);

#[derive(Clone, Debug, Default, PartialEq)]
struct DurationSums {
    count: f64,
    seconds: f64,
    /// Bounds in seconds with the number of requests up to each bound.
    buckets: Vec<(f64, f64)>,
}

/// The latencies of one type of request, as the server and the driver have measured them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatencyComparison {
    /// The type as the server names it, for example `put`.
    request: &'static str,
    count: u64,
    mean_ms: f64,
    /// The bounds of the bucket that contains the median. The upper bound may be infinite.
    p50_from_ms: f64,
    p50_to_ms: f64,
    driver_mean_ms: f64,
}

impl ServerLatency {
    /// Reads the metrics pages of all servers. Returns `None` if a server has no such page, or if
    /// no page has the metric. Pages of servers with TLS are not read.
    pub(crate) async fn read(endpoints: &Endpoints) -> Option<ServerLatency> {
        let mut all = ServerLatency::default();
        for endpoint in endpoints.list() {
            all.add_page(&metrics_page(endpoint).await?);
        }
        (!all.0.is_empty()).then_some(all)
    }

    fn add_page(&mut self, page: &str) {
        for (name, labels, value) in page.lines().filter_map(sample) {
            let (Some(kind), Some("true")) = (label(labels, "type"), label(labels, "success"))
            else {
                continue;
            };
            let sums = self.0.entry(kind.to_owned()).or_default();
            match name {
                "count" => sums.count += value,
                "sum" => sums.seconds += value,
                _ => sums.add_to_bucket(labels, value),
            }
        }
    }

    /// Compares the requests since `before`. The result has one item for each type of request that
    /// both the server has counted and the driver has sent.
    pub(crate) fn compare<'a>(
        &self,
        before: &ServerLatency,
        classes: impl Iterator<Item = (&'a str, &'a ClassMetrics)>,
    ) -> Vec<LatencyComparison> {
        let mut seen: BTreeMap<&'static str, (u64, f64)> = BTreeMap::new();
        for (operation, metrics) in classes {
            let Some(request) = request_of(operation) else { continue };
            let (count, sum) = seen.entry(request).or_default();
            *count += metrics.answered();
            *sum += metrics.mean_latency_ms().unwrap_or_default() * metrics.answered() as f64;
        }
        let compare = |(request, (answered, sum)): (&'static str, (u64, f64))| {
            let sums = self.0.get(request)?.since(before.0.get(request));
            let count = sums.count as u64;
            let (p50_from_ms, p50_to_ms) = sums.median_bounds_ms();
            (count > 0 && answered > 0).then(|| LatencyComparison {
                request,
                count,
                mean_ms: sums.seconds * 1e3 / sums.count,
                p50_from_ms,
                p50_to_ms,
                driver_mean_ms: sum / answered as f64,
            })
        };
        seen.into_iter().filter_map(compare).collect()
    }
}

impl DurationSums {
    fn add_to_bucket(&mut self, labels: &str, value: f64) {
        let bound = label(labels, "le").and_then(|bound| bound.parse::<f64>().ok());
        let Some(bound) = bound.filter(|bound| bound.is_finite()) else { return };
        match self.buckets.iter_mut().find(|(of, _)| *of == bound) {
            Some((_, count)) => *count += value,
            None => self.buckets.push((bound, value)),
        }
    }

    fn since(&self, before: Option<&DurationSums>) -> DurationSums {
        let Some(before) = before else { return self.clone() };
        let earlier = before.buckets.iter().map(|(_, count)| count).chain(std::iter::repeat(&0.0));
        let buckets = self.buckets.iter().zip(earlier);
        DurationSums {
            count: self.count - before.count,
            seconds: self.seconds - before.seconds,
            buckets: buckets.map(|((bound, count), earlier)| (*bound, count - earlier)).collect(),
        }
    }

    fn median_bounds_ms(&self) -> (f64, f64) {
        let at = self.buckets.iter().position(|(_, count)| *count >= self.count / 2.0);
        let bound = |number: usize| self.buckets[number].0 * 1e3;
        match at {
            Some(0) => (0.0, bound(0)),
            Some(number) => (bound(number - 1), bound(number)),
            None => (self.buckets.last().map_or(0.0, |(bound, _)| bound * 1e3), f64::INFINITY),
        }
    }
}

impl LatencyComparison {
    /// Returns how much longer the driver's mean is than the server's own mean, in per cent.
    fn percent_more(&self) -> f64 {
        (self.driver_mean_ms / self.mean_ms - 1.0) * 100.0
    }

    pub(crate) fn line(&self) -> String {
        let LatencyComparison { request, count, mean_ms, driver_mean_ms, .. } = self;
        let (from, to, more) = (self.p50_from_ms, self.p50_to_ms, self.percent_more());
        format!(
            "server's histogram: {count} x {request}, mean {mean_ms:.3} ms, p50 in {from:.1} to \
             {to:.1} ms; the driver's mean is {driver_mean_ms:.3} ms ({more:+.0} %)"
        )
    }
}

/// Returns the type that the server's metric has for an operation. `None` for operations that are
/// not compared: the server does not measure them (`watch`, `authenticate`), measures them as
/// several requests, or measures them but they are omitted here (`lease`).
fn request_of(operation: &str) -> Option<&'static str> {
    match operation {
        "range" | "count" => Some("range"),
        "put" => Some("put"),
        "delete" => Some("delete_range"),
        "txn" | "txn-put" | "read" | "write" => Some("txn"),
        _ => None,
    }
}

/// Splits a line of the metric into the end of its name, its labels, and its value. Returns `None`
/// for any other line.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (name, rest) = line.strip_prefix(METRIC)?.split_once('{')?;
    let (labels, value) = rest.split_once('}')?;
    Some((name, labels, value.trim().parse().ok()?))
}

/// Returns the value of the label `name` in a list of labels, or `None` if the list does not have
/// this label.
fn label<'l>(labels: &'l str, name: &str) -> Option<&'l str> {
    let value = |label: &'l str| label.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"');
    labels.split(',').find_map(value)
}

/// Returns the server's `/metrics` page, or `None` if there is none. The page of a server with TLS
/// is never read.
pub(crate) async fn metrics_page(endpoint: &Endpoint) -> Option<String> {
    timeout(PAGE_TIMEOUT, get_metrics(endpoint)).await.ok()?.ok()
}

/// Returns the value of a sample on the server's `/metrics` page. `sample` is its name with its
/// labels. Returns `None` if there is no such sample, or no page.
pub(crate) async fn metric(endpoint: &str, sample: &str) -> crate::Result<Option<f64>> {
    let page = metrics_page(&connection::endpoint(endpoint)?).await.unwrap_or_default();
    let value = |line: &str| line.strip_prefix(sample)?.strip_prefix(' ')?.trim().parse().ok();
    Ok(page.lines().find_map(value))
}

/// Like [`metrics_page`], but without a time limit. The error is the reason why there is no page.
pub(crate) async fn get_metrics(endpoint: &Endpoint) -> Result<String, String> {
    let uri = endpoint.uri();
    let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
    let authority = authority.ok_or("a server with TLS has no such page here")?.as_str();
    let answer = fetch(authority).await.map_err(|error| error.to_string())?;
    let (head, page) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => Ok(page.to_owned()),
        _ => Err(format!("answered with {status:?}")),
    }
}

/// Fetches the page over HTTP/1.0, so that the server closes the connection after the response.
async fn fetch(authority: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(authority).await?;
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {authority}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(PAGE_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class_metrics::tests::done;

    const BEFORE: &str = r#"
etcd_server_request_duration_seconds_bucket{success="true",type="put",le="0.001"} 10
etcd_server_request_duration_seconds_bucket{success="true",type="put",le="0.002"} 10
etcd_server_request_duration_seconds_bucket{success="true",type="put",le="+Inf"} 10
etcd_server_request_duration_seconds_sum{success="true",type="put"} 0.005
etcd_server_request_duration_seconds_count{success="true",type="put"} 10
"#;
    const AFTER: &str = r#"
# HELP etcd_server_request_duration_seconds Response latency distribution
etcd_server_request_duration_seconds_bucket{success="false",type="put",le="0.001"} 7
etcd_server_request_duration_seconds_count{success="false",type="put"} 7
etcd_server_request_duration_seconds_bucket{success="true",type="put",le="0.001"} 11
etcd_server_request_duration_seconds_bucket{success="true",type="put",le="0.002"} 14
etcd_server_request_duration_seconds_bucket{success="true",type="put",le="+Inf"} 14
etcd_server_request_duration_seconds_sum{success="true",type="put"} 0.011
etcd_server_request_duration_seconds_count{success="true",type="put"} 14
etcd_server_requests_total{type="put"} 3
"#;

    fn latency(page: &str) -> ServerLatency {
        let mut latency = ServerLatency::default();
        latency.add_page(page);
        latency
    }

    #[test]
    fn the_driver_is_compared_with_what_the_server_has_counted_since() {
        let mut metrics = ClassMetrics::default();
        [1, 2, 1, 2].into_iter().for_each(|ms| metrics.add(done([0, 0, ms])));
        let classes = [("put", &metrics), ("lease", &metrics), ("range-pages", &metrics)];
        let compared = latency(AFTER).compare(&latency(BEFORE), classes.into_iter());
        let lines = compared.iter().map(LatencyComparison::line).collect::<Vec<_>>();
        let expected = "server's histogram: 4 x put, mean 1.500 ms, p50 in 1.0 to 2.0 ms; the driver's \
                        mean is 1.500 ms (+0 %)";
        assert_eq!(lines, [expected]);
    }

    #[test]
    fn what_is_beyond_the_last_bound_and_what_was_not_there_before_counts() {
        let mut sums = DurationSums { count: 3.0, seconds: 30.0, buckets: vec![(8.192, 1.0)] };
        assert_eq!(sums.median_bounds_ms(), (8192.0, f64::INFINITY));
        sums.count = 2.0;
        assert_eq!(sums.since(None).median_bounds_ms(), (0.0, 8192.0));
        assert_eq!(latency("").compare(&latency(AFTER), std::iter::empty()), []);
    }

    #[test]
    fn pages_of_several_servers_are_summed() {
        let mut latency = latency(BEFORE);
        latency.add_page(AFTER);
        assert_eq!(latency.0["put"].count, 24.0);
        assert_eq!(latency.0["put"].buckets, [(0.001, 21.0), (0.002, 24.0)]);
    }
}
