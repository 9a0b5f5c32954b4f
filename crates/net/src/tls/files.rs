//! Reads the TLS files, and reports errors in them.
//!
//! All files are PEM. A list of revoked certificates may also be DER, the format that etcd expects.
//! Each error names the flag of the file, because an operator has a dozen such files.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};

use super::certificate::{self, CertificateInfo};
use super::config::{CertificateFiles, FlagPath};
use super::{Error, protocol::ProtocolConfig};

impl FlagPath {
    pub(super) fn error(&self, why: impl Into<String>) -> Error {
        Error::File { flag: self.flag, path: self.path.clone(), why: why.into() }
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        fs::read(&self.path).map_err(|error| self.error(error.to_string()))
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, Error> {
        let text = self.read()?;
        let all = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
        match all {
            Ok(all) if !all.is_empty() => Ok(all),
            Ok(_) => Err(self.error("it has no certificate (-----BEGIN CERTIFICATE-----)")),
            Err(error) => Err(self.error(format!("it is not valid PEM: {error}"))),
        }
    }

    pub(super) fn authorities(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            let added = roots.add(certificate);
            added.map_err(|error| {
                self.error(format!("a certificate in it cannot be used: {error}"))
            })?;
        }
        Ok(roots)
    }

    /// Returns the serial numbers of all revoked certificates in the file.
    pub(super) fn revoked_serials(&self) -> Result<BTreeSet<Vec<u8>>, Error> {
        let bytes = self.read()?;
        let lists = CertificateRevocationListDer::pem_slice_iter(&bytes);
        let mut lists: Vec<Vec<u8>> =
            lists.filter_map(Result::ok).map(|list| list.to_vec()).collect();
        if lists.is_empty() {
            lists.push(bytes);
        }
        let mut serials = BTreeSet::new();
        for list in lists {
            let revoked = certificate::revoked_serials(&list).map_err(|why| {
                self.error(format!("it is not a list of revoked certificates (CRL, v2): {why}"))
            })?;
            serials.extend(revoked);
        }
        Ok(serials)
    }
}

impl CertificateFiles {
    /// Returns the common name of the certificate's owner. It is empty if there is none.
    pub fn common_name(&self) -> Result<String, Error> {
        let chain = self.certificate.certificates()?;
        let own = CertificateInfo::parse(&chain[0]);
        let own = own.map_err(|why| self.certificate.error(format!("it cannot be read: {why}")))?;
        Ok(own.common_name)
    }

    /// Loads the certificate and its key. Fails if either cannot be used, or if they do not match.
    pub(super) fn load(&self, protocol: &ProtocolConfig) -> Result<Arc<CertifiedKey>, Error> {
        let (certificate, key) = (&self.certificate, &self.key);
        let chain = certificate.certificates()?;
        let der = PrivateKeyDer::from_pem_slice(&key.read()?)
            .map_err(|error| key.error(format!("it has no unencrypted private key: {error}")))?;
        let loaded = protocol.provider().key_provider.load_private_key(der);
        let loaded = loaded.map_err(|error| {
            key.error(format!(
                "this key cannot be used ({error}); expected RSA with at least 2048 bits, the \
                 curve P-256 or P-384, or Ed25519"
            ))
        })?;
        let pair = CertifiedKey::new(chain, loaded);
        match pair.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
                Ok(Arc::new(pair))
            }
            Err(rustls::Error::InconsistentKeys(_)) => Err(key.error(format!(
                "private key does not match public key in --{} {}",
                certificate.flag,
                certificate.path.display()
            ))),
            Err(error) => Err(certificate.error(format!("it is not a valid certificate: {error}"))),
        }
    }

    pub(super) fn files(&self) -> [&FlagPath; 2] {
        [&self.certificate, &self.key]
    }
}
