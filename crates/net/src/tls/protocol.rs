//! The TLS versions and ciphers of rustls, under the names that etcd's users know.
//!
//! `--cipher-suites` chooses among the ciphers of TLS 1.2. The ciphers of TLS 1.3 are always
//! enabled, as in Go.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::{ProtocolVersion, SupportedCipherSuite, SupportedProtocolVersion, version};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProtocolConfig {
    /// The allowed ciphers of TLS 1.2. If empty, all are allowed.
    pub suites: Vec<String>,
    pub min: Option<TlsVersion>,
    pub max: Option<TlsVersion>,
}

/// A TLS version. An older version is less than a newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    Tls12,
    Tls13,
}

impl TlsVersion {
    /// Parses a version as etcd writes it. Returns `None` for any other text.
    pub fn parse(text: &str) -> Option<TlsVersion> {
        match text {
            "TLS1.2" => Some(TlsVersion::Tls12),
            "TLS1.3" => Some(TlsVersion::Tls13),
            _ => None,
        }
    }
}

pub fn suites() -> Vec<String> {
    ring::ALL_CIPHER_SUITES.iter().map(name_of).collect()
}

pub fn is_suite(name: &str) -> bool {
    ring::ALL_CIPHER_SUITES.iter().any(|suite| is_named(suite, name))
}

fn name_of(suite: &SupportedCipherSuite) -> String {
    let name = suite.suite().as_str().unwrap_or_default();
    name.replace("TLS13_", "TLS_")
}

/// Returns true if `name` is a name of the suite. A CHACHA20 cipher of TLS 1.2 also has an older
/// name without the suffix `_SHA256`.
fn is_named(suite: &SupportedCipherSuite, name: &str) -> bool {
    let known = name_of(suite);
    known == name || known.contains("CHACHA20") && known.strip_suffix("_SHA256") == Some(name)
}

impl ProtocolConfig {
    pub(super) fn provider(&self) -> Arc<CryptoProvider> {
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(|suite| {
            suite.version().version == ProtocolVersion::TLSv1_3
                || self.suites.is_empty()
                || self.suites.iter().any(|name| is_named(suite, name))
        });
        Arc::new(provider)
    }

    pub(super) fn versions(&self) -> Vec<&'static SupportedProtocolVersion> {
        let all = [(TlsVersion::Tls12, &version::TLS12), (TlsVersion::Tls13, &version::TLS13)];
        let is_in = |known: TlsVersion| {
            self.min.is_none_or(|min| known >= min) && self.max.is_none_or(|max| known <= max)
        };
        all.into_iter().filter(|(known, _)| is_in(*known)).map(|(_, version)| version).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ciphers_have_etcds_names() {
        let known = suites();
        assert!(known.contains(&"TLS_AES_128_GCM_SHA256".to_owned()), "{known:?}");
        for name in [
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        ] {
            assert!(is_suite(name), "{name}");
        }
        for name in ["", "TLS_RSA_WITH_AES_128_CBC_SHA", "TLS_ECDHE_RSA_WITH_AES_256_GCM"] {
            assert!(!is_suite(name), "{name}");
        }
    }

    #[test]
    fn what_is_chosen_is_all_that_is_spoken() {
        let suites = vec!["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned()];
        let few = ProtocolConfig { suites, ..ProtocolConfig::default() };
        // The chosen suite, and the three suites of TLS 1.3.
        assert_eq!(few.provider().cipher_suites.len(), 4);
        assert_eq!(few.versions().len(), 2);
        let newest = ProtocolConfig { min: Some(TlsVersion::Tls13), ..ProtocolConfig::default() };
        assert_eq!(newest.versions(), [&version::TLS13]);
        let older = ProtocolConfig { max: Some(TlsVersion::Tls12), ..ProtocolConfig::default() };
        assert_eq!(older.versions(), [&version::TLS12]);
    }
}
