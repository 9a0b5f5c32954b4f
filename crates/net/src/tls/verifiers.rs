//! Which clients may connect, beyond what rustls checks?
//!
//! A certificate's number must not be revoked, and its name must be allowed. As in etcd, a list of
//! revoked certificates counts for all authorities and for each certificate of the chain, and the
//! signer of the list is not checked.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::certificate::{self, CertificateInfo};
use super::config::AllowedNames;

/// What is checked beyond rustls.
#[derive(Debug)]
pub(super) struct CertificatePolicy {
    pub(super) allowed: AllowedNames,
    pub(super) revoked: BTreeSet<Vec<u8>>,
}

impl CertificatePolicy {
    fn check(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(), Error> {
        for sent in [end_entity].into_iter().chain(intermediates) {
            let serial = certificate::serial(sent).map_err(|_| CertificateError::BadEncoding)?;
            if self.revoked.contains(&serial) {
                return Err(CertificateError::Revoked.into());
            }
        }
        if self.allows(end_entity)? {
            Ok(())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn allows(&self, end_entity: &CertificateDer<'_>) -> Result<bool, Error> {
        match &self.allowed {
            AllowedNames::Any => Ok(true),
            AllowedNames::CommonNames(names) => {
                let facts = CertificateInfo::parse(end_entity)
                    .map_err(|_| CertificateError::BadEncoding)?;
                Ok(names.contains(&facts.common_name))
            }
            AllowedNames::Hosts(hosts) => {
                let parsed = ParsedCertificate::try_from(end_entity)?;
                Ok(hosts.iter().any(|host| {
                    let name = ServerName::try_from(host.as_str());
                    name.is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
                }))
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct ClientVerifier {
    pub(super) library: Arc<dyn ClientCertVerifier>,
    pub(super) policy: CertificatePolicy,
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.library.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.library.verify_client_cert(end_entity, intermediates, now)?;
        self.policy.check(end_entity, intermediates)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.library.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.library.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.library.supported_verify_schemes()
    }
}

#[derive(Debug)]
pub(super) struct ServerVerifier {
    /// `None` for self-signed certificates: they are not checked, and there is no policy.
    pub(super) checks: Option<(Arc<dyn ServerCertVerifier>, CertificatePolicy)>,
    pub(super) provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some((library, rules)) = &self.checks else {
            return Ok(ServerCertVerified::assertion());
        };
        let verified = library.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        rules.check(end_entity, intermediates)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
