//! What the servers say of how long requests took, beside what the driver has seen.
//!
//! etcd's histogram `etcd_server_request_duration_seconds` has a sum, a count, and buckets that
//! double. So means compare exactly, and of a median it says between which bounds it is.
//! A server counts from when it has decoded a request to when its answer is ready: the way there
//! and back is the driver's alone. Requests of other clients are the server's alone.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, timeout};
use tonic::transport::Endpoint;

use crate::class_metrics::ClassMetrics;
use crate::connection::Endpoints;

const METRIC: &str = "etcd_server_request_duration_seconds_";
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// A page of metrics has less.
const PAGE_BYTES_MAX: u64 = 4 << 20;

/// Of all servers together, by the label `type`: successful requests since they started.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ServerLatency(BTreeMap<String, DurationSums>);

#[derive(Clone, Debug, Default, PartialEq)]
struct DurationSums {
    count: f64,
    seconds: f64,
    /// Cumulative, by their bounds in seconds.
    buckets: Vec<(f64, f64)>,
}

/// Both sides of one type of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyComparison {
    /// As the server names it: `put`.
    request: &'static str,
    count: u64,
    mean_ms: f64,
    /// The bounds of the bucket that has the median.
    p50_ms: (f64, f64),
    driver_mean_ms: f64,
}

impl ServerLatency {
    /// `None` if one of them has no such page: a server with TLS is not asked.
    pub(crate) async fn read(endpoints: &Endpoints) -> Option<ServerLatency> {
        let mut all = ServerLatency::default();
        for endpoint in endpoints.list() {
            all.add_page(&metrics_page(endpoint).await?);
        }
        (!all.0.is_empty()).then_some(all)
    }

    fn add_page(&mut self, page: &str) {
        for (name, labels, value) in page.lines().filter_map(sample) {
            let has = |label: &str| labels.split(',').any(|of| of == label);
            let kind = labels.split(',').find_map(|label| label.strip_prefix("type=\""));
            let Some(kind) = kind.and_then(|kind| kind.strip_suffix('"')) else { continue };
            if !has("success=\"true\"") {
                continue;
            }
            let sums = self.0.entry(kind.to_owned()).or_default();
            match name {
                "count" => sums.count += value,
                "sum" => sums.seconds += value,
                _ => sums.add_to_bucket(labels, value),
            }
        }
    }

    /// The part of these that the driver has sent, too, since `before`.
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
            (count > 0 && answered > 0).then(|| LatencyComparison {
                request,
                count,
                mean_ms: sums.seconds * 1e3 / sums.count,
                p50_ms: sums.median_bounds_ms(),
                driver_mean_ms: sum / answered as f64,
            })
        };
        seen.into_iter().filter_map(compare).collect()
    }
}

impl DurationSums {
    fn add_to_bucket(&mut self, labels: &str, value: f64) {
        let bound = labels.split(',').find_map(|label| label.strip_prefix("le=\""));
        let bound = bound.and_then(|bound| bound.strip_suffix('"')?.parse::<f64>().ok());
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
    /// How much longer than the server's own mean is that of the driver.
    fn percent_more(&self) -> f64 {
        (self.driver_mean_ms / self.mean_ms - 1.0) * 100.0
    }

    pub(crate) fn line(&self) -> String {
        let LatencyComparison { request, count, mean_ms, p50_ms: (from, to), driver_mean_ms } =
            self;
        let more = self.percent_more();
        format!(
            "server's histogram: {count} x {request}, mean {mean_ms:.3} ms, p50 in {from:.1} to \
             {to:.1} ms; the driver's mean is {driver_mean_ms:.3} ms ({more:+.0} %)"
        )
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "request": self.request,
            "count": self.count,
            "mean_ms": self.mean_ms,
            "p50_from_ms": self.p50_ms.0,
            "p50_to_ms": self.p50_ms.1.is_finite().then_some(self.p50_ms.1),
            "driver_mean_ms": self.driver_mean_ms,
        })
    }
}

/// Of a class's operation; `None` for what the server does not measure, or not as one request.
fn request_of(operation: &str) -> Option<&'static str> {
    match operation {
        "range" | "count" => Some("range"),
        "put" => Some("put"),
        "delete" => Some("delete_range"),
        "txn" | "txn-put" | "read" | "write" => Some("txn"),
        _ => None,
    }
}

/// What follows the metric's name, the labels, and the value.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (name, rest) = line.strip_prefix(METRIC)?.split_once('{')?;
    let (labels, value) = rest.split_once('}')?;
    Some((name, labels, value.trim().parse().ok()?))
}

/// The server's `/metrics`, which is there without TLS only.
pub(crate) async fn metrics_page(endpoint: &Endpoint) -> Option<String> {
    let uri = endpoint.uri();
    if uri.scheme_str() != Some("http") {
        return None;
    }
    let authority = uri.authority()?.to_string();
    timeout(PAGE_TIMEOUT, fetch(&authority)).await.ok()?.ok()
}

async fn fetch(authority: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(authority).await?;
    let request =
        format!("GET /metrics HTTP/1.0\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut page = Vec::new();
    stream.take(PAGE_BYTES_MAX).read_to_end(&mut page).await?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class_metrics::CompletedRequest;

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
        let done = |us| CompletedRequest {
            due: Duration::ZERO,
            sent: Duration::ZERO,
            answered: Duration::from_micros(us),
            result: Ok(crate::response_scanner::ResponseStats::default()),
        };
        [1500, 1800, 1500, 1800].into_iter().for_each(|us| metrics.add(done(us)));
        let classes = [("put", &metrics), ("lease", &metrics), ("range-pages", &metrics)];
        let compared = latency(AFTER).compare(&latency(BEFORE), classes.into_iter());
        let lines = compared.iter().map(LatencyComparison::line).collect::<Vec<_>>();
        let expected = "server's histogram: 4 x put, mean 1.500 ms, p50 in 1.0 to 2.0 ms; the driver's \
                        mean is 1.650 ms (+10 %)";
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
