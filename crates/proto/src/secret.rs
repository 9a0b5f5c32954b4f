//! Implements `Debug` for the messages that contain a password, its hash, or a token. The output
//! does not show the secret.
//!
//! Any code may print a message that it holds: in a log line, a panic, a failed test. So the secret
//! is hidden here, not in each place that prints a message. The output still shows whether there is
//! a secret. `build.rs` lists these messages, so that prost does not derive `Debug` for them.

use std::fmt::{self, Debug, Formatter};

use crate::authpb::User;
use crate::etcdserverpb::{
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest, AuthenticateResponse,
    InternalAuthenticateRequest,
};

/// Replaces a secret in the output. The field is true if the secret is not empty.
struct Hidden(bool);

impl Debug for Hidden {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { "\"***\"" } else { "\"\"" })
    }
}

impl Debug for User {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .field("password", &Hidden(!self.password.is_empty()))
            .field("roles", &self.roles)
            .field("options", &self.options)
            .finish()
    }
}

impl Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateRequest")
            .field("name", &self.name)
            .field("password", &Hidden(!self.password.is_empty()))
            .finish()
    }
}

impl Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateResponse")
            .field("header", &self.header)
            .field("token", &Hidden(!self.token.is_empty()))
            .finish()
    }
}

impl Debug for AuthUserAddRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthUserAddRequest")
            .field("name", &self.name)
            .field("password", &Hidden(!self.password.is_empty()))
            .field("options", &self.options)
            .field("hashed_password", &Hidden(!self.hashed_password.is_empty()))
            .finish()
    }
}

impl Debug for AuthUserChangePasswordRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthUserChangePasswordRequest")
            .field("name", &self.name)
            .field("password", &Hidden(!self.password.is_empty()))
            .field("hashed_password", &Hidden(!self.hashed_password.is_empty()))
            .finish()
    }
}

impl Debug for InternalAuthenticateRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("InternalAuthenticateRequest")
            .field("name", &self.name)
            .field("password", &Hidden(!self.password.is_empty()))
            .field("simple_token", &Hidden(!self.simple_token.is_empty()))
            .finish()
    }
}
