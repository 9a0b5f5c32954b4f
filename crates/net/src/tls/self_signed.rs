//! Certificates that the member makes itself: `--auto-tls` and `--peer-auto-tls`.
//!
//! The certificate is signed only with its own key, so neither side knows the identity of the
//! other. It is stored in the same place as a certificate that etcd makes, in `fixtures/client` or
//! `fixtures/peer` (`docs/tls.md`). A new pair of certificate and key is made if there is none, or
//! if the old pair has expired or cannot be used here. etcd's keys cannot be used, because `ring`
//! does not support their curve.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use x509_cert::der::pem::{LineEnding, encode_string};

use super::Error;
use super::certificate;
use super::config::{CertificateFiles, FlagPath, SelfSignedConfig, VALIDITY_YEARS_MAX};
use super::protocol::ProtocolConfig;

/// A year of 365 days, as in etcd.
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Returns the files of the certificate and its key. Creates them if there is no valid and usable
/// pair.
pub(super) fn load_or_create(made: &SelfSignedConfig) -> Result<CertificateFiles, Error> {
    let file = |name| FlagPath { flag: made.flag, path: made.dir.join(name) };
    let pair = CertificateFiles { certificate: file("cert.pem"), key: file("key.pem") };
    let is_there = pair.certificate.path.exists() && pair.key.path.exists();
    match is_there.then(|| is_valid(&pair)) {
        Some(Ok(true)) => return Ok(pair),
        Some(Ok(false)) => {
            tracing::info!(dir = %made.dir.display(), "the self-signed certificate has expired")
        }
        Some(Err(error)) => tracing::warn!(%error, "the self-signed certificate cannot be used"),
        None => {}
    }
    let (certificate, key) = make(made)?;
    let write = || {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&made.dir)?;
        write(&pair.key.path, &key, 0o600)?;
        write(&pair.certificate.path, &certificate, 0o644)
    };
    write().map_err(|error| {
        FlagPath { flag: made.flag, path: made.dir.clone() }.error(error.to_string())
    })?;
    tracing::info!(dir = %made.dir.display(), hosts = ?made.hosts, "created a certificate");
    Ok(pair)
}

fn is_valid(pair: &CertificateFiles) -> Result<bool, Error> {
    let loaded = pair.load(&ProtocolConfig::default())?;
    let holds = certificate::is_valid_at(&loaded.cert[0], SystemTime::now());
    holds.map_err(|error| pair.certificate.error(error.to_string()))
}

/// Makes a certificate and its key, both as PEM.
fn make(made: &SelfSignedConfig) -> Result<(String, String), Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let years = u32::try_from(made.years.min(VALIDITY_YEARS_MAX)).unwrap_or_default();
    let mut params = CertificateParams::new(made.hosts.clone())?;
    params.not_before = date_time_ymd(1970, 1, 1) + now;
    params.not_after = params.not_before + YEAR * years;
    params.is_ca = IsCa::ExplicitNoCa;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "clearlane");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let pem = |label, der: &[u8]| {
        encode_string(label, LineEnding::LF, der).map_err(|error| {
            FlagPath { flag: made.flag, path: made.dir.clone() }.error(error.to_string())
        })
    };
    Ok((pem("CERTIFICATE", certificate.der())?, pem("PRIVATE KEY", key.serialized_der())?))
}

/// Writes a file completely or not at all.
fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let part = path.with_extension("part");
    // An interrupted attempt may have left this file. `create_new` fails if the file exists.
    let _ = fs::remove_file(&part);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&part)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(part, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::tls::certificate::CertificateInfo;

    #[test]
    fn a_pair_is_used_again_until_it_expires() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = vec!["127.0.0.1".to_owned(), "::1".to_owned(), "localhost".to_owned()];
        let mut made = SelfSignedConfig {
            flag: "auto-tls",
            dir: dir.path().join("fixtures/client"),
            hosts,
            years: 0,
        };
        let bytes = |pair: &CertificateFiles| fs::read(&pair.certificate.path).unwrap();
        let expired = bytes(&load_or_create(&made).unwrap());
        made.years = 1;
        let first = load_or_create(&made).unwrap();
        assert_ne!(bytes(&first), expired);
        let second = load_or_create(&made).unwrap();
        assert_eq!(bytes(&first), bytes(&second));
        let loaded = first.load(&ProtocolConfig::default()).unwrap();
        let facts = CertificateInfo::parse(&loaded.cert[0]).unwrap();
        assert_eq!((facts.hosts.len(), facts.addresses.len()), (1, 2));
        let mode = fs::metadata(&first.key.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // A key that cannot be used is replaced.
        fs::write(&first.key.path, "nonsense").unwrap();
        load_or_create(&made).unwrap().load(&ProtocolConfig::default()).unwrap();
    }
}
