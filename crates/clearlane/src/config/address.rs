//! Addresses where a server listens or can be reached, in etcd's notation.
//!
//! ```text
//!   http://127.0.0.1:2379        a port; port 0 means any free port
//!   http://localhost:2379        the same port, as localhost is 127.0.0.1
//!   unix:///run/clearlane.sock   a socket in the file system
//!   unix://localhost:2379        a socket with this name, in the working directory
//!   https://..., unixs://...     with TLS
//! ```
//!
//! An address keeps its original text, with the scheme in lower case, because clients receive it in
//! that form.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clearlane_net::listener::{BindAddress, ListenAddress};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    text: String,
    is_secure: bool,
    location: Location,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Location {
    Host(String, u16),
    Socket(PathBuf),
}

/// Returns the addresses to listen on, without duplicates. Two URLs that differ only in TLS become
/// one address that accepts both; for a socket, such URLs are an error.
pub fn listen_addresses(urls: &[Url]) -> Result<Vec<ListenAddress>, String> {
    let mut all: Vec<ListenAddress> = Vec::new();
    for url in urls {
        let (at, is_secure) = (url.to_bind_address()?, url.is_secure());
        let is_there = |known: &ListenAddress| {
            let has_scheme = if is_secure { known.is_secure } else { known.is_plain };
            known.address == at && has_scheme
        };
        let is_any_port = matches!(&at, BindAddress::Tcp(address) if address.port() == 0);
        if !is_any_port && all.iter().any(is_there) {
            continue;
        }
        let is_other_half = |known: &&mut ListenAddress| {
            // Each URL with port 0 gets a different port, so two such URLs never share an address.
            !is_any_port && known.address == at && known.is_secure != is_secure
        };
        match all.iter_mut().find(is_other_half) {
            Some(known) if matches!(at, BindAddress::Tcp(_)) => {
                (known.is_plain, known.is_secure) = (true, true);
            }
            Some(_) => {
                return Err(format!(
                    "a socket must not be listed both with and without TLS ({url})"
                ));
            }
            None => all.push(ListenAddress { address: at, is_plain: !is_secure, is_secure }),
        }
    }
    Ok(all)
}

impl Url {
    /// Parses a URL. Errors have etcd's texts, with two exceptions: a socket without a path, and a
    /// text that Go's URL parser rejects. For a URL with two mistakes, etcd may report the other
    /// one. URLs with a query, a user or an empty port are rejected, although etcd accepts them.
    pub fn parse(text: &str) -> Result<Url, String> {
        let text = text.trim();
        let scheme_is = "URL scheme must be http, https, unix, or unixs";
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("{scheme_is}: {text}"));
        };
        let (is_secure, is_socket) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (false, false),
            "https" => (true, false),
            "unix" => (false, true),
            "unixs" => (true, true),
            _ => return Err(format!("{scheme_is}: {text}")),
        };
        let place = if is_socket { socket(text, rest)? } else { host(text, rest)? };
        let text = format!("{}://{rest}", scheme.to_ascii_lowercase());
        Ok(Url { text, is_secure, location: place })
    }

    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Returns the host without its port. `None` for a socket.
    pub fn host(&self) -> Option<&str> {
        match &self.location {
            Location::Host(host, _) => Some(host),
            Location::Socket(_) => None,
        }
    }

    /// Returns the address to bind. Fails if the host is neither an IP address nor `localhost`.
    pub fn to_bind_address(&self) -> Result<BindAddress, String> {
        match &self.location {
            Location::Socket(path) => Ok(BindAddress::Unix(path.clone())),
            Location::Host(host, port) => match host.as_str() {
                "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
                host => host.parse(),
            }
            .map(|ip| BindAddress::Tcp(SocketAddr::new(ip, *port)))
            .map_err(|_| format!("expected IP in URL for binding ({})", self.text)),
        }
    }
}

fn socket(text: &str, rest: &str) -> Result<Location, String> {
    if rest.is_empty() || rest.contains('\0') {
        Err(format!("URL has no socket path: {text}"))
    } else {
        Ok(Location::Socket(rest.into()))
    }
}

fn host(text: &str, rest: &str) -> Result<Location, String> {
    if rest.contains(['/', '?', '#']) {
        return Err(format!("URL must not contain a path: {text}"));
    }
    let form = || format!("URL address does not have the form \"host:port\": {text}");
    let (host, port) = rest.rsplit_once(':').ok_or_else(form)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_plain = !bare.unwrap_or(host).contains(['[', ']', '@', ' ']);
    // Only IPv6 addresses have colons, and they need brackets.
    if !is_plain || bare.is_none() && host.contains(':') {
        return Err(form());
    }
    let is_digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|_| is_digits).ok_or_else(form)?;
    Ok(Location::Host(bare.unwrap_or(host).to_owned(), port))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(text: &str) -> Result<String, String> {
        Url::parse(text)?.to_bind_address().map(|listen| listen.to_string())
    }

    #[test]
    fn places_to_listen() {
        for (text, at) in [
            ("http://localhost:2379", "127.0.0.1:2379"),
            (" http://0.0.0.0:0", "0.0.0.0:0"),
            ("https://[::1]:2379", "[::1]:2379"),
            ("HTTP://127.0.0.1:2379", "127.0.0.1:2379"),
            ("unix:///run/etcd.sock", "/run/etcd.sock"),
            ("unixs://localhost:2379", "localhost:2379"),
        ] {
            assert_eq!(listen(text).as_deref(), Ok(at), "{text}");
        }
    }

    #[test]
    fn an_address_that_is_listed_twice_is_one() {
        let count = |texts: &[&str]| {
            let urls: Vec<Url> = texts.iter().map(|text| Url::parse(text).unwrap()).collect();
            listen_addresses(&urls).unwrap().len()
        };
        assert_eq!(count(&["http://127.0.0.1:1", "http://localhost:1"]), 1);
        assert_eq!(count(&["http://127.0.0.1:1", "https://127.0.0.1:1", "http://127.0.0.1:1"]), 1);
        assert_eq!(count(&["http://127.0.0.1:0", "http://127.0.0.1:0"]), 2);
        assert_eq!(count(&["unix://a:1", "unix://a:1", "unix://b:1"]), 2);
    }

    #[test]
    fn what_is_none_is_told_in_etcds_words() {
        for (text, message) in [
            ("ftp://a:1", "URL scheme must be http, https, unix, or unixs: ftp://a:1"),
            ("http://a:", "URL address does not have the form \"host:port\": http://a:"),
            ("http://::1:1", "URL address does not have the form \"host:port\": http://::1:1"),
            ("http://a:+1", "URL address does not have the form \"host:port\": http://a:+1"),
            ("unix://", "URL has no socket path: unix://"),
            ("http://example.com:1", "expected IP in URL for binding (http://example.com:1)"),
            ("http://:2379", "expected IP in URL for binding (http://:2379)"),
        ] {
            assert_eq!(listen(text).unwrap_err(), message);
        }
    }
}
