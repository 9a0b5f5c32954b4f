//! Texts for failed handshakes. They are Go's texts wherever users of etcd may search for Go's
//! texts.

use std::io::{self, ErrorKind};

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

pub(super) fn handshake_error(error: &io::Error) -> String {
    if error.kind() == ErrorKind::UnexpectedEof {
        return "EOF".to_owned();
    }
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(inner) => rustls_error(inner),
        None => error.to_string(),
    }
}

fn rustls_error(error: &Error) -> String {
    let unverified = "tls: failed to verify certificate: x509: ";
    match error {
        Error::NoCertificatesPresented => "tls: client didn't provide a certificate".to_owned(),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "tls: first record does not look like a TLS handshake".to_owned()
        }
        Error::AlertReceived(alert) => format!("remote error: tls: {}", alert_text(*alert)),
        Error::InvalidCertificate(wrong) => match wrong {
            CertificateError::ApplicationVerificationFailure => {
                "client certificate authentication failed".to_owned()
            }
            CertificateError::UnknownIssuer => {
                format!("{unverified}certificate signed by unknown authority")
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                format!("{unverified}certificate has expired or is not yet valid ({wrong})")
            }
            wrong => format!("{unverified}{wrong}"),
        },
        other => other.to_string(),
    }
}

fn alert_text(alert: AlertDescription) -> String {
    let words = match alert {
        AlertDescription::BadCertificate => "bad certificate",
        AlertDescription::UnknownCA => "unknown certificate authority",
        AlertDescription::CertificateExpired => "expired certificate",
        AlertDescription::CertificateRevoked => "revoked certificate",
        AlertDescription::CertificateUnknown => "unknown certificate",
        AlertDescription::CertificateRequired => "certificate required",
        AlertDescription::HandshakeFailure => "handshake failure",
        AlertDescription::ProtocolVersion => "protocol version not supported",
        AlertDescription::AccessDenied => "access denied",
        other => return format!("{other:?}"),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_gos() {
        assert_eq!(handshake_error(&ErrorKind::UnexpectedEof.into()), "EOF");
        for (error, words) in [
            (Error::NoCertificatesPresented, "tls: client didn't provide a certificate"),
            (
                Error::AlertReceived(AlertDescription::BadCertificate),
                "remote error: tls: bad certificate",
            ),
            (
                CertificateError::UnknownIssuer.into(),
                "tls: failed to verify certificate: x509: certificate signed by unknown authority",
            ),
        ] {
            let error = io::Error::new(ErrorKind::InvalidData, error);
            assert_eq!(handshake_error(&error), words);
        }
    }
}
