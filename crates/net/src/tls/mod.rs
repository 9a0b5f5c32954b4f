//! TLS for clients and between members: flags, files, checks and logs around rustls. See
//! `docs/tls.md`.
//!
//! ```text
//!   flags ─▶ TlsConfig ─┬─▶ TlsAcceptor (clients)   connection in; TLS stream out, or a log line
//!                       ├─▶ TlsAcceptor (members)   the same, for other members
//!                       └─▶ Dialer (members, tools) URL in; channel out
//!
//!   each of the three has a FileBacked: files ─▶ rustls's configuration, rebuilt after a change
//! ```
//!
//! * A file that cannot be used is an error at startup. The error names the flag and the file.
//! * TLS resumption is disabled, so a revoked or expired certificate cannot be used for a new
//!   connection.
//! * An incoming handshake has a time limit, and runs in a separate task.

mod authority_leaf;
mod certificate;
mod files;
pub mod acceptor;
pub mod dialer;
pub mod protocol;
mod verifiers;
mod self_signed;
pub mod config;
mod reload;
mod messages;

use std::path::PathBuf;

pub use self::acceptor::{ClientName, TlsAcceptor};
pub use self::config::{CertificateFiles, FlagPath, TlsConfig, TlsInfo};
pub use self::dialer::{ConnectionRules, Dialer};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--{flag}: {}: {why}", path.display())]
    File {
        /// The flag without its dashes.
        flag: &'static str,
        path: PathBuf,
        why: String,
    },
    /// Rustls rejects the configuration, or there is no certificate.
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
    /// The verifier of clients' or servers' certificates cannot be built.
    #[error("TLS: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    #[error("a self-signed certificate cannot be created: {0}")]
    SelfSigned(#[from] rcgen::Error),
}
