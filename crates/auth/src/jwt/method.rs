//! The methods for signing a token, with etcd's names, and the kind of key that each method needs.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// RSA with PKCS #1 v1.5.
    Rs(Hash),
    /// RSA with PSS.
    Ps(Hash),
    /// ECDSA; the curve determines the hash.
    Es(Curve),
    /// HMAC.
    Hs(Hash),
    /// Ed25519.
    EdDsa,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Curve {
    P256,
    P384,
    P521,
}

const METHODS: [(&str, Method); 13] = [
    ("RS256", Method::Rs(Hash::Sha256)),
    ("RS384", Method::Rs(Hash::Sha384)),
    ("RS512", Method::Rs(Hash::Sha512)),
    ("PS256", Method::Ps(Hash::Sha256)),
    ("PS384", Method::Ps(Hash::Sha384)),
    ("PS512", Method::Ps(Hash::Sha512)),
    ("ES256", Method::Es(Curve::P256)),
    ("ES384", Method::Es(Curve::P384)),
    ("ES512", Method::Es(Curve::P521)),
    ("HS256", Method::Hs(Hash::Sha256)),
    ("HS384", Method::Hs(Hash::Sha384)),
    ("HS512", Method::Hs(Hash::Sha512)),
    ("EdDSA", Method::EdDsa),
];

impl Method {
    pub(super) fn parse(name: &str) -> Option<Method> {
        METHODS.iter().find(|(known, _)| *known == name).map(|(_, method)| *method)
    }

    /// Returns the name of the method in `sign-method`, and in `alg` of a token's header.
    pub(super) fn name(self) -> &'static str {
        METHODS.iter().find(|(_, method)| *method == self).map_or("", |(name, _)| name)
    }

    pub(super) fn all_names() -> String {
        METHODS.map(|(name, _)| name).join(", ")
    }

    /// Returns the kind of key that the method needs, or `None` for HMAC, whose secret may be any
    /// bytes.
    pub(super) fn key_kind(self) -> Option<KeyKind> {
        match self {
            Method::Rs(_) | Method::Ps(_) => Some(KeyKind::Rsa),
            Method::Es(curve) => Some(KeyKind::Ec(curve)),
            Method::EdDsa => Some(KeyKind::Ed25519),
            Method::Hs(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyKind {
    Rsa,
    Ec(Curve),
    Ed25519,
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyKind::Rsa => "RSA",
            KeyKind::Ec(Curve::P256) => "ECDSA on curve P-256",
            KeyKind::Ec(Curve::P384) => "ECDSA on curve P-384",
            KeyKind::Ec(Curve::P521) => "ECDSA on curve P-521",
            KeyKind::Ed25519 => "Ed25519",
        })
    }
}
