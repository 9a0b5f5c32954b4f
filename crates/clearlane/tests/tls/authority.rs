//! A certificate authority, and files with certificates that it signs.

#![allow(dead_code, reason = "clients and members use different parts of it")]

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

use clearlane_net::tls::config::AllowedNames;
use clearlane_net::tls::{CertificateFiles, FlagPath, TlsInfo};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SerialNumber, date_time_ymd,
};
use x509_cert::der::pem::{LineEnding, encode_string};

pub(crate) struct Authority {
    dir: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
    certificate: PathBuf,
    serial: Cell<u64>,
}

impl Authority {
    pub(crate) fn new(dir: &Path, name: &str) -> Authority {
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let certificate = dir.join(format!("{name}.crt"));
        fs::write(&certificate, pem("CERTIFICATE", issuer.der())).unwrap();
        Authority { dir: dir.to_owned(), issuer, certificate, serial: Cell::new(1) }
    }

    pub(crate) fn certificate(&self) -> &Path {
        &self.certificate
    }

    pub(crate) fn named(&self) -> FlagPath {
        FlagPath { flag: "trusted-ca-file", path: self.certificate.clone() }
    }

    /// Creates a certificate and its key. Replaces an earlier pair with the same name.
    pub(crate) fn pair(&self, name: &str, hosts: &[&str]) -> CertificateFiles {
        self.pair_with(name, params(name, hosts))
    }

    /// Same as [`pair`](Authority::pair), but the certificate is marked as an authority's
    /// certificate (CA:TRUE).
    pub(crate) fn authority_pair(&self, name: &str, hosts: &[&str]) -> CertificateFiles {
        let mut params = params(name, hosts);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        self.pair_with(name, params)
    }

    fn pair_with(&self, name: &str, mut params: CertificateParams) -> CertificateFiles {
        self.serial.set(self.serial.get() + 1);
        params.serial_number = Some(SerialNumber::from(self.serial.get()));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file =
            |flag, end: &str| FlagPath { flag, path: self.dir.join(format!("{name}.{end}")) };
        let pair = CertificateFiles {
            certificate: file("cert-file", "crt"),
            key: file("key-file", "key"),
        };
        fs::write(&pair.certificate.path, pem("CERTIFICATE", certificate.der())).unwrap();
        fs::write(&pair.key.path, pem("PRIVATE KEY", key.serialized_der())).unwrap();
        pair
    }

    /// Creates a revocation list that contains the certificate of the last pair.
    pub(crate) fn revoke_last(&self) -> FlagPath {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(self.serial.get()),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2126, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let path = self.dir.join("revoked.crl");
        let list = list.signed_by(&self.issuer).unwrap();
        fs::write(&path, pem("X509 CRL", list.der())).unwrap();
        FlagPath { flag: "client-crl-file", path }
    }

    /// Returns settings of a server that presents `pair`, and that requires certificates of this
    /// authority from its clients.
    pub(crate) fn side(&self, pair: CertificateFiles) -> TlsInfo {
        TlsInfo {
            server_certificate: Some(pair),
            trusted_ca: Some(self.named()),
            ..TlsInfo::default()
        }
    }

    /// Returns settings of a client that trusts this authority, and presents no certificate.
    pub(crate) fn believer(&self) -> TlsInfo {
        TlsInfo { trusted_ca: Some(self.named()), ..TlsInfo::default() }
    }

    /// Returns settings of a client that trusts this authority, and presents `pair`.
    pub(crate) fn caller(&self, pair: CertificateFiles) -> TlsInfo {
        TlsInfo { client_certificate: Some(pair), ..self.believer() }
    }
}

pub(crate) fn only(names: &[&str]) -> AllowedNames {
    AllowedNames::CommonNames(names.iter().map(|name| (*name).to_owned()).collect())
}

fn params(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn pem(label: &'static str, der: &[u8]) -> String {
    encode_string(label, LineEnding::LF, der).unwrap()
}
