//! May this user do that? Users, roles, permissions and tokens: etcd's `server/auth`.

mod jwt;

pub use jwt::{JwtClaims, JwtError, JwtProvider, TOKEN_BYTES_MAX};
