//! TLS of the driver: which server certificates it accepts, and which certificate it presents.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::{Error, Result};

#[derive(Debug, Default)]
pub(crate) struct TlsFiles {
    cacert: Option<Vec<u8>>,
    /// The certificate and the key of the client, as PEM.
    pair: Option<(Vec<u8>, Vec<u8>)>,
}

impl TlsFiles {
    /// Reads the files. Returns `None` if no file is named. Then an `https` address is an error,
    /// because the server's certificate cannot be checked.
    pub(crate) fn read(
        cacert: Option<&Path>,
        pair: Option<(&Path, &Path)>,
    ) -> Result<Option<TlsFiles>> {
        let cacert = cacert.map(|path| read("cacert", path)).transpose()?;
        let pair = pair.map(|(cert, key)| Ok((read("cert", cert)?, read("key", key)?)));
        let pair = pair.transpose()?;
        Ok((cacert.is_some() || pair.is_some()).then_some(TlsFiles { cacert, pair }))
    }

    pub(crate) fn of_channels(&self) -> ClientTlsConfig {
        let mut tls = ClientTlsConfig::new();
        if let Some(pem) = &self.cacert {
            tls = tls.ca_certificate(Certificate::from_pem(pem));
        }
        if let Some((cert, key)) = &self.pair {
            tls = tls.identity(Identity::from_pem(cert, key));
        }
        tls
    }

    pub(crate) fn of_connections(&self) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates("cacert", self.cacert.as_deref().unwrap_or_default())? {
            roots.add(certificate).map_err(|error| wrong("cacert", &error))?;
        }
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let mut config = match &self.pair {
            Some((cert, key)) => {
                let chain = certificates("cert", cert)?;
                let key =
                    PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong("key", &error))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| wrong("key", &error))?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

fn certificates(flag: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<std::result::Result<Vec<_>, _>>();
    let found = found.map_err(|error| wrong(flag, &error))?;
    if found.is_empty() && !pem.is_empty() {
        return Err(wrong(flag, &"the file has no certificate"));
    }
    Ok(found)
}

fn wrong(flag: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Local(format!("--{flag}: {error}"))
}

fn read(flag: &str, path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Error::Local(format!("--{flag} {}: {error}", path.display())))
}
