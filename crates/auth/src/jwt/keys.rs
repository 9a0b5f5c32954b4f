//! The keys of a provider: which files are required, and whether the keys match.

use super::error::JwtError;
use super::key::{PRIVATE_KEYS, PUBLIC_KEYS, PrivateKey, PublicKey};
use super::method::{Hash, Method};
use super::options::{KeyFile, Options, ReadFile};
use super::signature::{SigningKey, VerifyingKey, hmac_key};

pub(super) struct Keys {
    /// The key that signs tokens. `None` if there is only a public key.
    pub(super) signing: Option<SigningKey>,
    pub(super) verifying: VerifyingKey,
}

impl Keys {
    pub(super) fn load(
        method: Method,
        options: &Options<'_>,
        read_file: ReadFile<'_>,
    ) -> Result<Keys, JwtError> {
        let private = options.private_key(read_file)?;
        let public = options.public_key(read_file)?;
        match method {
            Method::Hs(hash) => Keys::secret(method, hash, private),
            _ => Keys::pair(method, private, public),
        }
    }

    /// Uses the bytes of the file in `priv-key` as the secret. Fails if the option is missing or
    /// the file is empty. The caller has also read the file in `pub-key`, if that option is given.
    /// This file is ignored.
    fn secret(method: Method, hash: Hash, file: Option<KeyFile<'_>>) -> Result<Keys, JwtError> {
        let missing = || JwtError::MissingKey { method: method.name(), needed: "priv-key" };
        let key = hmac_key(hash, &file.ok_or_else(missing)?.bytes);
        let signing = Some(SigningKey::Hmac(key.clone()));
        Ok(Keys { signing, verifying: VerifyingKey::Hmac(key) })
    }

    fn pair(
        method: Method,
        private: Option<KeyFile<'_>>,
        public: Option<KeyFile<'_>>,
    ) -> Result<Keys, JwtError> {
        let private = private.map(|file| read_private(method, &file)).transpose()?;
        let public = public.map(|file| read_public(method, &file)).transpose()?;
        match (private, public) {
            (None, None) => {
                let needed = "priv-key, or pub-key to verify only";
                Err(JwtError::MissingKey { method: method.name(), needed })
            }
            (None, Some((_, verifying))) => Ok(Keys { signing: None, verifying }),
            (Some((derived, _)), Some((given, _))) if derived != given => {
                Err(JwtError::KeyMismatch)
            }
            (Some((_, keys)), _) => Ok(keys),
        }
    }
}

fn read_private(method: Method, file: &KeyFile<'_>) -> Result<(PublicKey, Keys), JwtError> {
    let private = file.parse(PrivateKey::parse, PRIVATE_KEYS)?;
    let public = private.public_key();
    let other_kind = || file.of_other_kind(method, public.kind);
    let verifying = VerifyingKey::new(method, &public).ok_or_else(other_kind)?;
    let signing = Some(SigningKey::new(method, private).ok_or_else(other_kind)?);
    Ok((public, Keys { signing, verifying }))
}

fn read_public(method: Method, file: &KeyFile<'_>) -> Result<(PublicKey, VerifyingKey), JwtError> {
    let public = file.parse(PublicKey::parse, PUBLIC_KEYS)?;
    let verifying = VerifyingKey::new(method, &public);
    let verifying = verifying.ok_or_else(|| file.of_other_kind(method, public.kind))?;
    Ok((public, verifying))
}
