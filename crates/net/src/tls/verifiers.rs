//! Checks of certificates in addition to rustls's checks.
//!
//! The serial number must not be revoked, and the name must be allowed. As in etcd, a list of
//! revoked certificates applies to all authorities and to each certificate of the chain, and the
//! signer of the list is not checked.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};

use super::authority_leaf::{self, Purpose};
use super::certificate::{self, CertificateInfo};
use super::config::AllowedNames;

/// The additional checks: which names are allowed, and which serial numbers have been revoked.
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
    pub(super) trust: Trust,
    pub(super) policy: CertificatePolicy,
}

/// Checks leaf certificates of authorities, which rustls does not accept: see [`authority_leaf`].
#[derive(Debug)]
pub(super) struct Trust {
    pub(super) roots: Arc<RootCertStore>,
    pub(super) provider: Arc<CryptoProvider>,
}

impl Trust {
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        purpose: Purpose,
        now: UnixTime,
    ) -> Result<(), Error> {
        let (anchors, provider) = (&self.roots.roots, &self.provider);
        let algorithms = &provider.signature_verification_algorithms;
        authority_leaf::verify(end_entity, intermediates, anchors, purpose, now, algorithms)
    }
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
        if authority_leaf::is_authority(end_entity) {
            self.trust.verify(end_entity, intermediates, Purpose::Client, now)?;
        } else {
            self.library.verify_client_cert(end_entity, intermediates, now)?;
        }
        self.policy.check(end_entity, intermediates)?;
        Ok(ClientCertVerified::assertion())
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
    /// The checks. `None` if nothing is checked: members create their own certificates and trust no
    /// authority, or a tool was configured to skip the verification.
    pub(super) checks: Option<ServerChecks>,
    pub(super) provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
pub(super) struct ServerChecks {
    pub(super) library: Arc<dyn ServerCertVerifier>,
    pub(super) trust: Trust,
    pub(super) policy: CertificatePolicy,
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
        let Some(ServerChecks { library, trust, policy }) = &self.checks else {
            return Ok(ServerCertVerified::assertion());
        };
        if authority_leaf::is_authority(end_entity) {
            trust.verify(end_entity, intermediates, Purpose::Server, now)?;
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        } else {
            library.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            )?;
        }
        policy.check(end_entity, intermediates)?;
        Ok(ServerCertVerified::assertion())
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
