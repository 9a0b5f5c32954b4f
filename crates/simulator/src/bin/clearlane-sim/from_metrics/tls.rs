//! TLS, by rustls, with the files that `etcdctl` would be given.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The trusted authorities, and the own certificate.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// Authorities; if there are none, those of the system.
    pub(crate) trusted: Option<PathBuf>,
    /// A certificate and its key.
    pub(crate) own: Option<(PathBuf, PathBuf)>,
}

pub(crate) async fn connect(
    stream: TcpStream,
    host: &str,
    files: &Files,
) -> Result<TlsStream<TcpStream>, String> {
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|error| format!("{host} cannot be in a certificate: {error}"))?;
    let connector = TlsConnector::from(Arc::new(configuration(files)?));
    let connected = connector.connect(name, stream).await;
    connected.map_err(|error| format!("TLS fails: {error}; there are --cacert, --cert and --key"))
}

fn configuration(files: &Files) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    let trusted = match &files.trusted {
        Some(file) => certificates(file)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    roots.add_parsable_certificates(trusted);
    if roots.is_empty() {
        return Err("no authority is trusted; name one with --cacert".to_owned());
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    match &files.own {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let of = |error: String| format!("{}: {error}", key.display());
            let its_key = PrivateKeyDer::from_pem_file(key).map_err(|error| of(words(&error)))?;
            let configured = builder.with_client_auth_cert(certificates(certificate)?, its_key);
            configured.map_err(|error| of(error.to_string()))
        }
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let of = |error: pem::Error| format!("{}: {}", file.display(), words(&error));
    let found = CertificateDer::pem_file_iter(file).map_err(of)?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(of)?;
    match found.is_empty() {
        true => Err(format!("{}: there is no certificate in it", file.display())),
        false => Ok(found),
    }
}

fn words(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}
