//! How a tool calls a member. The flags are the same as etcdctl's:
//!
//! ```text
//!   host:port                                  http, or https if a TLS flag below is set
//!   https://host:port                          TLS, and the certificate is checked
//!   unix://path, unixs://path                  a socket in the file system, without or with TLS
//!   --cacert ca.crt                            trust this authority, not the system's
//!   --cert me.crt --key me.key                 the member sees the name in this certificate
//!   --insecure-skip-tls-verify                 trust any server
//!   --user name:password                       send a token of this user
//! ```

use clearlane_net::tls::protocol::ProtocolConfig;
use clearlane_net::tls::{CertificateFiles, Dialer, FlagPath, TlsInfo};
use clearlane_proto::etcdserverpb::AuthenticateRequest;
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use tonic::Request;
use tonic::transport::Channel;

use super::{BoxError, output};
use crate::config::arguments::FlagReader;
use crate::config::table::{Flag, flag};
use crate::config::value::ValueKind::{Switch, Text};

pub(super) const FLAGS: &[Flag] = &[
    flag("cacert", Text, "")
        .help("Certificate authority of the member (PEM file; default: those of the system)."),
    flag("cert", Text, "").help("Client certificate (PEM file)."),
    flag("key", Text, "").help("Private key of --cert (PEM file)."),
    flag("insecure-skip-tls-verify", Switch, "false")
        .help("Do not verify the certificate of the member."),
    flag("user", Text, "").help("User and password: NAME:PASSWORD, or NAME with --password."),
    flag("password", Text, "").help("Password of --user."),
    output::NO_FORMAT,
];

const TLS_FILE_FLAGS: [&str; 3] = ["cacert", "cert", "key"];

/// Creates a request, with a token of `--user` if that flag is set.
pub(super) async fn request<T>(
    flags: &FlagReader,
    channel: &Channel,
    message: T,
) -> Result<Request<T>, BoxError> {
    let mut request = Request::new(message);
    let user = flags.text("user");
    if user.is_empty() {
        return Ok(request);
    }
    let (name, password) = match (user.split_once(':'), flags.text("password")) {
        (_, password) if !password.is_empty() => (user, password),
        (Some((name, password)), _) => (name, password),
        (None, _) => return Err("--user needs a password: NAME:PASSWORD, or --password".into()),
    };
    let login = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
    let answer = AuthClient::new(channel.clone()).authenticate(login).await;
    let answer = answer.map_err(|status| format!("--user {name}: {}", status.message()))?;
    request.metadata_mut().insert("token", answer.into_inner().token.parse()?);
    Ok(request)
}

pub(super) async fn connect(flags: &FlagReader, endpoint: &str) -> Result<Channel, BoxError> {
    let is_secure = TLS_FILE_FLAGS.iter().any(|flag| flags.is_set(flag))
        || flags.switch("insecure-skip-tls-verify");
    let url = match endpoint.contains("://") {
        true => endpoint.to_owned(),
        false if is_secure => format!("https://{endpoint}"),
        false => format!("http://{endpoint}"),
    };
    let outgoing = if url.starts_with("https://") || url.starts_with("unixs://") {
        dialer(flags)?
    } else {
        Dialer::default()
    };
    let connected = outgoing.connect(&url).await;
    Ok(connected.map_err(|why| format!("{endpoint}: {why}"))?)
}

fn dialer(flags: &FlagReader) -> Result<Dialer, BoxError> {
    let named = |flag| flags.path(flag).map(|path| FlagPath { flag, path });
    let calling = match (named("cert"), named("key")) {
        (Some(certificate), Some(key)) => Some(CertificateFiles { certificate, key }),
        (None, None) => None,
        _ => return Err("--cert and --key must both be present".into()),
    };
    if flags.switch("insecure-skip-tls-verify") {
        return Ok(Dialer::without_verification(calling)?);
    }
    let side =
        TlsInfo { client_certificate: calling, trusted_ca: named("cacert"), ..TlsInfo::default() };
    Ok(Dialer::new(&side, &ProtocolConfig::default())?)
}
