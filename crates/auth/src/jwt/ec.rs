//! ECDSA on the three curves of the methods ES256, ES384 and ES512.
//!
//! Private keys are those of RustCrypto, since ring draws random bytes to make a pair of keys and
//! needs the public key in the file. They sign without random bytes, by RFC 6979. Checking a
//! signature is left to ring, except on P-521, which it does not have.

use p256::ecdsa::signature::Signer;

use super::method::Curve;

pub(super) enum EcPrivateKey {
    P256(p256::ecdsa::SigningKey),
    P384(p384::ecdsa::SigningKey),
    P521(p521::ecdsa::SigningKey),
}

impl EcPrivateKey {
    /// The scalar is big-endian and may lack zeros in front, or have too many, as in Go.
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

    /// Not compressed.
    pub(super) fn public_point(&self) -> Vec<u8> {
        match self {
            Self::P256(key) => key.verifying_key().to_sec1_point(false).as_bytes().to_vec(),
            Self::P384(key) => key.verifying_key().to_sec1_point(false).as_bytes().to_vec(),
            Self::P521(key) => key.verifying_key().to_sec1_point(false).as_bytes().to_vec(),
        }
    }

    /// The signature's two numbers, one behind the other. `None` is as likely as a guessed key.
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

    /// Whether the bytes are a point of the curve, not compressed and not the point at infinity.
    pub(super) fn has_point(self, point: &[u8]) -> bool {
        point.first() == Some(&4)
            && match self {
                Curve::P256 => p256::ecdsa::VerifyingKey::from_sec1_bytes(point).is_ok(),
                Curve::P384 => p384::ecdsa::VerifyingKey::from_sec1_bytes(point).is_ok(),
                Curve::P521 => p521::ecdsa::VerifyingKey::from_sec1_bytes(point).is_ok(),
            }
    }
}
