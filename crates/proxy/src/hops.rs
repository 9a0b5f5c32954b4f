//! Counts the proxies that a call has passed, and stops calls that would pass proxies without end.
//!
//! Each proxy increments a header of the call. The probes of members are calls also. So two proxies
//! that are each other's endpoint find out by their probes, and do not use each other.

use std::future::ready;

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use hyper::body::Incoming;
use hyper::service::Service;
use tonic::{Code, Status};

use crate::router::Router;

const HOPS: HeaderName = HeaderName::from_static("clearlane-proxy-hops");
/// Maximum number of proxies between a client and a member.
const HOPS_MAX: u16 = 8;
const LOOP: &str = "clearlane grpc-proxy: the proxy is one of its own endpoints";

/// Serves the requests of one connection, and counts their hops.
#[derive(Debug)]
pub(crate) struct HopCounter(pub(crate) Router);

impl Service<Request<Incoming>> for HopCounter {
    type Response = <Router as Service<Request<Incoming>>>::Response;
    type Error = <Router as Service<Request<Incoming>>>::Error;
    type Future = <Router as Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        match count(request.headers_mut()) {
            Ok(()) => self.0.call(request),
            Err(status) => Box::pin(ready(Ok(status.into_http()))),
        }
    }
}

/// Adds this proxy to the hops in the headers. Fails if there are too many.
fn count(headers: &mut HeaderMap) -> Result<(), Status> {
    let before = headers.get(&HOPS).and_then(|hops| hops.to_str().ok()?.parse().ok());
    let hops = before.unwrap_or(0_u16).saturating_add(1);
    if hops > HOPS_MAX {
        return Err(Status::failed_precondition(LOOP));
    }
    headers.insert(HOPS, HeaderValue::from(hops));
    Ok(())
}

/// Returns true if a proxy has stopped the call.
pub(crate) fn is_loop(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && status.message() == LOOP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_passes_eight_proxies() {
        let mut headers = HeaderMap::new();
        for hops in 1..=HOPS_MAX {
            count(&mut headers).unwrap();
            assert_eq!(headers[HOPS], hops.to_string());
        }
        assert!(is_loop(&count(&mut headers).unwrap_err()));
        headers.insert(HOPS, HeaderValue::from(u64::MAX));
        assert!(count(&mut headers).is_ok(), "a number that no proxy writes");
    }
}
