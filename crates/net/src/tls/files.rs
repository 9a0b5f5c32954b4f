//! What is in the files, and what is wrong with them?
//!
//! All are PEM; a list of revoked certificates may be DER too, as etcd wants it. Whatever is wrong
//! is reported with the flag that names the file: an operator has a dozen of them.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};

use super::certificate;
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
            Ok(_) => Err(self.error("there is no certificate in it (-----BEGIN CERTIFICATE-----)")),
            Err(error) => Err(self.error(format!("it is no PEM: {error}"))),
        }
    }

    pub(super) fn authorities(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            let added = roots.add(certificate);
            added.map_err(|error| self.error(format!("not every certificate counts: {error}")))?;
        }
        Ok(roots)
    }

    /// Serial numbers.
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
                self.error(format!("it is no list of revoked certificates (CRL, v2): {why}"))
            })?;
            serials.extend(revoked);
        }
        Ok(serials)
    }
}

impl CertificateFiles {
    /// Fails if the key is not the certificate's.
    pub(super) fn load(&self, protocol: &ProtocolConfig) -> Result<Arc<CertifiedKey>, Error> {
        let (certificate, key) = (&self.certificate, &self.key);
        let chain = certificate.certificates()?;
        let der = PrivateKeyDer::from_pem_slice(&key.read()?).map_err(|error| {
            key.error(format!("there is no private key in it that is not encrypted: {error}"))
        })?;
        let loaded = protocol.provider().key_provider.load_private_key(der);
        let loaded = loaded.map_err(|error| {
            key.error(format!(
                "this key cannot be used ({error}); there are RSA from 2048 bits, the curves P-256 \
                 and P-384, and Ed25519"
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
            Err(error) => Err(certificate.error(format!("it is no certificate: {error}"))),
        }
    }

    pub(super) fn files(&self) -> [&FlagPath; 2] {
        [&self.certificate, &self.key]
    }
}
