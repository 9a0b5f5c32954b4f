//! Errors in the options of JSON web tokens, in their keys, and in signing a token.
//!
//! If etcd has a message for an error, our message starts with etcd's message.

use std::io;

/// An error of JSON web tokens. No message contains any byte of a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JwtError {
    #[error("auth: invalid auth options: {0:?} is not NAME=VALUE")]
    MalformedOption(String),

    #[error(
        "auth: invalid auth options: unknown option {0:?}; allowed are sign-method, pub-key, \
         priv-key, ttl"
    )]
    UnknownOption(String),

    #[error("auth: invalid auth options: {0} is given twice")]
    RepeatedOption(String),

    #[error("auth: invalid auth options: ttl={0:?} is not a duration above zero, as in 10m")]
    Ttl(String),

    #[error("auth: invalid auth signature method: sign-method is missing; allowed are {allowed}")]
    MissingMethod { allowed: String },

    #[error("auth: invalid auth signature method: sign-method={method:?}; allowed are {allowed}")]
    UnknownMethod { method: String, allowed: String },

    #[error("auth: missing key data: {method} needs {needed}")]
    MissingKey { method: &'static str, needed: &'static str },

    #[error("auth: {option}={path} cannot be read: {error}")]
    UnreadableKey { option: &'static str, path: String, error: io::Error },

    #[error("auth: {option}={path} is malformed: {reason}; expected {allowed}")]
    MalformedKey { option: &'static str, path: String, reason: &'static str, allowed: &'static str },

    #[error("auth: {option}={path} is a key for {found}, but {method} needs one for {needed}")]
    KeyOfOtherKind {
        option: &'static str,
        path: String,
        method: &'static str,
        found: String,
        needed: String,
    },

    #[error("auth: public and private keys don't match")]
    KeyMismatch,

    #[error("auth: token signing attempted with verify-only key")]
    VerifyOnly,

    #[error("auth: the token for a user name of {name_bytes} bytes is longer than {allowed} bytes")]
    TokenTooLong { name_bytes: usize, allowed: usize },

    /// No random bytes are available.
    #[error("auth: the token cannot be signed")]
    Signing,
}
