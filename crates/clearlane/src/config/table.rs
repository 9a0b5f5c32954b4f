//! Which flags are there? One table, from which everything that knows of flags is made: the parsers
//! of command line, environment and config file, `--help`, and `docs/flags.md`.
//!
//! All flags of etcd are known. One that changes nothing is ignored, and logs a warning when it is
//! set to something else than its default.

use super::value::{self, ValueKind};
use ValueKind::{Count, Duration, Gates, Number, OneOf, Switch, Text, Urls};

type Str = &'static str;

#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Without its dashes.
    pub name: Str,
    pub kind: ValueKind,
    pub default: Str,
    /// One line.
    pub help: Str,
    /// Why it is accepted without effect.
    pub ignored: Option<Str>,
}

#[derive(Clone, Copy, Debug)]
pub struct Section {
    pub title: Str,
    pub flags: &'static [Flag],
}

/// In the order of the help.
pub fn all() -> impl Iterator<Item = &'static Flag> {
    SECTIONS.iter().flat_map(|section| section.flags)
}

pub fn find(name: &str) -> Option<&'static Flag> {
    all().find(|flag| flag.name == name)
}

impl Flag {
    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("ETCD_{}", self.name.to_uppercase().replace('-', "_"))
    }

    /// Values are compared, not their texts.
    pub fn is_default(&self, text: &str) -> bool {
        text == self.default || value::are_equal(self.kind, text, self.default)
    }

    pub(crate) const fn help(self, help: Str) -> Flag {
        Flag { help, ..self }
    }

    const fn ignored(self, help: Str, why: Str) -> Flag {
        Flag { help, ignored: Some(why), ..self }
    }
}

/// Its help follows.
pub(crate) const fn flag(name: Str, kind: ValueKind, default: Str) -> Flag {
    Flag { name, kind, default, help: "", ignored: None }
}

const NO_AUTH: Str = "authentication cannot be switched on yet";
const NO_DISCOVERY: Str = "members are found by --initial-cluster only";
const ROTATION: Str =
    r#"{"maxsize": 100, "maxage": 0, "maxbackups": 0, "localtime": false, "compress": false}"#;
const NO_ROTATION: Str = "logs are not rotated; leave that to the collector of the logs";
/// Why flags for connections of etcd to itself have no effect.
const NO_SELF_CALLS: Str = "requests in JSON are answered without a connection to oneself";
const NO_TRACING: Str = "there is no tracing";

pub const SECTIONS: &[Section] = &[
    Section { title: "Member", flags: MEMBER },
    Section { title: "Cluster", flags: CLUSTER },
    Section { title: "Raft", flags: RAFT },
    Section { title: "Store", flags: STORE },
    Section { title: "Limits of requests", flags: REQUESTS },
    Section { title: "Compaction and corruption checks", flags: COMPACTION },
    Section { title: "Eras: Clearlane's own", flags: ERAS },
    Section { title: "Security", flags: TLS },
    Section { title: "Authentication", flags: AUTH },
    Section { title: "HTTP", flags: HTTP },
    Section { title: "Logging", flags: LOGGING },
    Section { title: "Tracing", flags: TRACING },
    Section { title: "Discovery", flags: DISCOVERY },
    Section { title: "Unsafe", flags: UNSAFE },
    Section { title: "The rest", flags: REST },
];

const MEMBER: &[Flag] = &[
    flag("name", Text, "default").help("What this member is called."),
    flag("data-dir", Text, "").help("Where its data lies; ${name}.etcd if nothing is said."),
    flag("wal-dir", Text, "").help("Where its log lies, if not in the data directory."),
    flag("listen-client-urls", Urls, "http://localhost:2379").help("Where clients are served."),
    flag("advertise-client-urls", Urls, "http://localhost:2379")
        .help("The addresses that clients are told to use."),
    flag("listen-peer-urls", Urls, "http://localhost:2380")
        .help("Where connections of other members are accepted."),
    flag("listen-client-http-urls", Urls, "")
        .help("More places for clients that speak HTTP; HTTP and gRPC are served at all of them."),
    flag("listen-metrics-urls", Urls, "").help("More places for /metrics and /health."),
];

const CLUSTER: &[Flag] = &[
    flag("initial-advertise-peer-urls", Urls, "http://localhost:2380")
        .help("Where other members reach this one."),
    flag("initial-cluster", Text, "default=http://localhost:2380")
        .help("The members with which the cluster begins: NAME=URL,..."),
    flag("initial-cluster-state", OneOf(&["new", "existing"]), "new")
        .help("Whether the cluster begins, or this member joins one."),
    flag("initial-cluster-token", Text, "etcd-cluster")
        .help("Tells clusters of equal members apart."),
    flag("strict-reconfig-check", Switch, "true")
        .help("Refuse changes that would cost the quorum."),
    flag("max-learners", Count, "1").help("Number of learners that the cluster may have."),
];

const RAFT: &[Flag] = &[
    flag("heartbeat-interval", Count, "100").help("Milliseconds between a leader's heartbeats."),
    flag("election-timeout", Count, "1000").help("Milliseconds until a silent leader is given up."),
    flag("initial-election-tick-advance", Switch, "true").ignored(
        "Shorten the first election.",
        "a sole voter leads at once, others wait for a whole time-out",
    ),
    flag("pre-vote", Switch, "true")
        .ignored("Ask before an election whether it could be won.", "it is always asked"),
    flag("snapshot-count", Count, "10000").help("Applied entries between two notes in the log."),
    flag("snapshot-catchup-entries", Count, "5000")
        .help("Entries that are kept for members that are a little behind."),
    flag("raft-read-timeout", Duration, "5s").ignored(
        "Until a silent connection of a member is given up.",
        "connections are watched by the transport",
    ),
    flag("raft-write-timeout", Duration, "5s").ignored(
        "Until a stuck connection of a member is given up.",
        "connections are watched by the transport",
    ),
    flag("max-wals", Count, "5").help("Number of segments of the log that are kept; 0 keeps all."),
    flag("max-snapshots", Count, "5")
        .ignored("Number of snapshot files that are kept.", "the store is its own snapshot"),
];

const STORE: &[Flag] = &[
    flag("quota-backend-bytes", Number, "0")
        .help("Bytes of data that are taken; 0 is 2 GiB, below 0 no limit."),
    flag("backend-batch-interval", Duration, "0s").help("Between two commits; 0 is 100 ms."),
    flag("backend-batch-limit", Count, "0")
        .help("Number of changes that are committed at once; 0 is 10,000."),
    flag("backend-bbolt-freelist-type", OneOf(&["map", "array"]), "map")
        .ignored("How bbolt counts pages.", "there is no bbolt"),
    flag("memory-mlock", Switch, "false")
        .ignored("Keep the data in memory.", "the engine has a cache of its own"),
    flag("bootstrap-defrag-threshold-megabytes", Count, "0")
        .ignored("Defragment before the start.", "use `clearlane defrag`"),
];

const REQUESTS: &[Flag] = &[
    flag("max-txn-ops", Count, "128").help("Number of operations that a transaction may have."),
    flag("max-request-bytes", Count, "1572864")
        .help("Bytes that a request may have, as an entry of the log."),
    flag("max-concurrent-streams", Count, "4294967295")
        .help("Number of streams that a connection may have."),
    flag("grpc-keepalive-min-time", Duration, "5s")
        .help("Between two pings of a client, at least."),
    flag("grpc-keepalive-interval", Duration, "2h0m0s")
        .help("Until a silent client is sent a ping."),
    flag("grpc-keepalive-timeout", Duration, "20s")
        .help("Until a client that does not answer the ping is given up."),
    flag("watch-progress-notify-interval", Duration, "10m0s")
        .help("Between two progress notices to a watcher."),
    flag("warning-apply-duration", Duration, "100ms").help("What takes longer to apply is logged."),
    flag("warning-unary-request-duration", Duration, "300ms").help("What takes longer is logged."),
];

const COMPACTION: &[Flag] = &[
    flag("auto-compaction-mode", OneOf(&["periodic", "revision"]), "periodic")
        .help("Whether the retention is a time or a number of revisions."),
    flag("auto-compaction-retention", Text, "0").help("How much of the past is kept; 0 keeps all."),
    flag("compaction-batch-limit", Count, "1000").help("Number of revisions in one step."),
    flag("compaction-sleep-interval", Duration, "10ms").help("Rest behind each step."),
    flag("compact-hash-check-time", Duration, "1m0s")
        .help("Between two checks behind compactions."),
    flag("corrupt-check-time", Duration, "0s").help("Between two checks; 0 is never."),
    flag("downgrade-check-time", Duration, "5s")
        .ignored("Between two checks for a downgrade.", "there is no older version to go to"),
    flag("feature-gates", Gates, "").help("Features on and off: A=true,B=false."),
];

const ERAS: &[Flag] = &[
    flag("era", OneOf(&["3.0", "3.1", "3.2", "3.4", "3.5", "clearlane"]), "clearlane")
        .help("The read path of which etcd."),
    flag("read-mode", OneOf(&["", "log", "read-index", "lease", "serializable"]), "")
        .help("How a linearizable read is made one; the era's if nothing is said."),
    flag("engine", OneOf(&["redb", "sled", "memory"]), "redb").help("What has the data on disk."),
    flag("engine-cache-bytes", Count, "67108864").help(
        "Bytes of the data that the engine has in memory; the system keeps the file's pages, too.",
    ),
    flag("net-threads", Count, "0").help(
        "Number of threads that serve clients; 0 is half the number of cores, and at most 4.",
    ),
    flag("timeline", Text, "").help(
        "Records which thread waited for which, in this file; SIGUSR1 ends it or begins anew.",
    ),
];

const TLS: &[Flag] = &[
    flag("cert-file", Text, "")
        .help("The certificate for clients, and those between it and its CA."),
    flag("key-file", Text, "").help("Its key."),
    flag("trusted-ca-file", Text, "")
        .help("The authority that signs clients' certificates: then they need one."),
    flag("client-cert-auth", Switch, "false")
        .help("Clients need a certificate of --trusted-ca-file."),
    flag("client-crl-file", Text, "").help("Clients' certificates that are revoked."),
    flag("client-cert-file", Text, "")
        .ignored("What the member itself shows as a client.", NO_SELF_CALLS),
    flag("client-key-file", Text, "").ignored("Its key.", NO_SELF_CALLS),
    flag("client-cert-allowed-cn", Text, "")
        .help("Only clients whose certificate has one of these names."),
    flag("client-cert-allowed-hostname", Text, "")
        .help("Only clients whose certificate has one of these."),
    flag("auto-tls", Switch, "false").help("Make a self-signed certificate for clients."),
    flag("peer-cert-file", Text, "").help("The certificate for other members."),
    flag("peer-key-file", Text, "").help("Its key."),
    flag("peer-trusted-ca-file", Text, "")
        .help("The authority that signs members' certificates: then they need one."),
    flag("peer-client-cert-auth", Switch, "false")
        .help("Members need one of --peer-trusted-ca-file."),
    flag("peer-client-cert-file", Text, "").help("What is shown to members that are called."),
    flag("peer-client-key-file", Text, "").help("Its key."),
    flag("peer-auto-tls", Switch, "false").help("Make a self-signed certificate for members."),
    flag("peer-cert-allowed-cn", Text, "")
        .help("Only members whose certificate has one of these names."),
    flag("peer-cert-allowed-hostname", Text, "")
        .help("Only members whose certificate has one of these."),
    flag("peer-crl-file", Text, "").help("Members' certificates that are revoked."),
    flag("peer-skip-client-san-verification", Switch, "false")
        .help("Members may call from anywhere."),
    flag("cipher-suites", Text, "")
        .help("The ciphers of TLS 1.2 that may be used; empty means all."),
    flag("tls-min-version", OneOf(&["TLS1.2", "TLS1.3"]), "TLS1.2").help("No older."),
    flag("tls-max-version", OneOf(&["", "TLS1.2", "TLS1.3"]), "").help("No newer."),
    flag("self-signed-cert-validity", Count, "1").help("Years that a made certificate holds."),
];

const AUTH: &[Flag] = &[
    flag("auth-token", Text, "simple").ignored("What kind of token: simple, or jwt,...", NO_AUTH),
    flag("auth-token-ttl", Count, "300").ignored("Seconds that a simple token holds.", NO_AUTH),
    flag("bcrypt-cost", Count, "10").help("How much work it is to hash a password."),
];

const HTTP: &[Flag] = &[
    flag("cors", Text, "*").help("Which origins a browser may come from."),
    flag("host-whitelist", Text, "*").help("Which names of this host are taken."),
    flag("enable-grpc-gateway", Switch, "true")
        .ignored("Serve /v3/... as JSON.", "it is always served"),
    flag("enable-pprof", Switch, "false").ignored("Serve Go's profiles.", "this is no Go program"),
    flag("metrics", OneOf(&["basic", "extensive"]), "basic").help("How much is measured."),
];

const LOGGING: &[Flag] = &[
    flag("logger", OneOf(&["zap"]), "zap").help("The logger whose format logs have. There is one."),
    flag("log-outputs", Text, "default").help("default and stderr, stdout, or files; a list."),
    flag("log-level", OneOf(&["debug", "info", "warn", "error", "panic", "fatal"]), "info")
        .help("What is less than this is not logged."),
    flag("log-format", OneOf(&["json", "console"]), "json").help("How a line looks."),
    flag("enable-log-rotation", Switch, "false").ignored("Begin new files.", NO_ROTATION),
    flag("log-rotation-config-json", Text, ROTATION)
        .ignored("When to begin new files.", NO_ROTATION),
];

const TRACING: &[Flag] = &[
    flag("enable-distributed-tracing", Switch, "false").ignored("Send traces.", NO_TRACING),
    flag("distributed-tracing-address", Text, "localhost:4317").ignored("Where to.", NO_TRACING),
    flag("distributed-tracing-service-name", Text, "etcd")
        .ignored("The name of the service.", NO_TRACING),
    flag("distributed-tracing-instance-id", Text, "").ignored("As which one.", NO_TRACING),
    flag("distributed-tracing-sampling-rate", Number, "0")
        .ignored("How many of a million requests.", NO_TRACING),
];

const DISCOVERY: &[Flag] = &[
    flag("discovery-token", Text, "").ignored("The token of a discovery.", NO_DISCOVERY),
    flag("discovery-endpoints", Text, "")
        .ignored("The servers that know the members.", NO_DISCOVERY),
    flag("discovery-dial-timeout", Duration, "2s").ignored("Of a discovery.", NO_DISCOVERY),
    flag("discovery-request-timeout", Duration, "5s").ignored("Of a discovery.", NO_DISCOVERY),
    flag("discovery-keepalive-time", Duration, "2s").ignored("Of a discovery.", NO_DISCOVERY),
    flag("discovery-keepalive-timeout", Duration, "6s").ignored("Of a discovery.", NO_DISCOVERY),
    flag("discovery-insecure-transport", Switch, "true").ignored("Of a discovery.", NO_DISCOVERY),
    flag("discovery-insecure-skip-tls-verify", Switch, "false")
        .ignored("Of a discovery.", NO_DISCOVERY),
    flag("discovery-cert", Text, "").ignored("Of a discovery.", NO_DISCOVERY),
    flag("discovery-key", Text, "").ignored("Of a discovery.", NO_DISCOVERY),
    flag("discovery-cacert", Text, "").ignored("Of a discovery.", NO_DISCOVERY),
    flag("discovery-user", Text, "").ignored("Of a discovery.", NO_DISCOVERY),
    flag("discovery-password", Text, "").ignored("Of a discovery.", NO_DISCOVERY),
    flag("discovery-srv", Text, "").ignored("The DNS name that knows the members.", NO_DISCOVERY),
    flag("discovery-srv-name", Text, "").ignored("Comes behind the service's name.", NO_DISCOVERY),
    flag("discovery-fallback", OneOf(&["exit", "proxy"]), "exit")
        .ignored("What follows a failed discovery.", NO_DISCOVERY),
];

const UNSAFE: &[Flag] = &[
    flag("force-new-cluster", Switch, "false").help("Go on as the only member, with what is here."),
    flag("unsafe-no-fsync", Switch, "false")
        .ignored("Lose data when the power fails.", "what is acknowledged is on disk"),
];

const REST: &[Flag] = &[
    flag("config-file", Text, "").help("Read all from this file, and nothing from elsewhere."),
    flag("version", Switch, "false").help("Print the version and end."),
    flag("socket-reuse-port", Switch, "false")
        .ignored("Share the port with others.", "a port has one owner"),
    flag("socket-reuse-address", Switch, "false")
        .ignored("Take an address that is not free yet.", "that is always done where it is safe"),
    flag(
        "v2-deprecation",
        OneOf(&["not-yet", "write-only", "write-only-drop-data", "gone"]),
        "write-only",
    )
    .ignored("What is kept of etcd's second version.", "there is nothing of it"),
];
