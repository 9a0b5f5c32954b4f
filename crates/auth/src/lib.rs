//! May this user do that? Users, roles, permissions and tokens: etcd's `server/auth`.
//!
//! ```text
//!   AuthStore ── state ──▶ AuthState   users, roles, enabled, revision: immutable, replaced whole
//!       │                     └─▶ KeyRanges   what a user may read and write, of all its roles
//!       └── tokens ─────▶ SimpleTokens or JwtProvider   which user is this?
//! ```
//!
//! * Users and roles are agreed through the log, and kept in etcd's buckets and format.
//! * The caller passes the time, what is random, and the files of keys: nothing here reads or draws
//!   them. Passwords come hashed; [`AuthStore::password_check`] alone leads to one.
//! * No password, hash or token is in a `Debug` output.
//!
//! `docs/auth.md` has the whole story.

mod bcrypt;
mod changes;
pub mod checks;
mod error;
mod jwt;
mod key_ranges;
pub mod password;
pub mod simple_tokens;
mod state;
mod store;

pub use changes::{ChangeError, is_change, is_read};
pub use error::{AuthRejection, Error, Result};
pub use jwt::{JwtClaims, JwtError, JwtProvider, TOKEN_BYTES_MAX, VerifiedTokens};
pub use state::{AuthInfo, AuthState, ROOT};
pub use store::{AuthChange, AuthConfig, AuthStore, TokenConfig, TokenProvider};
