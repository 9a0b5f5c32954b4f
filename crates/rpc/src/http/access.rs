//! Which requests are allowed? The host that a request names, and the page it comes from.
//!
//! A page in a browser can send requests to any address, its user's own machine included. Two lists
//! prevent that, and each is open unless the operator sets it:
//!
//! * **Hosts**: the names of this server. With DNS rebinding a foreign page's name leads to our
//!   address, but the request has that name. An encrypted connection needs no such list: the name
//!   is not in our certificate.
//! * **Origins**: which pages may read our answers (CORS). The browser asks, and obeys.

use std::collections::BTreeSet;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, HOST,
    HeaderValue, ORIGIN,
};
use http::{Request, Response, StatusCode};
use tonic::body::Body;

use super::error_response;

/// Allows all hosts, or all origins.
const ANY: &str = "*";

/// Among a request's extensions: it came over an encrypted connection.
#[derive(Clone, Copy, Debug)]
pub struct EncryptedConnection;

/// Two lists; `*` in one of them opens it.
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
    /// An empty list allows all.
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

    /// `None` if the host is allowed.
    pub(super) fn check_host<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        if self.hosts.contains(ANY) || request.extensions().get::<EncryptedConnection>().is_some() {
            return None;
        }
        // HTTP/2 and a request through a proxy have it in the address, HTTP/1.1 in a header.
        let named = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let host = request.uri().host().or(named.map(without_port)).unwrap_or_default();
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

/// `[::1]:2379` and `[::1]` are the host `::1`.
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
