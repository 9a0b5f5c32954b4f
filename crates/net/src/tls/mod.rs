//! TLS, for clients and between members: it names the other end, and encrypts the connection.
//!
//! # The problem
//!
//! A key-value store that holds a cluster's secrets must know which client asks, and no host on the way may
//! read or change what is said. TLS does that, as long as it was set up as its owner believes: a
//! certificate that is silently not looked at is worse than none.
//!
//! # The idea
//!
//! The cryptography is rustls's. Here is what surrounds it: which files, which clients may connect, what is
//! logged, and when files are read again.
//!
//! ```text
//!   flags ─▶ Settings ─┬─▶ Incoming  (clients)   a connection in, a TLS stream out, or a line in
//!                      ├─▶ Incoming  (members)   the log
//!                      └─▶ Outgoing  (members, tools)   a URL in, a channel out
//!                             │
//!                          Watched: files ─▶ rustls's configuration, anew when a file changes
//! ```
//!
//! | file | its question |
//! |---|---|
//! | [`config`] | what did the owner say? |
//! | [`protocol`] | which versions and ciphers are there? |
//! | `files` | what is in the files, and what is wrong with them? |
//! | `watched` | has a file changed? |
//! | `self_signed` | what if there is no certificate, and there need be none? |
//! | `certificate` | what does a certificate say? |
//! | `rules` | which clients may connect, beyond what rustls checks? |
//! | `words` | what is said of a handshake that failed? |
//! | [`acceptor`] | which connections come in? |
//! | [`dialer`] | how is a member called? |
//!
//! # What holds
//!
//! * Whatever is wrong with the settings or the files is told at the start, with flag and file.
//! * Each connection is looked at from the beginning: no session is taken up again, so a certificate
//!   that is revoked or expired opens no new connection.
//! * A handshake has a time limit, and each waits in a task of its own.
//!
//! # What etcd does that is left out
//!
//! * Ciphers without forward secrecy, and curves and hashes that `ring` does not have (P-521, SHA-1).
//! * A certificate that is an authority itself (`CA:TRUE`) is not taken as a client's or a member's.

mod certificate;
mod files;
pub mod acceptor;
pub mod dialer;
pub mod protocol;
mod verifiers;
mod self_signed;
pub mod config;
mod file_backed;
mod messages;

use std::path::PathBuf;

pub use self::acceptor::{ClientName, TlsAcceptor};
pub use self::config::{CertificateFiles, FlagPath, TlsConfig, TlsInfo};
pub use self::dialer::Dialer;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read, or has something else in it.
    #[error("--{flag}: {}: {why}", path.display())]
    File {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// What is in the files does not fit together.
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
    /// No client certificate can be checked like this.
    #[error("TLS: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// A certificate cannot be made.
    #[error("a certificate cannot be made: {0}")]
    SelfSigned(#[from] rcgen::Error),
}
