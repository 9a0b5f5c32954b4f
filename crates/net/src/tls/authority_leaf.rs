//! Checks certificates of authorities that servers and clients present as their own.
//!
//! A certificate from a tool such as `openssl req -x509` is often marked as an authority's
//! certificate (CA:TRUE), although a server uses it as its own. Go and etcd accept such a
//! certificate. rustls does not, and it has no setting for this, so this module checks the path of
//! such a certificate.
//!
//! ```text
//!   leaf, CA:TRUE ── signed by ──▶ intermediate ── signed by ──▶ trusted authority
//! ```
//!
//! * The leaf and each intermediate certificate must be valid now, and must be usable for a server
//!   or for a client, as the caller requires.
//! * Each intermediate must be an authority that may sign certificates, and the path must have no
//!   more intermediates below this authority than its certificate allows.
//! * Certificates with name constraints or an unknown critical extension are rejected.
//! * rustls checks all other certificates.

use std::time::Duration;

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::{CertificateError, Error, OtherError};
use x509_cert::certificate::{Certificate, TbsCertificate};
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::oid::AssociatedOid;
use x509_cert::der::oid::db::rfc5280::{
    ANY_EXTENDED_KEY_USAGE, ID_KP_CLIENT_AUTH, ID_KP_SERVER_AUTH,
};
use x509_cert::der::{self, Any, Decode, Encode, Tag};
use x509_cert::ext::pkix::{
    BasicConstraints, ExtendedKeyUsage, KeyUsage, NameConstraints, SubjectAltName,
};
use x509_cert::spki::SubjectPublicKeyInfoOwned;

/// Maximum number of signatures that are checked for one handshake, whatever certificates were
/// sent.
const SIGNATURES_MAX: usize = 32;
const INTERMEDIATES_MAX: u8 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Server,
    Client,
}

/// Returns true if the certificate belongs to an authority (CA:TRUE). Returns false if it is
/// unreadable: rustls reports such a certificate.
pub(super) fn is_authority(leaf: &CertificateDer<'_>) -> bool {
    Certificate::from_der(leaf).is_ok_and(|leaf| {
        let constraints = leaf.tbs_certificate().get_extension::<BasicConstraints>();
        matches!(constraints, Ok(Some((_, BasicConstraints { ca: true, .. }))))
    })
}

/// Checks a leaf that is the certificate of an authority (see [`is_authority`]), and its path to a
/// trusted authority. Does not check the names in the leaf.
pub(super) fn verify(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    anchors: &[TrustAnchor<'_>],
    purpose: Purpose,
    now: UnixTime,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<(), Error> {
    let parse = |der: &CertificateDer<'_>| Certificate::from_der(der).map_err(bad_encoding);
    let leaf = parse(leaf)?;
    let intermediates = intermediates.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let mut search = PathSearch { intermediates, anchors, purpose, now, algorithms, signatures: 0 };
    search.check_usable(&leaf)?;
    search.find_issuer(&leaf, 0)
}

struct PathSearch<'p> {
    intermediates: Vec<Certificate>,
    anchors: &'p [TrustAnchor<'p>],
    purpose: Purpose,
    now: UnixTime,
    algorithms: &'p WebPkiSupportedAlgorithms,
    /// Number of signatures that were checked.
    signatures: usize,
}

impl PathSearch<'_> {
    /// Finds a path from the certificate to a trusted authority, or fails if there is none. `depth`
    /// is the number of intermediate certificates that the path has so far, 0 for the leaf.
    fn find_issuer(&mut self, certificate: &Certificate, depth: u8) -> Result<(), Error> {
        let issuer = certificate.tbs_certificate().issuer().to_der().map_err(bad_encoding)?;
        let mut failure = Error::from(CertificateError::UnknownIssuer);
        for anchor in self.anchors {
            if sequence(&anchor.subject)? != issuer {
                continue;
            }
            if anchor.name_constraints.is_some() {
                failure = has_name_constraints();
                continue;
            }
            let key = sequence(&anchor.subject_public_key_info)?;
            let key = SubjectPublicKeyInfoOwned::from_der(&key).map_err(bad_encoding)?;
            match self.check_signature(certificate, &key) {
                Ok(()) => return Ok(()),
                Err(error) => failure = error,
            }
        }
        if depth == INTERMEDIATES_MAX {
            return Err(failure);
        }
        for at in 0..self.intermediates.len() {
            let candidate = self.intermediates[at].clone();
            if candidate.tbs_certificate().subject().to_der().map_err(bad_encoding)? != issuer {
                continue;
            }
            let key = candidate.tbs_certificate().subject_public_key_info().clone();
            let found = self
                .check_signature(certificate, &key)
                .and_then(|()| self.check_usable(&candidate))
                .and_then(|()| check_may_sign(candidate.tbs_certificate(), depth))
                .and_then(|()| self.find_issuer(&candidate, depth + 1));
            match found {
                Ok(()) => return Ok(()),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Fails unless the certificate is valid now and usable for the purpose. Also fails if it has
    /// name constraints or an unknown critical extension.
    fn check_usable(&self, certificate: &Certificate) -> Result<(), Error> {
        let content = certificate.tbs_certificate();
        let (validity, now) = (content.validity(), Duration::from_secs(self.now.as_secs()));
        if now < validity.not_before.to_unix_duration() {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > validity.not_after.to_unix_duration() {
            return Err(CertificateError::Expired.into());
        }
        for extension in content.extensions().into_iter().flatten() {
            if extension.extn_id == NameConstraints::OID {
                return Err(has_name_constraints());
            }
            if extension.critical && !UNDERSTOOD.contains(&extension.extn_id) {
                return Err(CertificateError::UnhandledCriticalExtension.into());
            }
        }
        let wanted = match self.purpose {
            Purpose::Server => ID_KP_SERVER_AUTH,
            Purpose::Client => ID_KP_CLIENT_AUTH,
        };
        let usages = content.get_extension::<ExtendedKeyUsage>().map_err(bad_encoding)?;
        let allows = usages.is_none_or(|(_, ExtendedKeyUsage(usages))| {
            usages.contains(&wanted) || usages.contains(&ANY_EXTENDED_KEY_USAGE)
        });
        if allows { Ok(()) } else { Err(CertificateError::InvalidPurpose.into()) }
    }

    fn check_signature(
        &mut self,
        certificate: &Certificate,
        key: &SubjectPublicKeyInfoOwned,
    ) -> Result<(), Error> {
        self.signatures += 1;
        let content = certificate.tbs_certificate();
        let algorithm = certificate.signature_algorithm();
        if self.signatures > SIGNATURES_MAX || content.signature() != algorithm {
            return Err(CertificateError::BadEncoding.into());
        }
        let signed = content.to_der().map_err(bad_encoding)?;
        let signature = certificate.signature().as_bytes().unwrap_or_default();
        let public_key = key.subject_public_key.as_bytes().unwrap_or_default();
        let algorithm = algorithm.to_der().map_err(bad_encoding)?;
        let kind = key.algorithm.to_der().map_err(bad_encoding)?;
        for known in self.algorithms.all {
            let is_for_key = sequence(known.public_key_alg_id().as_ref())? == kind;
            if is_for_key && sequence(known.signature_alg_id().as_ref())? == algorithm {
                let verified = known.verify_signature(public_key, &signed, signature);
                return verified.map_err(|_| CertificateError::BadSignature.into());
            }
        }
        Err(CertificateError::BadSignature.into())
    }
}

/// The extensions that may be critical.
const UNDERSTOOD: [ObjectIdentifier; 4] =
    [BasicConstraints::OID, KeyUsage::OID, ExtendedKeyUsage::OID, SubjectAltName::OID];

/// Fails unless the certificate belongs to an authority that may sign certificates and allows
/// `below` intermediates between itself and the leaf.
fn check_may_sign(issuer: &TbsCertificate, below: u8) -> Result<(), Error> {
    let constraints = issuer.get_extension::<BasicConstraints>().map_err(bad_encoding)?;
    let Some((_, BasicConstraints { ca: true, path_len_constraint })) = constraints else {
        return Err(CertificateError::UnknownIssuer.into());
    };
    let usage = issuer.get_extension::<KeyUsage>().map_err(bad_encoding)?;
    let may_sign = usage.is_none_or(|(_, usage)| usage.key_cert_sign());
    let has_room = path_len_constraint.is_none_or(|most| below <= most);
    if may_sign && has_room { Ok(()) } else { Err(CertificateError::UnknownIssuer.into()) }
}

/// Puts the tag and the length of a DER sequence in front of `content`. rustls omits both from the
/// names and keys of a trusted authority.
fn sequence(content: &[u8]) -> Result<Vec<u8>, Error> {
    let whole = Any::new(Tag::Sequence, content).and_then(|any| any.to_der());
    whole.map_err(bad_encoding)
}

fn bad_encoding(_: der::Error) -> Error {
    CertificateError::BadEncoding.into()
}

fn has_name_constraints() -> Error {
    let reason =
        "name constraints of an authority are not supported for a certificate with CA:TRUE";
    CertificateError::Other(OtherError(std::sync::Arc::new(std::io::Error::other(reason)))).into()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use rcgen::{
        BasicConstraints as Depth, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer,
        KeyPair, KeyUsagePurpose, SignatureAlgorithm,
    };
    use rustls::RootCertStore;
    use rustls::crypto::ring;

    use super::*;

    struct Made {
        der: CertificateDer<'static>,
        issuer: Issuer<'static, KeyPair>,
    }

    fn params(name: &str, is_ca: IsCa) -> CertificateParams {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = is_ca;
        params
    }

    fn authority(name: &str) -> CertificateParams {
        params(name, IsCa::Ca(Depth::Unconstrained))
    }

    fn self_signed_with(params: CertificateParams, algorithm: &'static SignatureAlgorithm) -> Made {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        Made { der, issuer: Issuer::new(params, key) }
    }

    fn self_signed(params: CertificateParams) -> Made {
        self_signed_with(params, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    fn signed(params: CertificateParams, by: &Made) -> Made {
        let key = KeyPair::generate().unwrap();
        let der = params.signed_by(&key, &by.issuer).unwrap().der().clone();
        Made { der, issuer: Issuer::new(params, key) }
    }

    fn verified(leaf: &Made, sent: &[&Made], trusted: &[&Made]) -> Result<(), String> {
        verified_for(Purpose::Client, leaf, sent, trusted)
    }

    fn verified_for(
        purpose: Purpose,
        leaf: &Made,
        sent: &[&Made],
        trusted: &[&Made],
    ) -> Result<(), String> {
        assert!(is_authority(&leaf.der));
        let mut roots = RootCertStore::empty();
        trusted.iter().for_each(|made| roots.add(made.der.clone()).unwrap());
        let sent: Vec<_> = sent.iter().map(|made| made.der.clone()).collect();
        let algorithms = ring::default_provider().signature_verification_algorithms;
        verify(&leaf.der, &sent, &roots.roots, purpose, UnixTime::now(), &algorithms)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn one_that_signed_itself_is_accepted_if_it_is_trusted() {
        for algorithm in
            [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519]
        {
            let own = self_signed_with(authority("own"), algorithm);
            assert_eq!(verified(&own, &[], &[&own]), Ok(()));
            // `other` has the same name as `own`, but another key.
            let other = self_signed_with(authority("own"), algorithm);
            let error = verified(&own, &[], &[&other]).unwrap_err();
            assert!(error.contains("BadSignature"), "{error}");
            let stranger = self_signed_with(authority("stranger"), algorithm);
            let error = verified(&own, &[&own], &[&stranger]).unwrap_err();
            assert!(error.contains("Issuer") || error.contains("Signature"), "{error}");
        }
    }

    #[test]
    fn a_path_over_intermediates_is_found() {
        let root = self_signed(authority("root"));
        let (first, second) =
            (signed(authority("first"), &root), signed(authority("second"), &root));
        let leaf = signed(authority("leaf"), &second);
        assert_eq!(verified(&leaf, &[&first, &second], &[&root]), Ok(()));
        assert!(verified(&leaf, &[&first], &[&root]).is_err());
        assert!(verified(&leaf, &[], &[&root]).is_err());
        // An authority that allows no intermediates below it may still sign a leaf.
        let narrow = signed(params("narrow", IsCa::Ca(Depth::Constrained(0))), &root);
        let leaf = signed(authority("leaf"), &narrow);
        assert_eq!(verified(&leaf, &[&narrow], &[&root]), Ok(()));
        let below = signed(authority("below"), &narrow);
        let leaf = signed(authority("leaf"), &below);
        assert!(verified(&leaf, &[&narrow, &below], &[&root]).is_err());
    }

    #[test]
    fn an_issuer_must_be_allowed_to_sign() {
        let root = self_signed(authority("root"));
        let mut of_signatures = authority("signatures");
        of_signatures.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        for issuer in [params("server", IsCa::ExplicitNoCa), of_signatures] {
            let issuer = signed(issuer, &root);
            let leaf = signed(authority("leaf"), &issuer);
            let error = verified(&leaf, &[&issuer], &[&root]).unwrap_err();
            assert!(error.contains("UnknownIssuer"), "{error}");
        }
    }

    #[test]
    fn purpose_and_time_are_checked() {
        let mut for_servers = authority("own");
        for_servers.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let own = self_signed(for_servers);
        assert_eq!(verified_for(Purpose::Server, &own, &[], &[&own]), Ok(()));
        assert!(verified_for(Purpose::Client, &own, &[], &[&own]).is_err());
        for (from, to, message) in [(1, 2, "NotValidYet"), (-2, -1, "Expired")] {
            let day = |days: i64| {
                let now = SystemTime::now();
                let offset = Duration::from_secs(days.unsigned_abs() * 24 * 60 * 60);
                if days > 0 { now + offset } else { now - offset }
            };
            let mut params = authority("own");
            (params.not_before, params.not_after) = (day(from).into(), day(to).into());
            let own = self_signed(params);
            let error = verified(&own, &[], &[&own]).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn any_other_certificate_is_for_rustls() {
        let server = self_signed(params("server", IsCa::NoCa));
        assert!(!is_authority(&server.der));
        assert!(!is_authority(&CertificateDer::from(vec![1, 2, 3])));
    }
}
