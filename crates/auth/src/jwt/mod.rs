//! JSON web tokens: they name a user, are signed by a member or by another program that has the
//! key, and are verified by any member that has the key.
//!
//! In etcd: `--auth-token jwt,...`. The tokens are compatible with golang-jwt. The caller passes
//! the time, random bytes and the contents of the key files. A token's header must name the
//! configured method. Its claims are parsed only after its signature is verified.

mod ec;
mod error;
mod key;
mod keys;
mod method;
mod options;
mod pem;
mod signature;
mod verified;

use std::borrow::Cow;
use std::{fmt, io};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SecureRandom;
use serde::Deserialize;

pub use error::JwtError;
use keys::Keys;
use method::Method;
use options::Options;
pub use verified::VerifiedTokens;

/// Maximum length of a token, in bytes. It is far above the length of a usual token, and below the
/// default limit for a call's headers.
pub const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// The revision in a token must be below this number, 2^53. An `f64` represents every smaller
/// revision exactly, and the JSON number is read as an `f64`.
const NUMBER_END: f64 = 9_007_199_254_740_992.0;

/// Go's `time.Time` overflows at this number of seconds since 1970: 2^63 minus the seconds from the
/// year 1 to 1970, rounded down to an `f64`. etcd treats a token with a later expiry as expired.
const TIME_END: f64 = 9_223_371_974_719_178_752.0;

/// Signs and verifies tokens with one key.
pub struct JwtProvider {
    method: Method,
    ttl_seconds: u64,
    /// The first part of each token that this provider makes: the header, encoded in base64.
    header: String,
    keys: Keys,
}

/// The claims of a valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtClaims {
    pub username: String,
    /// The auth revision when the token was signed.
    pub revision: u64,
}

impl JwtProvider {
    /// Creates a provider. `options` is the text after `jwt,` in `--auth-token`.
    pub fn new(
        options: &str,
        read_file: &dyn Fn(&str) -> io::Result<Vec<u8>>,
    ) -> Result<JwtProvider, JwtError> {
        let options = Options::parse(options)?;
        let method = options.method()?;
        let ttl_seconds = options.ttl_seconds()?;
        let keys = Keys::load(method, &options, read_file)?;
        let header = format!(r#"{{"alg":"{}","typ":"JWT"}}"#, method.name());
        let header = URL_SAFE_NO_PAD.encode(header);
        Ok(JwtProvider { method, ttl_seconds, header, keys })
    }

    /// Returns true if [`JwtProvider::sign`] always fails, because there is only a public key.
    pub fn is_verify_only(&self) -> bool {
        self.keys.signing.is_none()
    }

    /// Makes a token. `now` is in seconds since 1970. Only RSA uses `random`. Fails if there is no
    /// private key, if no random bytes are available, or if the token would be too long.
    pub fn sign(
        &self,
        username: &str,
        revision: u64,
        now: u64,
        random: &dyn SecureRandom,
    ) -> Result<String, JwtError> {
        let key = self.keys.signing.as_ref().ok_or(JwtError::VerifyOnly)?;
        let exp = now.saturating_add(self.ttl_seconds);
        let claims = serde_json::json!({ "exp": exp, "revision": revision, "username": username });
        let mut token = format!("{}.", self.header);
        URL_SAFE_NO_PAD.encode_string(claims.to_string(), &mut token);
        let signature = key.sign(token.as_bytes(), random).ok_or(JwtError::Signing)?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        if token.len() > TOKEN_BYTES_MAX {
            let (name_bytes, allowed) = (username.len(), TOKEN_BYTES_MAX);
            return Err(JwtError::TokenTooLong { name_bytes, allowed });
        }
        Ok(token)
    }

    /// Returns the claims of a token, or `None` if the token is not valid now. `now` is in seconds
    /// since 1970.
    pub fn verify(&self, token: &str, now: u64) -> Option<JwtClaims> {
        self.verify_for(token, now).map(|(claims, _)| claims)
    }

    /// Like [`verify`](JwtProvider::verify), but also returns the first valid second of the token,
    /// and the first second after its validity.
    fn verify_for(&self, token: &str, now: u64) -> Option<(JwtClaims, (u64, u64))> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        if header != self.header && !self.is_other_header_of_method(header) {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        if !self.keys.verifying.verify(signed.as_bytes(), &signature) {
            return None;
        }
        let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
        let claims: Claims<'_> = parse_object(&claims)?;
        let (from, until) = claims.good_time();
        let is_good = from <= now && now < until;
        is_good.then(|| claims.into_public()).flatten().map(|claims| (claims, (from, until)))
    }

    /// Returns true if the header names the configured method. Another program may order the fields
    /// of the header differently or add some.
    fn is_other_header_of_method(&self, header: &str) -> bool {
        let Ok(header) = URL_SAFE_NO_PAD.decode(header) else { return false };
        parse_object(&header).is_some_and(|header: Header<'_>| header.alg == self.method.name())
    }
}

impl fmt::Debug for JwtProvider {
    /// The output omits the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtProvider")
            .field("method", &self.method.name())
            .field("ttl_seconds", &self.ttl_seconds)
            .field("is_verify_only", &self.is_verify_only())
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Header<'a> {
    #[serde(borrow)]
    alg: Cow<'a, str>,
}

/// The claims that are checked. As in golang-jwt, a time that is missing or 0 sets no limit, and a
/// time of another type is an error.
#[derive(Deserialize)]
struct Claims<'a> {
    #[serde(borrow)]
    username: Cow<'a, str>,
    revision: f64,
    /// The first second after the token's validity, in seconds since 1970.
    #[serde(default)]
    exp: f64,
    /// The first valid second, in seconds since 1970.
    #[serde(default)]
    nbf: f64,
}

impl Claims<'_> {
    /// Returns the first valid second of the token, and the first second after its validity.
    fn good_time(&self) -> (u64, u64) {
        // The conversion truncates fractions, and a negative time becomes 0.
        let until = match self.exp {
            0.0 => u64::MAX,
            exp if exp < TIME_END => exp as u64,
            _ => 0,
        };
        (self.nbf as u64, until)
    }

    /// Converts the claims for the caller. Returns `None` if the revision is below 0, or is 2^53 or
    /// more.
    fn into_public(self) -> Option<JwtClaims> {
        // As in etcd, a fraction is truncated.
        let is_revision = (0.0..NUMBER_END).contains(&self.revision);
        let username = self.username.into_owned();
        is_revision.then_some(JwtClaims { username, revision: self.revision as u64 })
    }
}

/// Parses a JSON object. Returns `None` if `json` is not an object with the fields of `T`. Without
/// the check for `{`, serde would also accept an array with the fields of the struct.
fn parse_object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Option<T> {
    let is_object = json.trim_ascii_start().first() == Some(&b'{');
    is_object.then(|| serde_json::from_slice(json).ok()).flatten()
}
