//! The metrics of the gateway, and the page `/metrics` in the text format of Prometheus.

use std::convert::Infallible;
use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use clearlane_net::connection_limit::ConnectionLimit;
use clearlane_net::listener::ACCEPT_RETRY_DELAY;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::endpoints::{Endpoint, Endpoints};

/// Maximum number of open connections to the page.
const CONNECTIONS_MAX: usize = 64;
/// Time limit for the head of a request, and longest idle time of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

#[derive(Debug, Default)]
pub struct Metrics {
    /// Number of connections that clients have opened, including rejected ones.
    pub accepted: AtomicU64,
    /// Number of open connections of clients.
    pub open: AtomicU64,
    /// Number of connections that were closed because no endpoint accepted a connection.
    pub unserved: AtomicU64,
    pub bytes_to_endpoints: AtomicU64,
    pub bytes_to_clients: AtomicU64,
}

pub(super) fn page(metrics: &Metrics, endpoints: &Endpoints) -> String {
    let mut page = Page(String::new());
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    page.head("connections_total", "counter", "Connections that clients have opened");
    page.value("connections_total", read(&metrics.accepted));
    page.head("connections", "gauge", "Open connections of clients");
    page.value("connections", read(&metrics.open));
    page.head("unserved_connections_total", "counter", "Connections that no endpoint accepted");
    page.value("unserved_connections_total", read(&metrics.unserved));
    page.head("bytes_total", "counter", "Forwarded bytes");
    page.value("bytes_total{direction=\"to_endpoint\"}", read(&metrics.bytes_to_endpoints));
    page.value("bytes_total{direction=\"to_client\"}", read(&metrics.bytes_to_clients));
    let mut of_each = |name: &str, kind, help, value: &dyn Fn(&Endpoint) -> u64| {
        page.head(name, kind, help);
        for endpoint in endpoints.all() {
            let label = escaped(endpoint.address());
            page.value(format_args!("{name}{{endpoint=\"{label}\"}}"), value(endpoint));
        }
    };
    of_each("endpoint_up", "gauge", "1 if the last dial or probe succeeded", &|endpoint| {
        u64::from(endpoint.is_up())
    });
    of_each("endpoint_connections", "gauge", "Open connections to the endpoint", &|endpoint| {
        read(&endpoint.connections)
    });
    of_each(
        "endpoint_failed_dials_total",
        "counter",
        "Dials for clients that have failed",
        &|endpoint| read(&endpoint.failed_dials),
    );
    page.0
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let name = format!("clearlane_gateway_{name}");
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Adds a line. `name` may include labels.
    fn value(&mut self, name: impl Display, value: u64) {
        let _ = writeln!(self.0, "clearlane_gateway_{name} {value}");
    }
}

/// Returns the text of a label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Serves the page over HTTP/1.1. `page` makes its text. Never ends by itself.
pub(super) async fn serve(
    listener: TcpListener,
    page: impl Fn() -> String + Send + Sync + 'static,
) {
    let limit = ConnectionLimit::new("--metrics-addr", CONNECTIONS_MAX);
    let page = Arc::new(page);
    let mut connections = JoinSet::new();
    loop {
        let accepted = listener.accept().await;
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let Some(permit) = limit.admit() else { continue };
        let page = Arc::clone(&page);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let response = respond(&request, page.as_ref());
                async move { Ok::<_, Infallible>(response) }
            });
            let mut protocol = http1::Builder::new();
            protocol.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
            // An error concerns only this client, which sees it.
            let _ = protocol.serve_connection(TokioIo::new(stream), service).await;
            drop(permit);
        });
    }
}

fn respond(request: &Request<Incoming>, page: &impl Fn() -> String) -> Response<Full<Bytes>> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, page()),
        (&Method::GET | &Method::HEAD, _) => {
            (StatusCode::NOT_FOUND, "404 page not found\n".to_owned())
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_escaped() {
        assert_eq!(escaped("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
    }
}
