//! TLS, for clients and between members: flags, files, checks and logs around rustls. See
//! `docs/tls.md`.
//!
//! ```text
//!   flags ─▶ TlsConfig ─┬─▶ TlsAcceptor (clients)   connection in; TLS stream out, or a log line
//!                       ├─▶ TlsAcceptor (members)
//!                       └─▶ Dialer (members, tools) URL in; channel out
//!                            └ FileBacked: files ─▶ rustls's configuration, again after a change
//! ```
//!
//! * What is wrong with a file is an error at the start that names flag and file.
//! * No session is resumed, so a revoked or expired certificate opens no new connection.
//! * A handshake has a time limit and a task of its own.

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
pub use self::dialer::Dialer;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--{flag}: {}: {why}", path.display())]
    File {
        /// Without its dashes.
        flag: &'static str,
        path: PathBuf,
        why: String,
    },
    /// The files do not fit together.
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
    /// The verifier of clients' certificates cannot be built.
    #[error("TLS: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    #[error("a certificate cannot be made: {0}")]
    SelfSigned(#[from] rcgen::Error),
}
