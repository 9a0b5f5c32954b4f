//! Hashes passwords with bcrypt before they are proposed, and compares passwords with hashes. Both
//! operations are slow on purpose; the cost sets the time.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use crate::bcrypt::BcryptHash;
pub use crate::bcrypt::SALT_BYTES;
use crate::error::AuthRejection;

/// The default cost, the same as etcd's. Each increment doubles the work.
pub const BCRYPT_COST: u32 = 10;
/// Maximum length of a password, in bytes. bcrypt ignores further bytes, and etcd rejects a longer
/// password.
pub const PASSWORD_BYTES_MAX: usize = 72;

/// Compares a password with the stored hash of a user.
pub struct PasswordCheck {
    hash: Option<Bytes>,
    cost: u32,
    revision: u64,
}

/// The output omits the hash.
impl fmt::Debug for PasswordCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordCheck").field("revision", &self.revision).finish_non_exhaustive()
    }
}

impl PasswordCheck {
    pub(crate) fn new(hash: Option<Bytes>, cost: u32, revision: u64) -> PasswordCheck {
        // No password matches an empty hash.
        let hash = hash.filter(|hash| !hash.is_empty());
        PasswordCheck { hash, cost, revision }
    }

    /// Returns true if the user exists and has a password.
    pub fn has_hash(&self) -> bool {
        self.hash.is_some()
    }

    /// Checks the password. Returns the auth revision at which the user had this hash, or fails
    /// with `AuthFailed`. If the user does not exist or has an empty hash, the check hashes the
    /// password once at the configured cost before it fails. So the time does not reveal whether a
    /// user exists, unless the stored hash of the user has another cost or is not a bcrypt hash.
    /// Calls `pause` about every half millisecond; `pause` may unwind.
    pub fn run(&self, password: &[u8], pause: &mut dyn FnMut()) -> Result<u64, AuthRejection> {
        let Some(hash) = &self.hash else {
            let _ = BcryptHash::compute(password, self.cost, [0; SALT_BYTES], pause);
            return Err(AuthRejection::AuthFailed);
        };
        let hash = std::str::from_utf8(hash).ok().and_then(BcryptHash::parse);
        match hash {
            Some(hash) if hash.verify(password, pause) => Ok(self.revision),
            Some(_) | None => Err(AuthRejection::AuthFailed),
        }
    }
}

/// Returns the hash of a password as it is written to the log: bcrypt's text, encoded in base64.
/// The caller draws the salt. Calls `pause` about every half millisecond. Fails if the password is
/// too long or the cost is invalid.
pub fn hash(
    password: &[u8],
    cost: u32,
    salt: [u8; SALT_BYTES],
    pause: &mut dyn FnMut(),
) -> Result<String, HashError> {
    if password.len() > PASSWORD_BYTES_MAX {
        return Err(HashError::TooLong);
    }
    let hash = BcryptHash::compute(password, cost, salt, pause).ok_or(HashError::Cost(cost))?;
    Ok(STANDARD.encode(hash.to_string()))
}

#[derive(Debug, thiserror::Error)]
pub enum HashError {
    #[error("bcrypt: password length exceeds 72 bytes")]
    TooLong,
    #[error("invalid bcrypt cost {0}; it must be 4 to 31")]
    Cost(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(password: &str) -> Bytes {
        STANDARD
            .decode(hash(password.as_bytes(), 4, [7; SALT_BYTES], &mut || ()).unwrap())
            .unwrap()
            .into()
    }

    #[test]
    fn a_password_is_hashed_at_the_cost_that_was_set() {
        let text = String::from_utf8(stored("secret").to_vec()).unwrap();
        assert_eq!(text.split('$').nth(2), Some("04"), "{text}");
    }

    #[test]
    fn only_the_password_itself_is_accepted() {
        let check = PasswordCheck::new(Some(stored("secret")), 4, 3);
        assert_eq!(check.run(b"secret", &mut || ()), Ok(3));
        for wrong in [&b""[..], b"secre", b"secret ", b"Secret", b"\xff"] {
            assert_eq!(check.run(wrong, &mut || ()), Err(AuthRejection::AuthFailed));
        }
        for hash in [None, Some(Bytes::new()), Some(Bytes::from_static(b"\xff$2a$"))] {
            let check = PasswordCheck::new(hash, 4, 3);
            assert_eq!(check.run(b"", &mut || ()), Err(AuthRejection::AuthFailed));
        }
    }

    #[test]
    fn a_long_password_is_refused() {
        let message = hash(&[b'a'; 73], 4, [0; SALT_BYTES], &mut || ()).unwrap_err().to_string();
        assert_eq!(message, "bcrypt: password length exceeds 72 bytes");
        hash(&[b'a'; 72], 4, [0; SALT_BYTES], &mut || ()).unwrap();
    }
}
