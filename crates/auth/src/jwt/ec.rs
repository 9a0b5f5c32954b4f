//! ECDSA on the three curves of the methods ES256, ES384 and ES512.
//!
//! RustCrypto is used for private keys, because ring would draw random bytes to make a key pair,
//! and would need the public key in the file. RustCrypto signs without random bytes, by RFC 6979.
//! ring verifies signatures, except on P-521, which ring does not support.

use p256::ecdsa::signature::Signer;

use super::method::Curve;

pub(super) enum EcPrivateKey {
    P256(p256::ecdsa::SigningKey),
    P384(p384::ecdsa::SigningKey),
    P521(p521::ecdsa::SigningKey),
}

impl EcPrivateKey {
    /// Creates a key from a big-endian scalar. As in Go, the scalar may have missing or extra
    /// leading zeros. Returns `None` if the scalar is not a private key of the curve.
    pub(super) fn from_scalar(curve: Curve, scalar: &[u8]) -> Option<EcPrivateKey> {
        let zeros = scalar.iter().take_while(|byte| **byte == 0).count();
        let scalar = &scalar[zeros..];
        let mut field = [0; 66];
        let field = &mut field[..curve.scalar_bytes()];
        let start = field.len().checked_sub(scalar.len())?;
        field[start..].copy_from_slice(scalar);
        Some(match curve {
            Curve::P256 => Self::P256(p256::ecdsa::SigningKey::from_slice(field).ok()?),
            Curve::P384 => Self::P384(p384::ecdsa::SigningKey::from_slice(field).ok()?),
            Curve::P521 => Self::P521(p521::ecdsa::SigningKey::from_slice(field).ok()?),
        })
    }

    pub(super) fn curve(&self) -> Curve {
        match self {
            Self::P256(_) => Curve::P256,
            Self::P384(_) => Curve::P384,
            Self::P521(_) => Curve::P521,
        }
    }

    /// Returns the uncompressed public point.
    pub(super) fn public_point(&self) -> Vec<u8> {
        match self {
            Self::P256(key) => key.verifying_key().to_sec1_point(false).as_bytes().to_vec(),
            Self::P384(key) => key.verifying_key().to_sec1_point(false).as_bytes().to_vec(),
            Self::P521(key) => key.verifying_key().to_sec1_point(false).as_bytes().to_vec(),
        }
    }

    /// Returns the two numbers of the signature, concatenated. The result `None` is as unlikely as
    /// guessing a key.
    pub(super) fn sign(&self, text: &[u8]) -> Option<Vec<u8>> {
        Some(match self {
            Self::P256(key) => {
                let signature: p256::ecdsa::Signature = key.try_sign(text).ok()?;
                signature.to_bytes().to_vec()
            }
            Self::P384(key) => {
                let signature: p384::ecdsa::Signature = key.try_sign(text).ok()?;
                signature.to_bytes().to_vec()
            }
            Self::P521(key) => {
                let signature: p521::ecdsa::Signature = key.try_sign(text).ok()?;
                signature.to_bytes().to_vec()
            }
        })
    }
}

impl Curve {
    fn scalar_bytes(self) -> usize {
        match self {
            Curve::P256 => 32,
            Curve::P384 => 48,
            Curve::P521 => 66,
        }
    }

    /// Returns true if the bytes are an uncompressed point of the curve. The point at infinity is
    /// not accepted.
    pub(super) fn has_point(self, point: &[u8]) -> bool {
        point.first() == Some(&4)
            && match self {
                Curve::P256 => p256::ecdsa::VerifyingKey::from_sec1_bytes(point).is_ok(),
                Curve::P384 => p384::ecdsa::VerifyingKey::from_sec1_bytes(point).is_ok(),
                Curve::P521 => p521::ecdsa::VerifyingKey::from_sec1_bytes(point).is_ok(),
            }
    }
}
