//! Checks the value of `--endpoints` of the proxies. A wrong endpoint is an error at the start.

use std::io;
use std::net::SocketAddr;

use tokio::net::lookup_host;

/// Returns HOST:PORT of an endpoint of the gateway. The endpoint may also be a URL, whose scheme
/// and path are ignored.
pub(super) fn host_and_port(endpoint: &str) -> Result<String, String> {
    let wrong = |why: &str| format!("--endpoints {endpoint}: {why}; expected HOST:PORT");
    let rest = match endpoint.split_once("://") {
        Some(("unix" | "unixs", _)) => return Err(wrong("it is no TCP address")),
        Some((_, rest)) => rest,
        None => endpoint,
    };
    let address = rest.split(['/', '?', '#']).next().unwrap_or_default();
    check_address(address).map_err(wrong)?;
    Ok(address.to_owned())
}

/// Returns an endpoint of the gRPC proxy without a slash at the end: HOST:PORT, or a URL.
///
/// A URL must have a port, because etcd cannot connect to a URL without a port either. An unknown
/// scheme must not be ignored: a typing error in `https` would turn TLS off.
pub(super) fn member_url(endpoint: &str) -> Result<String, String> {
    let wrong = |why: &str| {
        format!(
            "--endpoints {endpoint}: {why}; expected HOST:PORT, http://HOST:PORT, \
             https://HOST:PORT, unix://PATH or unixs://PATH"
        )
    };
    let rest = match endpoint.split_once("://") {
        Some(("unix" | "unixs", "")) => return Err(wrong("it has no path")),
        Some(("unix" | "unixs", _)) => return Ok(endpoint.to_owned()),
        Some(("http" | "https", rest)) => rest,
        Some(_) => return Err(wrong("the scheme must be http, https, unix or unixs")),
        None => endpoint,
    };
    let address = rest.strip_suffix('/').unwrap_or(rest);
    if address.contains(['/', '?', '#']) {
        return Err(wrong("a path or a query is not allowed"));
    }
    if address.contains('@') {
        return Err(wrong("a user is not allowed"));
    }
    check_address(address).map_err(wrong)?;
    if address.parse::<http::uri::Authority>().is_err() {
        return Err(wrong("the host is not valid"));
    }
    Ok(endpoint.strip_suffix('/').unwrap_or(endpoint).to_owned())
}

/// Fails if an endpoint is the gRPC proxy's own address. Only hosts with its port are resolved: the
/// proxy must start also without a name server.
pub(super) async fn reject_own_address(
    own: SocketAddr,
    endpoints: &[String],
) -> Result<(), String> {
    for endpoint in endpoints {
        let (scheme, address) = endpoint.split_once("://").unwrap_or(("", endpoint));
        if scheme.starts_with("unix") || !address.ends_with(&format!(":{}", own.port())) {
            continue;
        }
        // A host that cannot be resolved may have an address later.
        if let Ok(Some(at)) = own_address(own, address).await {
            return Err(format!("the endpoint {endpoint} ({at}) is the proxy's own address"));
        }
    }
    Ok(())
}

/// Returns the address of an endpoint HOST:PORT if it is the own address of a proxy.
pub(super) async fn own_address(own: SocketAddr, endpoint: &str) -> io::Result<Option<SocketAddr>> {
    let is_own = |at: &SocketAddr| {
        let is_same_host =
            at.ip() == own.ip() || (own.ip().is_unspecified() && at.ip().is_loopback());
        at.port() == own.port() && is_same_host
    };
    Ok(lookup_host(endpoint).await?.find(is_own))
}

/// Fails with the reason if an address is not HOST:PORT.
fn check_address(address: &str) -> Result<(), &'static str> {
    let is_open = address.starts_with('[') && !address.contains(']');
    // An IPv6 address without brackets may look like a host with a port.
    let (host, port) = match address.rsplit_once(':') {
        _ if is_open => return Err("an IPv6 address must be in brackets"),
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => return Err("it has no port"),
    };
    if host.is_empty() {
        return Err("it has no host");
    }
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err("an IPv6 address must be in brackets");
    }
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(1..) if is_number => Ok(()),
        _ => Err("the port must be 1 to 65535"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_of_the_gateway_is_an_address_or_a_url() {
        for (endpoint, address) in [
            ("127.0.0.1:2379", "127.0.0.1:2379"),
            ("http://127.0.0.1:2379", "127.0.0.1:2379"),
            ("https://a.example.com:2379/path?a=b", "a.example.com:2379"),
            ("[::1]:2379", "[::1]:2379"),
        ] {
            assert_eq!(host_and_port(endpoint).as_deref(), Ok(address));
        }
        for (endpoint, why) in [
            ("127.0.0.1", "it has no port"),
            ("https://a.example.com", "it has no port"),
            ("[::1]", "it has no port"),
            (":2379", "it has no host"),
            ("::1:2379", "an IPv6 address must be in brackets"),
            ("[::1", "an IPv6 address must be in brackets"),
            ("a:b", "the port must be 1 to 65535"),
            ("a:", "the port must be 1 to 65535"),
            ("a:0", "the port must be 1 to 65535"),
            ("a:+1", "the port must be 1 to 65535"),
            ("a:65536", "the port must be 1 to 65535"),
            ("unix:///run/etcd", "it is no TCP address"),
        ] {
            let wrong = format!("--endpoints {endpoint}: {why}; expected HOST:PORT");
            assert_eq!(host_and_port(endpoint), Err(wrong));
        }
    }

    #[test]
    fn an_endpoint_of_the_grpc_proxy_has_a_known_scheme_a_host_and_a_port() {
        for (endpoint, url) in [
            ("127.0.0.1:2379", "127.0.0.1:2379"),
            ("localhost:2379", "localhost:2379"),
            ("http://127.0.0.1:2379/", "http://127.0.0.1:2379"),
            ("https://a.example.com:2379", "https://a.example.com:2379"),
            ("http://[::1]:2379", "http://[::1]:2379"),
            ("etcd_1:2379", "etcd_1:2379"),
            ("unix:///run/etcd", "unix:///run/etcd"),
            ("unixs://localhost:2379", "unixs://localhost:2379"),
        ] {
            assert_eq!(member_url(endpoint).as_deref(), Ok(url));
        }
        for (endpoint, why) in [
            ("127.0.0.1", "it has no port"),
            ("http://a.example.com", "it has no port"),
            ("127.0.0.1:99999", "the port must be 1 to 65535"),
            ("::1:2379", "an IPv6 address must be in brackets"),
            ("http://[::1", "an IPv6 address must be in brackets"),
            ("http://:2379", "it has no host"),
            ("ftp://127.0.0.1:2379", "the scheme must be http, https, unix or unixs"),
            ("htps://127.0.0.1:2379", "the scheme must be http, https, unix or unixs"),
            ("http://127.0.0.1:2379/path", "a path or a query is not allowed"),
            ("127.0.0.1:2379?a=b", "a path or a query is not allowed"),
            ("http://user:password@127.0.0.1:2379", "a user is not allowed"),
            ("a b:2379", "the host is not valid"),
            ("unix://", "it has no path"),
        ] {
            let error = member_url(endpoint).unwrap_err();
            assert!(error.starts_with(&format!("--endpoints {endpoint}: {why}; ")), "{error}");
        }
    }

    #[tokio::test]
    async fn the_grpc_proxy_is_not_its_own_endpoint() {
        let endpoints = ["unix:///run/a:1", "https://127.0.0.1:2", "127.0.0.1:3", "[::1]:4"];
        let endpoints = endpoints.map(str::to_owned);
        for (own, is_rejected) in [
            ("127.0.0.1:1", false),
            ("127.0.0.1:2", true),
            ("0.0.0.0:3", true),
            ("[::]:3", true),
            ("127.0.0.2:3", false),
            ("[::1]:4", true),
            ("127.0.0.1:5", false),
        ] {
            let result = reject_own_address(own.parse().unwrap(), &endpoints).await;
            assert_eq!(result.is_err(), is_rejected, "{own}");
        }
    }
}
