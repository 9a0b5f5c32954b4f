//! Checks which requests are allowed, by the host that a request names and by the page that sent
//! it.
//!
//! A page in a browser can send requests to any address, including its user's own machine. Two
//! lists protect this server from such pages. A list allows everything unless the operator sets it.
//!
//! * **Hosts**: the names of this server. In a DNS rebinding attack, the host name of a foreign
//!   page is mapped to our address, but the request still contains that host name. An encrypted
//!   connection does not need this list, because the foreign name is not in our certificate.
//! * **Origins**: the pages that may read our responses (CORS). The browser enforces this list; the
//!   server only reports whether an origin is in it.

use std::collections::BTreeSet;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, HOST,
    HeaderValue, ORIGIN,
};
use http::{Request, Response, StatusCode};
use tonic::body::Body;

use super::error_response;

/// The list entry that allows all hosts, or all origins.
const ANY: &str = "*";

/// The extension that marks a request from an encrypted connection.
#[derive(Clone, Copy, Debug)]
pub struct EncryptedConnection;

/// The lists of allowed hosts and allowed origins. `*` in a list allows everything.
#[derive(Clone, Debug)]
pub struct AccessControl {
    hosts: BTreeSet<String>,
    origins: BTreeSet<String>,
}

impl Default for AccessControl {
    fn default() -> Self {
        AccessControl::new([ANY], [ANY])
    }
}

impl AccessControl {
    /// Creates the lists. An empty list allows everything.
    pub fn new<S: Into<String>>(
        hosts: impl IntoIterator<Item = S>,
        origins: impl IntoIterator<Item = S>,
    ) -> AccessControl {
        let set = |names: &mut dyn Iterator<Item = String>| {
            let names: BTreeSet<String> = names.filter(|name| !name.is_empty()).collect();
            if names.is_empty() { BTreeSet::from([ANY.to_owned()]) } else { names }
        };
        AccessControl {
            hosts: set(&mut hosts.into_iter().map(Into::into)),
            origins: set(&mut origins.into_iter().map(Into::into)),
        }
    }

    /// Returns an error response, or `None` if the host is allowed.
    pub(super) fn check_host<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        if self.hosts.contains(ANY) || request.extensions().get::<EncryptedConnection>().is_some() {
            return None;
        }
        // In HTTP/2 and in a request through a proxy, the host is in the URI. In HTTP/1.1 it is in
        // a header.
        let named = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let host = request.uri().host().or(named).map(without_port).unwrap_or_default();
        if self.hosts.contains(host) {
            return None;
        }
        let why = format!("{host} is not in the list of allowed hosts (--host-whitelist)");
        Some(error_response(StatusCode::MISDIRECTED_REQUEST, &why))
    }

    pub(super) fn allowed_origin<B>(&self, request: &Request<B>) -> Option<HeaderValue> {
        if self.origins.contains(ANY) {
            return Some(HeaderValue::from_static(ANY));
        }
        let origin = request.headers().get(ORIGIN)?;
        self.origins.contains(origin.to_str().ok()?).then(|| origin.clone())
    }
}

/// Returns the host without its port. `[::1]:2379` and `[::1]` are the host `::1`.
fn without_port(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    host.split(':').next().unwrap_or(host)
}

pub(super) fn add_cors_headers(response: &mut Response<Body>, origin: HeaderValue) {
    const METHODS: &str = "POST, GET, OPTIONS, PUT, DELETE";
    const HEADERS: &str = "accept, content-type, authorization";
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(HEADERS));
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_found_with_and_without_its_port() {
        let ours = |uri: &str, header: Option<&str>| {
            let mut request = Request::builder().uri(uri);
            if let Some(host) = header {
                request = request.header(HOST, host);
            }
            let access = AccessControl::new(["::1", "a"], []);
            access.check_host(&request.body(()).unwrap()).is_none()
        };
        // HTTP/2 has the host in the URI, HTTP/1.1 in a header.
        assert!(ours("http://[::1]:2379/health", None) && ours("/health", Some("[::1]:2379")));
        assert!(ours("http://a:2379/health", None) && ours("/health", Some("a")));
        assert!(!ours("http://b/health", None) && !ours("/health", Some("[::2]:2379")));
    }
}
