//! Who may talk to whom, and who says so.

use super::{Flag, flag};
use crate::config::value::Kind::{Count, OneOf, Switch, Text};

/// A listener for https is refused; these alone change nothing, as in etcd on an http listener.
const NO_TLS: &str = "TLS is not served yet; https URLs are refused";
const NO_AUTH: &str = "authentication cannot be switched on yet";

pub(super) const TLS: &[Flag] = &[
    flag("cert-file", Text, "", "The certificate for clients.").ignored(NO_TLS),
    flag("key-file", Text, "", "Its key.").ignored(NO_TLS),
    flag("trusted-ca-file", Text, "", "Who signs clients' certificates.").ignored(NO_TLS),
    flag("client-cert-auth", Switch, "false", "Clients need a certificate.").ignored(NO_TLS),
    flag("client-crl-file", Text, "", "Clients' certificates that are revoked.").ignored(NO_TLS),
    flag("client-cert-file", Text, "", "What the member itself shows as a client.").ignored(NO_TLS),
    flag("client-key-file", Text, "", "Its key.").ignored(NO_TLS),
    flag("client-cert-allowed-hostname", Text, "", "Which client may come.").ignored(NO_TLS),
    flag("auto-tls", Switch, "false", "Make a certificate for clients.").ignored(NO_TLS),
    flag("peer-cert-file", Text, "", "The certificate for other members.").ignored(NO_TLS),
    flag("peer-key-file", Text, "", "Its key.").ignored(NO_TLS),
    flag("peer-trusted-ca-file", Text, "", "Who signs members' certificates.").ignored(NO_TLS),
    flag("peer-client-cert-auth", Switch, "false", "Members need a certificate.").ignored(NO_TLS),
    flag("peer-client-cert-file", Text, "", "What is shown to other members.").ignored(NO_TLS),
    flag("peer-client-key-file", Text, "", "Its key.").ignored(NO_TLS),
    flag("peer-auto-tls", Switch, "false", "Make a certificate for members.").ignored(NO_TLS),
    flag("peer-cert-allowed-cn", Text, "", "Which member may come.").ignored(NO_TLS),
    flag("peer-cert-allowed-hostname", Text, "", "Which member may come.").ignored(NO_TLS),
    flag("peer-crl-file", Text, "", "Members' certificates that are revoked.").ignored(NO_TLS),
    flag("peer-skip-client-san-verification", Switch, "false", "Do not look at their addresses.")
        .ignored(NO_TLS),
    flag("cipher-suites", Text, "", "The ciphers that may be used.").ignored(NO_TLS),
    flag("tls-min-version", OneOf(&["TLS1.2", "TLS1.3"]), "TLS1.2", "No older.").ignored(NO_TLS),
    flag("tls-max-version", OneOf(&["", "TLS1.2", "TLS1.3"]), "", "No newer.").ignored(NO_TLS),
    flag("self-signed-cert-validity", Count, "1", "Years that a made certificate holds.")
        .ignored(NO_TLS),
];

pub(super) const AUTH: &[Flag] = &[
    flag("auth-token", Text, "simple", "What kind of token: simple, or jwt,...").ignored(NO_AUTH),
    flag("auth-token-ttl", Count, "300", "Seconds that a simple token holds.").ignored(NO_AUTH),
    flag("bcrypt-cost", Count, "10", "How dear it is to try passwords.").ignored(NO_AUTH),
];
