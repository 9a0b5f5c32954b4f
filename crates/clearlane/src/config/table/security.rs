//! Which clients and peers may connect: certificates, authorities, tokens.

use super::{Flag, flag};
use crate::config::value::ValueKind::{Count, OneOf, Switch, Text};

/// Why flags for connections of etcd to itself have no effect.
const NO_SELF_CALLS: &str = "requests in JSON are answered without a connection to oneself";
const NO_AUTH: &str = "authentication cannot be switched on yet";

pub(super) const TLS: &[Flag] = &[
    flag("cert-file", Text, "", "The certificate for clients, and those between it and its CA."),
    flag("key-file", Text, "", "Its key."),
    flag(
        "trusted-ca-file",
        Text,
        "",
        "The authority that signs clients' certificates: then they need one.",
    ),
    flag("client-cert-auth", Switch, "false", "Clients need a certificate of --trusted-ca-file."),
    flag("client-crl-file", Text, "", "Clients' certificates that are revoked."),
    flag("client-cert-file", Text, "", "What the member itself shows as a client.")
        .ignored(NO_SELF_CALLS),
    flag("client-key-file", Text, "", "Its key.").ignored(NO_SELF_CALLS),
    flag(
        "client-cert-allowed-cn",
        Text,
        "",
        "Only clients whose certificate has one of these names.",
    ),
    flag(
        "client-cert-allowed-hostname",
        Text,
        "",
        "Only clients whose certificate has one of these.",
    ),
    flag("auto-tls", Switch, "false", "Make a self-signed certificate for clients."),
    flag("peer-cert-file", Text, "", "The certificate for other members."),
    flag("peer-key-file", Text, "", "Its key."),
    flag(
        "peer-trusted-ca-file",
        Text,
        "",
        "The authority that signs members' certificates: then they need one.",
    ),
    flag("peer-client-cert-auth", Switch, "false", "Members need one of --peer-trusted-ca-file."),
    flag("peer-client-cert-file", Text, "", "What is shown to members that are called."),
    flag("peer-client-key-file", Text, "", "Its key."),
    flag("peer-auto-tls", Switch, "false", "Make a self-signed certificate for members."),
    flag(
        "peer-cert-allowed-cn",
        Text,
        "",
        "Only members whose certificate has one of these names.",
    ),
    flag(
        "peer-cert-allowed-hostname",
        Text,
        "",
        "Only members whose certificate has one of these.",
    ),
    flag("peer-crl-file", Text, "", "Members' certificates that are revoked."),
    flag("peer-skip-client-san-verification", Switch, "false", "Members may call from anywhere."),
    flag("cipher-suites", Text, "", "The ciphers of TLS 1.2 that may be used; empty means all."),
    flag("tls-min-version", OneOf(&["TLS1.2", "TLS1.3"]), "TLS1.2", "No older."),
    flag("tls-max-version", OneOf(&["", "TLS1.2", "TLS1.3"]), "", "No newer."),
    flag("self-signed-cert-validity", Count, "1", "Years that a made certificate holds."),
];

pub(super) const AUTH: &[Flag] = &[
    flag("auth-token", Text, "simple", "What kind of token: simple, or jwt,...").ignored(NO_AUTH),
    flag("auth-token-ttl", Count, "300", "Seconds that a simple token holds.").ignored(NO_AUTH),
    flag("bcrypt-cost", Count, "10", "How much work it is to hash a password."),
];
