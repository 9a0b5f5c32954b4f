//! Parses keys from files: determines the kind of each key, and checks that the key is valid. The
//! secret of HMAC may be any bytes, so it is not parsed here.
//!
//! A file is PEM. As in Go, its label is ignored. A private key is PKCS #1 (RSA), SEC 1 (ECDSA) or
//! PKCS #8. A public key is a SubjectPublicKeyInfo, a certificate or PKCS #1 (RSA).

use ring::signature::{Ed25519KeyPair, KeyPair, RsaKeyPair};
use x509_cert::Certificate;
use x509_cert::der::asn1::{AnyRef, ContextSpecific, ObjectIdentifier, OctetStringRef, UintRef};
use x509_cert::der::oid::db::rfc5912::{
    ID_EC_PUBLIC_KEY, RSA_ENCRYPTION, SECP_256_R_1, SECP_384_R_1, SECP_521_R_1,
};
use x509_cert::der::oid::db::rfc8410::ID_ED_25519;
use x509_cert::der::{self, Decode, Reader, SliceReader, Tag, TagNumber, Tagged};
use x509_cert::spki::{AlgorithmIdentifierRef, SubjectPublicKeyInfoOwned};

use super::ec::EcPrivateKey;
use super::method::{Curve, KeyKind};
use super::pem;

pub(super) const PRIVATE_KEYS: &str =
    "one private key in PEM, not encrypted: PKCS #1 (RSA), SEC 1 (ECDSA) or PKCS #8";
pub(super) const PUBLIC_KEYS: &str =
    "one public key in PEM: a SubjectPublicKeyInfo, a certificate or PKCS #1 (RSA)";

const NOT_A_KEY: &str = "not a key of a known kind";
const BAD_RSA: &str = "not a valid RSA key of 2048 to 4096 bits with an exponent of at least 65537";
const BAD_RSA_PUBLIC: &str = "not a valid RSA key of 2048 to 8192 bits";
const BAD_EC: &str = "not a valid ECDSA key";
const BAD_ED25519: &str = "not a valid Ed25519 key";

/// The error is the reason why a file is not a key.
type Result<T> = std::result::Result<T, &'static str>;

pub(super) enum PrivateKey {
    Rsa(Box<RsaKeyPair>),
    Ec(Box<EcPrivateKey>),
    Ed25519(Box<Ed25519KeyPair>),
}

impl PrivateKey {
    pub(super) fn parse(file: &[u8]) -> Result<PrivateKey> {
        let der = pem::first_block(file)?;
        // The tag after the version shows the format: a sequence in PKCS #8, the key itself in SEC
        // 1, and the modulus in PKCS #1.
        match second_tag(&der).map_err(|_| NOT_A_KEY)? {
            Tag::Sequence => PrivateKey::parse_pkcs8(&der),
            Tag::OctetString => parse_sec1(&der, None).map(PrivateKey::Ec),
            Tag::Integer => {
                let pair = RsaKeyPair::from_der(&der).map_err(|_| BAD_RSA)?;
                Ok(PrivateKey::Rsa(Box::new(pair)))
            }
            _ => Err(NOT_A_KEY),
        }
    }

    fn parse_pkcs8(der: &[u8]) -> Result<PrivateKey> {
        let (algorithm, key) = pkcs8_parts(der).map_err(|_| NOT_A_KEY)?;
        if algorithm.oid == RSA_ENCRYPTION {
            let pair = RsaKeyPair::from_pkcs8(der).map_err(|_| BAD_RSA)?;
            Ok(PrivateKey::Rsa(Box::new(pair)))
        } else if algorithm.oid == ID_EC_PUBLIC_KEY {
            let curve = algorithm.parameters_oid().map_err(|_| BAD_EC)?;
            parse_sec1(key, Some(curve)).map(PrivateKey::Ec)
        } else if algorithm.oid == ID_ED_25519 {
            let seed = <&OctetStringRef>::from_der(key).map_err(|_| BAD_ED25519)?;
            let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_bytes());
            Ok(PrivateKey::Ed25519(Box::new(pair.map_err(|_| BAD_ED25519)?)))
        } else {
            Err(NOT_A_KEY)
        }
    }

    pub(super) fn public_key(&self) -> PublicKey {
        match self {
            PrivateKey::Rsa(pair) => {
                PublicKey { kind: KeyKind::Rsa, bytes: pair.public().as_ref().to_vec() }
            }
            PrivateKey::Ec(key) => {
                PublicKey { kind: KeyKind::Ec(key.curve()), bytes: key.public_point() }
            }
            PrivateKey::Ed25519(pair) => {
                let bytes = pair.public_key().as_ref().to_vec();
                PublicKey { kind: KeyKind::Ed25519, bytes }
            }
        }
    }
}

/// A public key in ring's format: PKCS #1 for RSA, a point for ECDSA, 32 bytes for Ed25519.
#[derive(PartialEq, Eq)]
pub(super) struct PublicKey {
    pub(super) kind: KeyKind,
    pub(super) bytes: Vec<u8>,
}

impl PublicKey {
    pub(super) fn parse(file: &[u8]) -> Result<PublicKey> {
        let der = pem::first_block(file)?;
        if let Ok(info) = SubjectPublicKeyInfoOwned::from_der(&der) {
            return PublicKey::from_info(&info);
        }
        if let Ok(certificate) = Certificate::from_der(&der) {
            return PublicKey::from_info(certificate.tbs_certificate().subject_public_key_info());
        }
        match pkcs1_parts(&der) {
            Ok(_) => PublicKey::from_pkcs1(&der),
            Err(_) => Err(NOT_A_KEY),
        }
    }

    fn from_info(info: &SubjectPublicKeyInfoOwned) -> Result<PublicKey> {
        let key = info.subject_public_key.as_bytes().ok_or(NOT_A_KEY)?;
        let algorithm = &info.algorithm;
        if algorithm.oid == RSA_ENCRYPTION {
            PublicKey::from_pkcs1(key)
        } else if algorithm.oid == ID_EC_PUBLIC_KEY {
            let curve = algorithm.parameters.as_ref().ok_or(BAD_EC)?.decode_as();
            let curve = curve_of(curve.map_err(|_| BAD_EC)?)?;
            let is_point = curve.has_point(key);
            is_point.then(|| PublicKey::new(KeyKind::Ec(curve), key)).ok_or(BAD_EC)
        } else if algorithm.oid == ID_ED_25519 {
            let is_whole = key.len() == ring::signature::ED25519_PUBLIC_KEY_LEN;
            is_whole.then(|| PublicKey::new(KeyKind::Ed25519, key)).ok_or(BAD_ED25519)
        } else {
            Err(NOT_A_KEY)
        }
    }

    /// Parses an RSA public key. Makes the checks that ring makes only when it verifies a
    /// signature, so that the server does not start with a key that ring rejects. The exponent may
    /// have 32 bits, one bit less than ring allows.
    fn from_pkcs1(der: &[u8]) -> Result<PublicKey> {
        let (modulus, exponent) = pkcs1_parts(der).map_err(|_| BAD_RSA_PUBLIC)?;
        let bits =
            modulus.len() * 8 - modulus.first().map_or(0, |byte| byte.leading_zeros() as usize);
        let is_odd = |number: &[u8]| number.last().is_some_and(|byte| byte % 2 == 1);
        let is_exponent = exponent.len() <= 4 && is_odd(exponent) && exponent != [1];
        if !(2048..=8192).contains(&bits) || !is_odd(modulus) || !is_exponent {
            return Err(BAD_RSA_PUBLIC);
        }
        Ok(PublicKey::new(KeyKind::Rsa, der))
    }

    fn new(kind: KeyKind, bytes: &[u8]) -> PublicKey {
        PublicKey { kind, bytes: bytes.to_vec() }
    }
}

/// Parses an ECPrivateKey. Ignores the public key in it, because the private key determines it.
fn parse_sec1(der: &[u8], curve: Option<ObjectIdentifier>) -> Result<Box<EcPrivateKey>> {
    let (scalar, own_curve) = sec1_parts(der).map_err(|_| BAD_EC)?;
    let curve = curve_of(curve.or(own_curve).ok_or(BAD_EC)?)?;
    EcPrivateKey::from_scalar(curve, scalar).map(Box::new).ok_or(BAD_EC)
}

fn curve_of(oid: ObjectIdentifier) -> Result<Curve> {
    match oid {
        SECP_256_R_1 => Ok(Curve::P256),
        SECP_384_R_1 => Ok(Curve::P384),
        SECP_521_R_1 => Ok(Curve::P521),
        _ => Err("its curve is not P-256, P-384 or P-521"),
    }
}

fn second_tag(der: &[u8]) -> der::Result<Tag> {
    SliceReader::new(der)?.sequence(|parts| {
        parts.decode::<AnyRef<'_>>()?;
        let second = parts.decode::<AnyRef<'_>>()?;
        skip_rest(parts)?;
        Ok(second.tag())
    })
}

/// Splits a PrivateKeyInfo into the algorithm and the key in this algorithm's format.
fn pkcs8_parts(der: &[u8]) -> der::Result<(AlgorithmIdentifierRef<'_>, &[u8])> {
    SliceReader::new(der)?.sequence(|parts| {
        parts.decode::<u8>()?;
        let algorithm = parts.decode()?;
        let key = parts.decode::<&OctetStringRef>()?;
        skip_rest(parts)?;
        Ok((algorithm, key.as_bytes()))
    })
}

/// Splits an ECPrivateKey into the scalar and the curve. The curve is `None` if the data does not
/// name it.
fn sec1_parts(der: &[u8]) -> der::Result<(&[u8], Option<ObjectIdentifier>)> {
    SliceReader::new(der)?.sequence(|parts| {
        parts.decode::<u8>()?;
        let scalar = parts.decode::<&OctetStringRef>()?;
        let curve = ContextSpecific::<ObjectIdentifier>::decode_explicit(parts, TagNumber(0))?;
        skip_rest(parts)?;
        Ok((scalar.as_bytes(), curve.map(|curve| curve.value)))
    })
}

/// Splits an RSAPublicKey into the modulus and the exponent.
fn pkcs1_parts(der: &[u8]) -> der::Result<(&[u8], &[u8])> {
    let mut reader = SliceReader::new(der)?;
    let parts = reader.sequence(|parts| {
        let modulus = parts.decode::<UintRef<'_>>()?;
        let exponent = parts.decode::<UintRef<'_>>()?;
        Ok::<_, der::Error>((modulus.as_bytes(), exponent.as_bytes()))
    })?;
    reader.finish()?;
    Ok(parts)
}

fn skip_rest<'a>(parts: &mut impl Reader<'a>) -> der::Result<()> {
    parts.drain(parts.remaining_len())
}
