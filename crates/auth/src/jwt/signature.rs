//! Signs and verifies JSON web tokens with the methods of [`Method`]: RSA, ECDSA, HMAC and Ed25519.

use p521::ecdsa::signature::Verifier;
use ring::hmac;
use ring::rand::SecureRandom;
use ring::signature::{
    self, Ed25519KeyPair, RsaEncoding, RsaKeyPair, UnparsedPublicKey, VerificationAlgorithm,
};

use super::ec::EcPrivateKey;
use super::key::{PrivateKey, PublicKey};
use super::method::{Curve, Hash, KeyKind, Method};

pub(super) enum SigningKey {
    Hmac(hmac::Key),
    Rsa(Box<RsaKeyPair>, &'static dyn RsaEncoding),
    Ec(Box<EcPrivateKey>),
    Ed25519(Box<Ed25519KeyPair>),
}

impl SigningKey {
    /// Creates the signing key of a method. Returns `None` if the method needs another kind of key.
    pub(super) fn new(method: Method, key: PrivateKey) -> Option<SigningKey> {
        match (method, key) {
            (Method::Rs(hash), PrivateKey::Rsa(pair)) => {
                Some(SigningKey::Rsa(pair, pkcs1_encoding(hash)))
            }
            (Method::Ps(hash), PrivateKey::Rsa(pair)) => {
                Some(SigningKey::Rsa(pair, pss_encoding(hash)))
            }
            (Method::Es(curve), PrivateKey::Ec(key)) if key.curve() == curve => {
                Some(SigningKey::Ec(key))
            }
            (Method::EdDsa, PrivateKey::Ed25519(pair)) => Some(SigningKey::Ed25519(pair)),
            _ => None,
        }
    }

    /// Signs a text. Returns `None` if no random bytes are available.
    pub(super) fn sign(&self, text: &[u8], random: &dyn SecureRandom) -> Option<Vec<u8>> {
        match self {
            SigningKey::Hmac(key) => Some(hmac::sign(key, text).as_ref().to_vec()),
            SigningKey::Rsa(pair, encoding) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(*encoding, random, text, &mut signature).ok()?;
                Some(signature)
            }
            SigningKey::Ec(key) => key.sign(text),
            SigningKey::Ed25519(pair) => Some(pair.sign(text).as_ref().to_vec()),
        }
    }
}

pub(super) enum VerifyingKey {
    Hmac(hmac::Key),
    Public(UnparsedPublicKey<Vec<u8>>),
    P521(Box<p521::ecdsa::VerifyingKey>),
}

impl VerifyingKey {
    /// Creates the verifying key of a method. Returns `None` if the method needs another kind of
    /// key.
    pub(super) fn new(method: Method, key: &PublicKey) -> Option<VerifyingKey> {
        let algorithm: &'static dyn VerificationAlgorithm = match (method, key.kind) {
            (Method::Rs(hash), KeyKind::Rsa) => pkcs1_verification(hash),
            (Method::Ps(hash), KeyKind::Rsa) => pss_verification(hash),
            (Method::Es(Curve::P256), KeyKind::Ec(Curve::P256)) => {
                &signature::ECDSA_P256_SHA256_FIXED
            }
            (Method::Es(Curve::P384), KeyKind::Ec(Curve::P384)) => {
                &signature::ECDSA_P384_SHA384_FIXED
            }
            (Method::Es(Curve::P521), KeyKind::Ec(Curve::P521)) => {
                let key = p521::ecdsa::VerifyingKey::from_sec1_bytes(&key.bytes).ok()?;
                return Some(VerifyingKey::P521(Box::new(key)));
            }
            (Method::EdDsa, KeyKind::Ed25519) => &signature::ED25519,
            _ => return None,
        };
        Some(VerifyingKey::Public(UnparsedPublicKey::new(algorithm, key.bytes.clone())))
    }

    pub(super) fn verify(&self, text: &[u8], signature: &[u8]) -> bool {
        match self {
            VerifyingKey::Hmac(key) => hmac::verify(key, text, signature).is_ok(),
            VerifyingKey::Public(key) => key.verify(text, signature).is_ok(),
            VerifyingKey::P521(key) => p521::ecdsa::Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify(text, &signature).is_ok()),
        }
    }
}

pub(super) fn hmac_key(hash: Hash, secret: &[u8]) -> hmac::Key {
    let algorithm = match hash {
        Hash::Sha256 => hmac::HMAC_SHA256,
        Hash::Sha384 => hmac::HMAC_SHA384,
        Hash::Sha512 => hmac::HMAC_SHA512,
    };
    hmac::Key::new(algorithm, secret)
}

fn pkcs1_encoding(hash: Hash) -> &'static dyn RsaEncoding {
    match hash {
        Hash::Sha256 => &signature::RSA_PKCS1_SHA256,
        Hash::Sha384 => &signature::RSA_PKCS1_SHA384,
        Hash::Sha512 => &signature::RSA_PKCS1_SHA512,
    }
}

/// Returns the encoding for RSA-PSS with a salt that is as long as the hash.
fn pss_encoding(hash: Hash) -> &'static dyn RsaEncoding {
    match hash {
        Hash::Sha256 => &signature::RSA_PSS_SHA256,
        Hash::Sha384 => &signature::RSA_PSS_SHA384,
        Hash::Sha512 => &signature::RSA_PSS_SHA512,
    }
}

fn pkcs1_verification(hash: Hash) -> &'static dyn VerificationAlgorithm {
    match hash {
        Hash::Sha256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        Hash::Sha384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        Hash::Sha512 => &signature::RSA_PKCS1_2048_8192_SHA512,
    }
}

fn pss_verification(hash: Hash) -> &'static dyn VerificationAlgorithm {
    match hash {
        Hash::Sha256 => &signature::RSA_PSS_2048_8192_SHA256,
        Hash::Sha384 => &signature::RSA_PSS_2048_8192_SHA384,
        Hash::Sha512 => &signature::RSA_PSS_2048_8192_SHA512,
    }
}
