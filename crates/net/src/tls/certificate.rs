//! The contents of a certificate: its owner's name, its hosts and addresses, its serial number and
//! its validity. This module also reads the serial numbers in a revocation list.
//!
//! The functions here do not check whether a certificate is trusted; rustls does that.

use std::net::IpAddr;
use std::time::SystemTime;

use x509_cert::Certificate;
use x509_cert::crl::CertificateList;
use x509_cert::der::asn1::{Ia5StringRef, PrintableStringRef, TeletexStringRef, Utf8StringRef};
use x509_cert::der::oid::db::rfc4519::COMMON_NAME;
use x509_cert::der::{self, Any, Decode, Tag, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CertificateInfo {
    /// The last common name, as in Go; empty if there is none.
    pub(super) common_name: String,
    pub(super) hosts: Vec<String>,
    pub(super) addresses: Vec<IpAddr>,
}

impl CertificateInfo {
    pub(super) fn parse(der: &[u8]) -> der::Result<CertificateInfo> {
        let certificate = Certificate::from_der(der)?;
        let certificate = certificate.tbs_certificate();
        let names = certificate.subject().iter().filter(|entry| entry.oid == COMMON_NAME);
        let common_name = names.filter_map(|entry| text(&entry.value)).last().unwrap_or_default();
        let mut facts = CertificateInfo { common_name, ..CertificateInfo::default() };
        if let Some((_, names)) = certificate.get_extension::<SubjectAltName>()? {
            for name in &names.0 {
                match name {
                    GeneralName::DnsName(host) => facts.hosts.push(host.to_string()),
                    GeneralName::IpAddress(bytes) => {
                        facts.addresses.extend(address(bytes.as_bytes()))
                    }
                    _ => {}
                }
            }
        }
        Ok(facts)
    }
}

/// Returns the text of a name, which may have one of several string types. Returns `None` if it
/// cannot be decoded.
fn text(value: &Any) -> Option<String> {
    let text = match value.tag() {
        Tag::PrintableString => value.decode_as::<PrintableStringRef<'_>>().ok()?.to_string(),
        Tag::Ia5String => value.decode_as::<Ia5StringRef<'_>>().ok()?.to_string(),
        Tag::TeletexString => value.decode_as::<TeletexStringRef<'_>>().ok()?.to_string(),
        _ => value.decode_as::<Utf8StringRef<'_>>().ok()?.to_string(),
    };
    Some(text)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
        16 => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
        _ => None,
    }
}

pub(super) fn serial(der: &[u8]) -> der::Result<Vec<u8>> {
    Ok(Certificate::from_der(der)?.tbs_certificate().serial_number().as_bytes().to_vec())
}

pub(super) fn is_valid_at(der: &[u8], now: SystemTime) -> der::Result<bool> {
    let certificate = Certificate::from_der(der)?;
    let validity = certificate.tbs_certificate().validity();
    Ok(validity.not_before.to_system_time() <= now && now <= validity.not_after.to_system_time())
}

pub(super) fn revoked_serials(der: &[u8]) -> der::Result<Vec<Vec<u8>>> {
    let list = <CertificateList>::from_der(der)?;
    let revoked = list.tbs_cert_list.revoked_certificates.unwrap_or_default();
    Ok(revoked.iter().map(|one| one.serial_number.as_bytes().to_vec()).collect())
}
