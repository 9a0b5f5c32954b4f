//! The credentials of a request, which name its user.

use std::fmt;
use std::sync::Arc;

#[derive(Clone, Default)]
pub enum Credentials {
    #[default]
    None,
    /// The token in the request's metadata.
    Token(Arc<str>),
    /// The common name of the client's certificate. It is used only if there is no token.
    Certificate(Arc<str>),
}

/// Prints the variant's name, without the token or the certificate's name.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Credentials::None => "None",
            Credentials::Token(_) => "Token",
            Credentials::Certificate(_) => "Certificate",
        })
    }
}
