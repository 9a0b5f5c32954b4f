//! An authority, and the certificates that it signs, as files.

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

    /// An earlier pair of that name is replaced.
    pub(crate) fn pair(&self, name: &str, hosts: &[&str]) -> CertificateFiles {
        let mut params = params(name, hosts);
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

    /// With the last pair on it.
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

    /// Shows a pair of this authority, and asks others for one.
    pub(crate) fn side(&self, pair: CertificateFiles) -> TlsInfo {
        TlsInfo {
            server_certificate: Some(pair),
            trusted_ca: Some(self.named()),
            ..TlsInfo::default()
        }
    }

    /// Trusts this authority, and has nothing to show.
    pub(crate) fn believer(&self) -> TlsInfo {
        TlsInfo { trusted_ca: Some(self.named()), ..TlsInfo::default() }
    }

    /// Trusts this authority, and shows this.
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
