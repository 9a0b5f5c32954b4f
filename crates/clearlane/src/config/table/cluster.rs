//! The member's identity, where it is reached, and the members it begins with.

use super::{Flag, flag};
use crate::config::value::ValueKind::{Count, Duration, OneOf, Switch, Text, Urls};

const NO_DISCOVERY: &str = "members are found by --initial-cluster only";

pub(super) const MEMBER: &[Flag] = &[
    flag("name", Text, "default", "What this member is called."),
    flag("data-dir", Text, "", "Where its data lies; ${name}.etcd if nothing is said."),
    flag("wal-dir", Text, "", "Where its log lies, if not in the data directory."),
    flag("listen-client-urls", Urls, "http://localhost:2379", "Where clients are served."),
    flag(
        "advertise-client-urls",
        Urls,
        "http://localhost:2379",
        "The addresses that clients are told to use.",
    ),
    flag(
        "listen-peer-urls",
        Urls,
        "http://localhost:2380",
        "Where connections of other members are accepted.",
    ),
    flag(
        "listen-client-http-urls",
        Urls,
        "",
        "More places for clients that speak HTTP; HTTP and gRPC are served at all of them.",
    ),
    flag("listen-metrics-urls", Urls, "", "More places for /metrics and /health."),
];

pub(super) const CLUSTER: &[Flag] = &[
    flag(
        "initial-advertise-peer-urls",
        Urls,
        "http://localhost:2380",
        "Where other members reach this one.",
    ),
    flag(
        "initial-cluster",
        Text,
        "default=http://localhost:2380",
        "The members with which the cluster begins: NAME=URL,...",
    ),
    flag(
        "initial-cluster-state",
        OneOf(&["new", "existing"]),
        "new",
        "Whether the cluster begins, or this member joins one.",
    ),
    flag("initial-cluster-token", Text, "etcd-cluster", "Tells clusters of equal members apart."),
    flag("strict-reconfig-check", Switch, "true", "Refuse changes that would cost the quorum."),
    flag("max-learners", Count, "1", "Number of learners that the cluster may have."),
];

pub(super) const RAFT: &[Flag] = &[
    flag("heartbeat-interval", Count, "100", "Milliseconds between a leader's heartbeats."),
    flag("election-timeout", Count, "1000", "Milliseconds until a silent leader is given up."),
    flag("initial-election-tick-advance", Switch, "true", "Shorten the first election.")
        .ignored("a sole voter leads at once, others wait for a whole time-out"),
    flag("pre-vote", Switch, "true", "Ask before an election whether it could be won.")
        .ignored("it is always asked"),
    flag("snapshot-count", Count, "10000", "Applied entries between two notes in the log."),
    flag(
        "snapshot-catchup-entries",
        Count,
        "5000",
        "Entries that are kept for members that are a little behind.",
    ),
    flag("raft-read-timeout", Duration, "5s", "Until a silent connection of a member is given up.")
        .ignored("connections are watched by the transport"),
    flag("raft-write-timeout", Duration, "5s", "Until a stuck connection of a member is given up.")
        .ignored("connections are watched by the transport"),
    flag("max-wals", Count, "5", "Number of segments of the log that are kept; 0 keeps all."),
    flag("max-snapshots", Count, "5", "Number of snapshot files that are kept.")
        .ignored("the store is its own snapshot"),
];

pub(super) const DISCOVERY: &[Flag] = &[
    flag("discovery-token", Text, "", "The token of a discovery.").ignored(NO_DISCOVERY),
    flag("discovery-endpoints", Text, "", "The servers that know the members.")
        .ignored(NO_DISCOVERY),
    flag("discovery-dial-timeout", Duration, "2s", "Of a discovery.").ignored(NO_DISCOVERY),
    flag("discovery-request-timeout", Duration, "5s", "Of a discovery.").ignored(NO_DISCOVERY),
    flag("discovery-keepalive-time", Duration, "2s", "Of a discovery.").ignored(NO_DISCOVERY),
    flag("discovery-keepalive-timeout", Duration, "6s", "Of a discovery.").ignored(NO_DISCOVERY),
    flag("discovery-insecure-transport", Switch, "true", "Of a discovery.").ignored(NO_DISCOVERY),
    flag("discovery-insecure-skip-tls-verify", Switch, "false", "Of a discovery.")
        .ignored(NO_DISCOVERY),
    flag("discovery-cert", Text, "", "Of a discovery.").ignored(NO_DISCOVERY),
    flag("discovery-key", Text, "", "Of a discovery.").ignored(NO_DISCOVERY),
    flag("discovery-cacert", Text, "", "Of a discovery.").ignored(NO_DISCOVERY),
    flag("discovery-user", Text, "", "Of a discovery.").ignored(NO_DISCOVERY),
    flag("discovery-password", Text, "", "Of a discovery.").ignored(NO_DISCOVERY),
    flag("discovery-srv", Text, "", "The DNS name that knows the members.").ignored(NO_DISCOVERY),
    flag("discovery-srv-name", Text, "", "Comes behind the service's name.").ignored(NO_DISCOVERY),
    flag(
        "discovery-fallback",
        OneOf(&["exit", "proxy"]),
        "exit",
        "What follows a failed discovery.",
    )
    .ignored(NO_DISCOVERY),
];
