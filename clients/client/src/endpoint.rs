//! The endpoints of a cluster, and which of them are used.
//!
//! Endpoints are used in turn. A failed endpoint is set aside, and a task checks it at growing
//! intervals ([`PROBE_INTERVALS`]). So a dead endpoint costs one attempt of one request. Otherwise,
//! if one of three endpoints were dead, every third request would wait for a connect timeout.
//!
//! ```text
//!   turns:   a b c a b c a . c a . c a . c a b c
//!                          ╳ fails           ╰ passes a check, and is used again
//! ```
//!
//! The check is a `Status` request. The member must respond, have a leader, and not be a learner. A
//! member that rejects the request, because it requires a user, also passes. A ping would not be
//! enough: a member that is cut off from the others responds to pings, but cannot serve requests.
//!
//! If all endpoints are set aside, they are tried anyway.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use clearlane_proto::etcdserverpb::StatusRequest;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::transport::{self, Channel};

use crate::error::{Error, Result, StatusKind, describe_status};
use crate::options::Options;

/// The pause before the first check of a failed endpoint, and the longest pause. Each pause is
/// twice as long as the one before.
const PROBE_INTERVALS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Maximum number of bytes that a server may send before the client reads them. If too many small
/// frames are unread, such as events of a watch, h2 assumes an attack and closes the connection.
/// The number of unread frames that h2 allows grows with this window.
const CONNECTION_WINDOW: u32 = 32 << 20;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) url: String,
    pub(crate) channel: Channel,
    is_failed: AtomicBool,
    status_timeout: Duration,
}

impl Endpoint {
    /// Creates an endpoint. It connects at the first request.
    fn new(written: &str, options: &Options) -> Result<Endpoint> {
        let bad = |error: &dyn std::fmt::Display| Error::Setup(format!("{written}: {error}"));
        let (scheme, rest) = written.split_once("://").unwrap_or(("http", written));
        let url = match (scheme, &options.tls) {
            ("http", None) => format!("http://{rest}"),
            ("http" | "https", Some(_)) => format!("https://{rest}"),
            ("https", None) => return Err(bad(&"https requires Options::tls")),
            _ => return Err(bad(&"the scheme must be http, or https with Options::tls")),
        };
        let (interval, patience) = options.keep_alive;
        let mut endpoint = transport::Endpoint::from_shared(url.clone())
            .map_err(|error| bad(&error))?
            .connect_timeout(options.connect_timeout)
            .http2_keep_alive_interval(interval)
            .keep_alive_timeout(patience)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .tcp_nodelay(true);
        if let Some(tls) = &options.tls {
            let config = tls.clone().timeout(options.connect_timeout);
            endpoint = endpoint.tls_config(config).map_err(|error| {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                bad(&format!("{error}: {}", cause.unwrap_or_default()))
            })?;
        }
        Ok(Endpoint {
            url,
            channel: endpoint.connect_lazy(),
            is_failed: AtomicBool::new(false),
            status_timeout: options.connect_timeout + patience,
        })
    }

    pub(crate) fn mark_healthy(&self) {
        self.is_failed.store(false, Ordering::Relaxed);
    }

    /// Sets the endpoint aside until a check or a request succeeds.
    pub(crate) fn mark_failed(self: &Arc<Self>) {
        if !self.is_failed.swap(true, Ordering::Relaxed) {
            tokio::spawn(probe_until_healthy(Arc::downgrade(self)));
        }
    }

    /// Returns `Ok` if a server has responded: with its status, or with an error for which
    /// [`is_answer`] returns true. Otherwise returns the reason why there was no such response.
    pub(crate) async fn check_reachable(&self) -> std::result::Result<(), String> {
        match self.fetch_status().await {
            Some(Err(status)) if !is_answer(&status) => Err(describe_status(&status)),
            Some(_) => Ok(()),
            None => Err("no response".to_owned()),
        }
    }

    async fn is_healthy(&self) -> bool {
        match self.fetch_status().await {
            Some(Ok(has_leader)) => has_leader,
            Some(Err(status)) => is_answer(&status),
            None => false,
        }
    }

    /// Requests the status. Returns whether the member has a leader and is no learner, or the error
    /// of the request. Returns `None` if there is no response in time.
    async fn fetch_status(&self) -> Option<std::result::Result<bool, Status>> {
        let mut client = MaintenanceClient::new(self.channel.clone());
        let asked = timeout(self.status_timeout, client.status(StatusRequest {})).await.ok()?;
        Some(asked.map(|status| {
            let status = status.into_inner();
            status.leader != 0 && !status.is_learner
        }))
    }
}

/// Returns whether an error is a response from a server. A server that requires a user, or does not
/// support the call, is reachable.
fn is_answer(status: &Status) -> bool {
    matches!(StatusKind::from_status(status), StatusKind::Final | StatusKind::TokenRejected)
}

/// Checks an endpoint until it is healthy or dropped.
async fn probe_until_healthy(place: Weak<Endpoint>) {
    let mut pause = PROBE_INTERVALS.0;
    loop {
        sleep(with_jitter(pause)).await;
        let Some(place) = place.upgrade() else { return };
        if !place.is_failed.load(Ordering::Relaxed) {
            return;
        }
        if place.is_healthy().await {
            return place.mark_healthy();
        }
        pause = (pause * 2).min(PROBE_INTERVALS.1);
    }
}

/// Varies a pause by up to a quarter, so that clients do not all return at the same time after a
/// common failure.
pub(crate) fn with_jitter(pause: Duration) -> Duration {
    // Each `RandomState` has different keys, which is random enough here.
    let chance = RandomState::new().hash_one(0) % 1024;
    pause.mul_f64(0.75 + chance as f64 / 2048.0)
}

#[derive(Debug)]
pub(crate) struct Endpoints {
    all: Vec<Arc<Endpoint>>,
    next_index: AtomicUsize,
}

impl Endpoints {
    pub(crate) fn new(urls: &[String], options: &Options) -> Result<Endpoints> {
        let places = urls.iter().map(|url| Endpoint::new(url, options).map(Arc::new));
        Endpoints::from_endpoints(places.collect::<Result<_>>()?)
    }

    pub(crate) fn from_endpoints(places: Vec<Arc<Endpoint>>) -> Result<Endpoints> {
        if places.is_empty() {
            Err(Error::Setup("a client needs at least one endpoint".to_owned()))
        } else {
            Ok(Endpoints { all: places, next_index: AtomicUsize::new(0) })
        }
    }

    pub(crate) fn all(&self) -> &[Arc<Endpoint>] {
        &self.all
    }

    /// Returns the next endpoint that is not marked in `tried`, and marks it. Healthy endpoints
    /// come first. Returns `None` if all endpoints have been tried.
    pub(crate) fn next(&self, tried: &mut Vec<bool>) -> Option<Arc<Endpoint>> {
        tried.resize(self.all.len(), false);
        let turn = self.next_index.fetch_add(1, Ordering::Relaxed);
        let order = || (0..self.all.len()).map(|step| (turn + step) % self.all.len());
        let mut open = order().filter(|at| !tried[*at]);
        let is_well = |at: &usize| !self.all[*at].is_failed.load(Ordering::Relaxed);
        let first = open.clone().find(is_well).or_else(|| open.next())?;
        tried[first] = true;
        Some(Arc::clone(&self.all[first]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(urls: &[&str]) -> Result<Endpoints> {
        let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
        Endpoints::new(&urls, &Options::new())
    }

    #[tokio::test]
    async fn turns_pass_over_who_is_aside_and_come_back_to_them_last() {
        let places = places(&["a:1", "http://b:1", "c:1"]).unwrap();
        let round = || {
            let mut tried = Vec::new();
            let order = std::iter::from_fn(|| places.next(&mut tried));
            order.map(|place| place.url.clone()).collect::<Vec<_>>()
        };
        let mut first = round();
        first.sort_unstable();
        assert_eq!(first, ["http://a:1", "http://b:1", "http://c:1"]);
        places.all()[1].is_failed.store(true, Ordering::Relaxed);
        assert_eq!(round()[2], "http://b:1");
        assert_eq!(round()[2], "http://b:1");
    }

    #[tokio::test]
    async fn what_is_no_endpoint_is_told() {
        for wrong in ["ftp://a:1", "https://a:1", "http://a b"] {
            let message = places(&[wrong]).unwrap_err().to_string();
            assert!(message.starts_with(wrong), "{message}");
        }
        assert!(places(&[]).is_err());
    }

    #[test]
    fn jitter_stays_near() {
        for _ in 0..100 {
            let pause = with_jitter(Duration::from_millis(100)).as_millis();
            assert!((75..=125).contains(&pause), "{pause}");
        }
    }
}
