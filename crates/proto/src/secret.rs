//! `Debug` of the messages that have a password, its hash, or a token: without it.
//!
//! A message is printed by whatever holds one: a log line, a panic, a failed test. So it is left
//! out here, and not at each of those. That it is there can be seen. `build.rs` lists the messages.

use std::fmt::{self, Debug, Formatter};

use crate::authpb::User;
use crate::etcdserverpb::{
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest, AuthenticateResponse,
    InternalAuthenticateRequest,
};

/// What stands for a secret.
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
