//! The ids of members and clusters: the first eight bytes of a SHA-1, as in etcd.
//!
//! ```text
//!   member    sorted addresses, concatenated │ token of the cluster │ seconds, in decimal
//!   cluster   the ids of its first members, ascending, 8 bytes each, big endian
//! ```
//!
//! The id of a first member depends on the token but not on the time: each member computes the same
//! ids from the same flags, and so detects whether another member belongs to its cluster. The id of
//! a member that is added later depends on the time but not on the token, so that the member can be
//! added under a new id after it was removed. Nothing secret depends on the ids.

use sha1::{Digest, Sha1};

/// Computes a member's id. `unix_seconds` is `Some` for a member that is added to a running
/// cluster.
pub fn member_id(peer_urls: &[String], token: &str, unix_seconds: Option<u64>) -> u64 {
    let mut sorted: Vec<&str> = peer_urls.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let mut hash = Sha1::new();
    for url in sorted {
        hash.update(url);
    }
    hash.update(token);
    if let Some(seconds) = unix_seconds {
        hash.update(seconds.to_string());
    }
    first_eight(hash)
}

pub fn cluster_id(first: &[u64]) -> u64 {
    let mut sorted = first.to_vec();
    sorted.sort_unstable();
    let mut hash = Sha1::new();
    for id in sorted {
        hash.update(id.to_be_bytes());
    }
    first_eight(hash)
}

fn first_eight(hash: Sha1) -> u64 {
    let sum = hash.finalize();
    sum.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::{cluster_id, member_id};

    fn id(url: &str, token: &str, seconds: Option<u64>) -> u64 {
        member_id(&[url.to_owned()], token, seconds)
    }

    #[test]
    fn a_lonely_etcd_has_these_numbers() {
        let member = id("http://localhost:2380", "etcd-cluster", None);
        assert_eq!(member, 0x8e9e_05c5_2164_694d);
        assert_eq!(cluster_id(&[member]), 0xcdf8_1819_4e3a_8c32);
    }

    #[test]
    fn so_do_three_of_them() {
        let of = |port: u16| id(&format!("http://127.0.0.1:{port}"), "etcd-cluster-1", None);
        let members = [of(12380), of(22380), of(32380)];
        let known = [0x8211_f1d0_f64f_3269, 0x91bc_3c39_8fb3_c146, 0xfd42_2379_fda5_0e48];
        assert_eq!(members, known);
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            assert_eq!(cluster_id(&order.map(|at| members[at])), 0xef37_ad9d_c622_a7c4);
        }
    }

    #[test]
    fn order_of_addresses_does_not_matter_and_time_does() {
        let urls = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>();
        let one = member_id(&urls(&["http://a:1", "http://b:1"]), "", Some(7));
        assert_eq!(member_id(&urls(&["http://b:1", "http://a:1"]), "", Some(7)), one);
        assert_ne!(member_id(&urls(&["http://b:1", "http://a:1"]), "", Some(8)), one);
        // As in etcd, the hash covers the digits of the time after the token. So the time 23 gives
        // the same id as the token "23".
        assert_eq!(id("http://a:1", "", Some(23)), id("http://a:1", "23", None));
    }
}
