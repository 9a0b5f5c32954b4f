//! Users, roles, permissions and tokens in Clearlane, as in etcd: may this user do this?
//!
//! ```text
//!   AuthStore ── state ──▶ AuthState   users, roles, enabled, revision: immutable, replaced whole
//!       │                     └─▶ KeyRanges   the keys a user may read and write, by its roles
//!       └── tokens ─────▶ SimpleTokens or JwtProvider   which user is this?
//! ```
//!
//! * All members agree on users and roles through the log. Users and roles are stored in etcd's
//!   buckets and format.
//! * The caller passes the time, random bytes, and the contents of key files. This crate reads no
//!   clock and no file, and draws no random bytes.
//! * This server writes passwords to the log and to the store only as hashes. Other crates can use
//!   the hash of a user only through [`AuthStore::password_check`], which does not reveal it.
//! * The `Debug` output of a public type contains no password, no hash and no token.
//!
//! `docs/auth.md` explains the design.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(feature = "jwt"), allow(irrefutable_let_patterns, reason = "one kind of tokens"))]

mod bcrypt;
mod changes;
pub mod checks;
mod error;
#[cfg(feature = "jwt")]
mod jwt;
mod key_ranges;
pub mod password;
pub mod simple_tokens;
mod state;
mod store;

pub use changes::{ChangeError, is_change, is_read};
pub use error::{AuthRejection, Error, Result};
#[cfg(feature = "jwt")]
pub use jwt::{JwtClaims, JwtError, JwtProvider, TOKEN_BYTES_MAX, VerifiedTokens};
pub use state::{AuthInfo, AuthState, ROOT};
pub use store::{AuthChange, AuthConfig, AuthStore, TokenConfig, TokenProvider};
