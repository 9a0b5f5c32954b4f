//! The peer URLs that a member may have, by etcd's rules.
//!
//! A member has at least one URL: `http://host:port` or `https://host:port` without a path, or
//! `unix://` or `unixs://` with a socket's name. The URLs are sorted, because a member's id is a
//! hash of them.

use super::rejection::MembershipRejection;

/// Returns the URLs, trimmed and sorted. Fails if there are none, or if one of them is invalid.
pub fn sorted_peer_urls(urls: &[String]) -> Result<Vec<String>, MembershipRejection> {
    let mut sorted: Vec<String> = urls.iter().map(|url| url.trim().to_owned()).collect();
    sorted.sort_unstable();
    if !sorted.is_empty() && sorted.iter().all(|url| is_address(url)) {
        Ok(sorted)
    } else {
        Err(MembershipRejection::BadUrls)
    }
}

fn is_address(url: &str) -> bool {
    if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return false;
    }
    match url.split_once("://") {
        Some(("http" | "https", rest)) => is_host_and_port(rest),
        Some(("unix" | "unixs", rest)) => !rest.is_empty(),
        _ => false,
    }
}

fn is_host_and_port(text: &str) -> bool {
    let authority = text.split(['?', '#']).next().unwrap_or_default();
    let Some((host, port)) = authority.rsplit_once(':') else { return false };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    // Only an IPv6 address contains colons, and it must be in brackets.
    let sane = match bare {
        Some(host) => !host.contains(['[', ']', '/', '@']),
        None => !host.contains([':', '[', ']', '/', '@']),
    };
    sane && port.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_what_is_none() {
        for url in [
            "http://127.0.0.1:2380",
            "https://etcd-0.etcd.svc:2380",
            "http://[::1]:2380",
            "unix://localhost:m0",
            "unixs:///tmp/socket",
        ] {
            assert!(is_address(url), "{url}");
        }
        for url in [
            "",
            "localhost:2380",
            "http://localhost",
            "http://localhost:2380/",
            "http://localhost:2380/path",
            "http://::1:2380",
            "http://[::1:2380",
            "http://host:port",
            "http://a b:2380",
            "http://a\n:2380",
            "ftp://host:21",
            "unix://",
        ] {
            assert!(!is_address(url), "{url}");
        }
    }
}
