//! JSON web tokens: which user it is, signed by a member, checked by any member with the key.
//!
//! etcd's `--auth-token jwt,...`, with tokens as golang-jwt makes and takes them. The time, random
//! bytes and the files of the keys come from the caller. What a token says is looked at only once
//! its signature is found good, and its method is the configured one, whatever its header asks for.

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

/// Far above any token that a member makes, and below what a header of a call may have.
pub const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// Numbers in JSON are exact below this: 2^53.
const NUMBER_END: f64 = 9_007_199_254_740_992.0;

/// Go's `time.Time` overflows at this number of seconds since 1970: 2^63 minus the seconds from the
/// year 1 to 1970, rounded down to a `f64`. etcd rejects a token with a later expiry as expired.
const TIME_END: f64 = 9_223_371_974_719_178_752.0;

/// Makes and checks tokens with one key.
pub struct JwtProvider {
    method: Method,
    ttl_seconds: u64,
    /// The first part of the tokens that this provider makes.
    header: String,
    keys: Keys,
}

/// What a good token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtClaims {
    pub username: String,
    /// The auth revision at which the token was made.
    pub revision: u64,
}

impl JwtProvider {
    /// `options` is what stands behind `jwt,` in `--auth-token`.
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

    /// Whether [`JwtProvider::sign`] always fails, because there is only a public key.
    pub fn is_verify_only(&self) -> bool {
        self.keys.signing.is_none()
    }

    /// `now` is in seconds since 1970. ECDSA, HMAC and Ed25519 draw nothing from `random`.
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

    /// `now` is in seconds since 1970. `None` for whatever is not a token that is good now.
    pub fn verify(&self, token: &str, now: u64) -> Option<JwtClaims> {
        self.verify_for(token, now).map(|(claims, _)| claims)
    }

    /// Also returns the first second at which the token is good, and the first at which it is not.
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

    /// Another program may order the header's members otherwise, or have more of them.
    fn is_other_header_of_method(&self, header: &str) -> bool {
        let Ok(header) = URL_SAFE_NO_PAD.decode(header) else { return false };
        parse_object(&header).is_some_and(|header: Header<'_>| header.alg == self.method.name())
    }
}

impl fmt::Debug for JwtProvider {
    /// Without the keys.
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

/// As in golang-jwt, a time that is missing or 0 is no limit, and one of another type an error.
#[derive(Deserialize)]
struct Claims<'a> {
    #[serde(borrow)]
    username: Cow<'a, str>,
    revision: f64,
    /// Seconds since 1970: the first at which the token is no longer good.
    #[serde(default)]
    exp: f64,
    /// Seconds since 1970: the first at which the token is good.
    #[serde(default)]
    nbf: f64,
}

impl Claims<'_> {
    /// The first second at which the token is good, and the first at which it is not.
    fn good_time(&self) -> (u64, u64) {
        // The conversion cuts fractions off, and a negative time becomes 0.
        let until = match self.exp {
            0.0 => u64::MAX,
            exp if exp < TIME_END => exp as u64,
            _ => 0,
        };
        (self.nbf as u64, until)
    }

    /// `None` if the revision is none.
    fn into_public(self) -> Option<JwtClaims> {
        // As in etcd a fraction is cut off.
        let is_revision = (0.0..NUMBER_END).contains(&self.revision);
        let username = self.username.into_owned();
        is_revision.then_some(JwtClaims { username, revision: self.revision as u64 })
    }
}

/// serde would take the members of an array for those of a struct, too.
fn parse_object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Option<T> {
    let is_object = json.trim_ascii_start().first() == Some(&b'{');
    is_object.then(|| serde_json::from_slice(json).ok()).flatten()
}
