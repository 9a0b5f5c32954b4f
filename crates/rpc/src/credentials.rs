//! The credentials of a call: a token in its head, or the certificate of its connection.

use clearlane_net::tls::ClientName;
use clearlane_server::{Credentials, Server};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use tonic::Request;

const TOKEN: &str = "token";
/// A header that gRPC-Gateway adds to calls. If a call has it, the certificate of the connection is
/// the gateway's certificate, not the client's.
const OF_GATEWAY: &str = "grpcgateway-accept";
const BEARER: &str = "Bearer ";

/// Returns the credentials of a call. As in etcd, a token takes precedence over a certificate, even
/// if the token is empty.
pub(crate) fn of_call(head: &HeaderMap, certificate: Option<&ClientName>) -> Credentials {
    if let Some(token) = head.get(TOKEN).or_else(|| head.get(AUTHORIZATION)) {
        return of_token(token);
    }
    match certificate {
        Some(ClientName(name)) if !head.contains_key(OF_GATEWAY) => {
            Credentials::Certificate(name.clone())
        }
        _ => Credentials::None,
    }
}

fn of_token(token: &HeaderValue) -> Credentials {
    let text = token.to_str().unwrap_or_default();
    Credentials::Token(text.strip_prefix(BEARER).unwrap_or(text).into())
}

/// Returns a server handle with the credentials of a call that tonic serves.
pub(crate) fn server_for<T>(server: &Server, request: &Request<T>) -> Server {
    let certificate = request.extensions().get::<ClientName>();
    server.with_credentials(of_call(request.metadata().as_ref(), certificate))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(head: &[(&'static str, &'static str)], certificate: Option<&str>) -> String {
        let head = head
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
        let certificate = certificate.map(|name| ClientName(name.into()));
        match of_call(&HeaderMap::from_iter(head), certificate.as_ref()) {
            Credentials::Token(text) => format!("token {text}"),
            Credentials::Certificate(name) => format!("certificate {name}"),
            Credentials::None => "none".to_owned(),
        }
    }

    #[test]
    fn a_token_goes_before_a_certificate() {
        assert_eq!(said(&[], None), "none");
        assert_eq!(said(&[], Some("alice")), "certificate alice");
        assert_eq!(said(&[("token", "t.1")], Some("alice")), "token t.1");
        assert_eq!(said(&[("authorization", "Bearer t.1")], None), "token t.1");
        assert_eq!(said(&[("authorization", "a"), ("token", "")], Some("alice")), "token ");
        assert_eq!(said(&[("grpcgateway-accept", "*/*")], Some("alice")), "none");
    }
}
