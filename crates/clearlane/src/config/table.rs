//! The table of all flags. The parsers of command line, environment and config file, the help, the
//! man page, the completions and `docs/flags.md` are generated from it.
//!
//! The table has all flags of etcd. A flag that has no effect here is accepted. If it is set to a
//! value other than its default, a warning is logged.

use super::value::{self, ValueKind};
use ValueKind::{Count, Duration, Gates, Number, OneOf, Switch, Text, Urls};

type Str = &'static str;

#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// The flag's name without dashes.
    pub name: Str,
    /// The flag's one-letter name. Empty if the flag has none.
    pub short: Str,
    pub kind: ValueKind,
    pub default: Str,
    /// The description in the help, without line breaks.
    pub help: Str,
    /// The reason why the flag has no effect. `None` if the flag has an effect.
    pub ignored: Option<Str>,
    /// If true, a later version will honour the flag.
    pub is_planned: bool,
    /// etcd's warning, which is logged whenever the flag is set, whatever its value. `None` if the
    /// flag is not deprecated.
    pub deprecated: Option<Str>,
}

#[derive(Clone, Copy, Debug)]
pub struct Section {
    pub title: Str,
    pub flags: &'static [Flag],
}

/// Returns all flags, in the order of the help.
pub fn all() -> impl Iterator<Item = &'static Flag> {
    SECTIONS.iter().flat_map(|section| section.flags)
}

pub fn find(name: &str) -> Option<&'static Flag> {
    all().find(|flag| flag.name == name)
}

impl Flag {
    /// Returns true if `text` means the default value. Texts are compared by their meaning: `60m`
    /// equals `1h`.
    pub fn is_default(&self, text: &str) -> bool {
        text == self.default || value::are_equal(self.kind, text, self.default)
    }

    /// Returns the non-empty values of a flag with a fixed set of values. `None` for other flags.
    pub(crate) fn words(&self) -> Option<impl Iterator<Item = &'static str> + use<>> {
        let ValueKind::OneOf(words) = self.kind else { return None };
        Some(words.iter().copied().filter(|word| !word.is_empty()))
    }

    pub(crate) const fn help(self, help: Str) -> Flag {
        Flag { help, ..self }
    }

    pub(crate) const fn short(self, short: Str) -> Flag {
        Flag { short, ..self }
    }

    pub(crate) const fn ignored(self, help: Str, why: Str) -> Flag {
        Flag { help, ignored: Some(why), ..self }
    }

    /// Marks a flag that this version ignores, and that a later version will honour.
    const fn planned(self, help: Str, why: Str) -> Flag {
        Flag { is_planned: true, ..self.ignored(help, why) }
    }

    const fn deprecated(self, warning: Str) -> Flag {
        Flag { deprecated: Some(warning), ..self }
    }
}

/// Creates a flag without help. The caller adds the help.
pub(crate) const fn flag(name: Str, kind: ValueKind, default: Str) -> Flag {
    Flag {
        name,
        short: "",
        kind,
        default,
        help: "",
        ignored: None,
        is_planned: false,
        deprecated: None,
    }
}

const ROTATION: Str =
    r#"{"maxsize": 100, "maxage": 0, "maxbackups": 0, "localtime": false, "compress": false}"#;
const NO_TRACING: Str = "a later version will export traces";

pub const SECTIONS: &[Section] = &[
    Section { title: "Member", flags: MEMBER },
    Section { title: "Cluster", flags: CLUSTER },
    Section { title: "Raft", flags: RAFT },
    Section { title: "Store", flags: STORE },
    Section { title: "Limits of requests", flags: REQUESTS },
    Section { title: "Limits of the process: Clearlane's own", flags: PROCESS },
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
    flag("name", Text, "default").help("Name of this member."),
    flag("data-dir", Text, "").help("Data directory (default: ${name}.etcd)."),
    flag("wal-dir", Text, "")
        .help("Directory of the write-ahead log (default: inside the data directory)."),
    flag("listen-client-urls", Urls, "http://localhost:2379")
        .help("Addresses that serve clients, separated by commas."),
    flag("advertise-client-urls", Urls, "http://localhost:2379")
        .help("Addresses that this member advertises to clients, separated by commas."),
    flag("listen-peer-urls", Urls, "http://localhost:2380")
        .help("Addresses that serve other members, separated by commas."),
    flag("listen-client-http-urls", Urls, "")
        .help("More addresses for clients that use HTTP. All addresses serve both HTTP and gRPC."),
    flag("listen-metrics-urls", Urls, "")
        .help("More addresses that serve /metrics and /health, separated by commas."),
];

const CLUSTER: &[Flag] = &[
    flag("initial-advertise-peer-urls", Urls, "http://localhost:2380")
        .help("Addresses that this member advertises to other members."),
    flag("initial-cluster", Text, "default=http://localhost:2380").help(
        "Members of a new cluster: NAME=URL, separated by commas (if not set: only this member).",
    ),
    flag("initial-cluster-state", OneOf(&["new", "existing"]), "new")
        .help("Whether to start a new cluster or to join an existing one."),
    flag("initial-cluster-token", Text, "etcd-cluster")
        .help("Token that is hashed into the IDs of the cluster and its members."),
    flag("strict-reconfig-check", Switch, "true")
        .help("Reject membership changes that would leave the cluster without a quorum."),
    flag("max-learners", Count, "1").help("Maximum number of learners."),
];

const RAFT: &[Flag] = &[
    flag("heartbeat-interval", Count, "100")
        .help("Time between two heartbeats of the leader, in milliseconds."),
    flag("election-timeout", Count, "1000")
        .help("Time without a heartbeat until a follower starts an election, in milliseconds."),
    flag("initial-election-tick-advance", Switch, "true").help(
        "Shorten the wait for the first election once most members are connected. A sole voter \
         leads at once.",
    ),
    flag("pre-vote", Switch, "true")
        .help("Ask the other members before an election whether it could be won."),
    flag("snapshot-count", Count, "10000")
        .help("Number of applied entries (or 64 MiB) between two snapshot records of the log."),
    flag("snapshot-catchup-entries", Count, "5000")
        .help("Number of entries that are kept for slow followers (at most 64 MiB)."),
    flag("raft-read-timeout", Duration, "5s")
        .help("Time without data until a member is pinged, and its time to answer (minimum: 5s)."),
    flag("raft-write-timeout", Duration, "5s").help(
        "Time that another member has to acknowledge data written to its connection (minimum: 5s).",
    ),
    flag("max-wals", Count, "5")
        .help("Maximum number of segments of the log, unless a start needs more (0: no limit)."),
    flag("max-snapshots", Count, "5")
        .ignored(
            "Maximum number of snapshot files (0: no limit).",
            "the store needs no snapshot files",
        )
        .deprecated("--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8."),
];

const STORE: &[Flag] = &[
    flag("quota-backend-bytes", Number, "0").help(
        "Size of the store that makes it reject writes, in bytes (0: 2 GiB; negative: no \
         limit).",
    ),
    flag("backend-batch-interval", Duration, "0s")
        .help("Maximum time between two commits of the backend (0: 100 ms)."),
    flag("backend-batch-limit", Count, "0")
        .help("Number of pending operations that makes the backend commit (0: 10,000)."),
    flag("backend-bbolt-freelist-type", OneOf(&["map", "array"]), "map")
        .ignored("Representation of bbolt's free list.", "no free list is written"),
    flag("memory-mlock", Switch, "false")
        .help("Keep the memory of the process out of swap. It must be allowed to lock any amount."),
    flag("bootstrap-defrag-threshold-megabytes", Count, "0")
        .help("Free megabytes in the store that make a start defragment it (0: never)."),
];

const REQUESTS: &[Flag] = &[
    flag("max-txn-ops", Count, "128").help("Maximum number of operations in a transaction."),
    flag("max-request-bytes", Count, "1572864")
        .help("Maximum size of a write request, in bytes, as an entry of the log."),
    flag("max-concurrent-streams", Count, "4294967295").help(
        "Maximum number of concurrent streams (requests) of a client connection (0: no limit).",
    ),
    flag("grpc-keepalive-min-time", Duration, "5s")
        .help("Minimum time between two pings of a client; one that sends more is disconnected."),
    flag("grpc-keepalive-interval", Duration, "2h0m0s")
        .help("Time without traffic until the member pings a client (0: both defaults)."),
    flag("grpc-keepalive-timeout", Duration, "20s")
        .help("Time that a client has to answer a ping (0: both defaults)."),
    flag("watch-progress-notify-interval", Duration, "10m0s")
        .help("Time between two progress notifications of a watcher (0: 10 min; minimum: 100 ms)."),
    flag("warning-apply-duration", Duration, "100ms")
        .help("If the application of a request takes longer, a warning is logged."),
    flag("warning-unary-request-duration", Duration, "300ms")
        .help("If a unary call of KV or Authenticate takes longer, a warning is logged."),
];

const PROCESS: &[Flag] = &[
    flag("max-connections", Count, "0").help(
        "Maximum number of client connections; further ones are closed at once (0: 65536, or less \
         if the limit of open files is low).",
    ),
    flag("max-pending-handshakes", Count, "1024").help(
        "Maximum number of client connections in a TLS handshake (at most half of \
         --max-connections); further ones wait until one ends or is closed because its client is \
         late.",
    ),
    flag("tls-handshake-timeout", Duration, "10s")
        .help("Time that a client or a member has for a TLS handshake."),
    flag("request-head-timeout", Duration, "30s").help(
        "Time that a client has to send the head of a request, or the preface and each frame of \
         HTTP/2 except data.",
    ),
    flag("max-request-head-bytes", Count, "1048576")
        .help("Maximum size of the head of a request, in bytes (minimum: 1 KiB)."),
    flag("core-files", Switch, "false").help(
        "Let the system decide whether a crash writes a core file. The file contains keys, values, \
         passwords and private keys.",
    ),
];

const COMPACTION: &[Flag] = &[
    flag("auto-compaction-mode", OneOf(&["periodic", "revision"]), "periodic")
        .help("Whether --auto-compaction-retention is a time or a number of revisions."),
    flag("auto-compaction-retention", Text, "0").help(
        "History that auto compaction keeps: a duration, hours if without a unit, in mode \
         periodic; a number of revisions in mode revision (0: no auto compaction).",
    ),
    flag("compaction-batch-limit", Count, "1000")
        .help("Maximum number of revisions in a step of a compaction (0: 1,000)."),
    flag("compaction-sleep-interval", Duration, "10ms")
        .help("Time between two steps of a compaction (0: 10 ms)."),
    flag("compact-hash-check-time", Duration, "1m0s")
        .help("Time between two checks of the feature gate CompactHashCheck."),
    flag("corrupt-check-time", Duration, "0s")
        .help("Time between two comparisons of the stores of all members (0: never)."),
    flag("downgrade-check-time", Duration, "5s").planned(
        "Time between two checks of the state of a downgrade.",
        "this version cannot be downgraded; a later one can",
    ),
    flag("feature-gates", Gates, "")
        .help("Feature gates that are switched on or off: A=true,B=false."),
];

const ERAS: &[Flag] = &[
    flag(
        "era",
        OneOf(&["3.0", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "clearlane"]),
        "clearlane",
    )
    .help(
        "Version of etcd whose read path is used, or Clearlane's own (3.3 reads as 3.2; 3.6 and 3.7 \
         read as 3.5).",
    ),
    flag("read-mode", OneOf(&["", "log", "read-index", "lease", "serializable"]), "")
        .help(
            "How reads are made linearizable (empty: as in the era; serializable: not at all; lease: \
             needs the same --election-timeout at all members).",
        ),
    flag("engine", OneOf(&["bolt", "sled", "memory"]), "bolt").help(
        "Storage engine of the store. A member with memory does not start again once its log \
             has a snapshot record.",
    ),
    flag("engine-cache-bytes", Count, "67108864")
        .help("Size of the engine's cache, in bytes (minimum: 1 MiB)."),
    flag("net-threads", Count, "0").help(
        "Number of threads that serve clients (0: half the number of cores, at most 4; \
         maximum: 64).",
    ),
    flag("timeline", Text, "").help(
        "File for a timeline that shows which thread waited for which other (empty: none). SIGUSR1 \
         stops the recording and writes the file, or starts a new recording.",
    ),
];

const TLS: &[Flag] = &[
    flag("cert-file", Text, "")
        .help("Certificate of the server for clients, with intermediate certificates (PEM file)."),
    flag("key-file", Text, "").help("Private key of --cert-file (PEM file)."),
    flag("trusted-ca-file", Text, "").help(
        "Certificate authority of clients (PEM file). If it is set, clients need a certificate \
         signed by it.",
    ),
    flag("client-cert-auth", Switch, "false")
        .help("Require client certificates signed by --trusted-ca-file."),
    flag("client-crl-file", Text, "")
        .help("Revocation list of clients' certificates (PEM or DER file)."),
    flag("client-cert-file", Text, "").help(
        "Certificate of the member as a client of itself (PEM file). The start checks it; the JSON \
             gateway does not need it.",
    ),
    flag("client-key-file", Text, "").help("Private key of --client-cert-file (PEM file)."),
    flag("client-cert-allowed-cn", Text, "").help(
        "Common names of the client certificates that are accepted, separated by commas \
         (empty: all).",
    ),
    flag("client-cert-allowed-hostname", Text, "").help(
        "Host names or IP addresses of the client certificates that are accepted, separated by \
         commas (empty: all).",
    ),
    flag("auto-tls", Switch, "false")
        .help("Use a self-signed certificate for clients, created in the data directory."),
    flag("peer-cert-file", Text, "").help(
        "Certificate for connections between members, with intermediate certificates (PEM file).",
    ),
    flag("peer-key-file", Text, "").help("Private key of --peer-cert-file (PEM file)."),
    flag("peer-trusted-ca-file", Text, "").help(
        "Certificate authority of members (PEM file). If it is set, members need a certificate \
         signed by it.",
    ),
    flag("peer-client-cert-auth", Switch, "false")
        .help("Require certificates signed by --peer-trusted-ca-file from other members."),
    flag("peer-client-cert-file", Text, "")
        .help("Certificate for connections to other members (default: --peer-cert-file)."),
    flag("peer-client-key-file", Text, "")
        .help("Private key of --peer-client-cert-file (PEM file)."),
    flag("peer-auto-tls", Switch, "false")
        .help("Use a self-signed certificate between members, created in the data directory."),
    flag("peer-cert-allowed-cn", Text, "").help(
        "Common names of the member certificates that are accepted, separated by commas \
         (empty: all).",
    ),
    flag("peer-cert-allowed-hostname", Text, "").help(
        "Host names or IP addresses of the member certificates that are accepted, separated by \
         commas (empty: all).",
    ),
    flag("peer-crl-file", Text, "")
        .help("Revocation list of members' certificates (PEM or DER file)."),
    flag("peer-skip-client-san-verification", Switch, "false").help(
        "Do not compare the addresses in a member's certificate with the address of its \
         connection.",
    ),
    flag("cipher-suites", Text, "")
        .help("Cipher suites of TLS 1.2 that are used, separated by commas (empty: all)."),
    flag("tls-min-version", OneOf(&["TLS1.2", "TLS1.3"]), "TLS1.2").help("Minimum version of TLS."),
    flag("tls-max-version", OneOf(&["", "TLS1.2", "TLS1.3"]), "")
        .help("Maximum version of TLS (empty: the newest)."),
    flag("self-signed-cert-validity", Count, "1")
        .help("Validity of certificates that --auto-tls and --peer-auto-tls create, in years."),
];

const AUTH: &[Flag] = &[
    flag("auth-token", Text, "simple").help(
        "Tokens of users: simple, or jwt,OPTIONS with sign-method=METHOD, pub-key=FILE, \
         priv-key=FILE and ttl=TIME (5m). METHOD is RS, PS, ES or HS with 256, 384 or 512, or \
         EdDSA. A public key only verifies.",
    ),
    flag("auth-token-ttl", Count, "300")
        .help("Number of seconds until an unused simple token expires."),
    flag("bcrypt-cost", Count, "10")
        .help("Cost of hashing a password with bcrypt: 4 to 31. Each step doubles the work."),
];

const HTTP: &[Flag] = &[
    flag("cors", Text, "*")
        .help("Origins whose pages may use the HTTP API, separated by commas (* or empty: all)."),
    flag("host-whitelist", Text, "*").help(
        "Host names that HTTP requests without TLS may use, separated by commas (* or empty: all).",
    ),
    flag("enable-grpc-gateway", Switch, "true").help("Serve the JSON gateway below /v3/."),
    flag("enable-pprof", Switch, "false").help(
        "Serve profiles of processor time and memory below /debug/pprof/, in pprof's format.",
    ),
    flag("metrics", OneOf(&["basic", "extensive"]), "basic")
        .help("Metrics that are exported; extensive adds histograms of gRPC latencies."),
];

const LOGGING: &[Flag] = &[
    flag("logger", OneOf(&["zap"]), "zap").help("Logger whose format is used; only zap."),
    flag("log-outputs", Text, "default").help(
        "Outputs of the log, separated by commas: stderr (also called default), stdout, or files.",
    ),
    flag("log-level", OneOf(&["debug", "info", "warn", "error", "panic", "fatal"]), "info")
        .help("Minimum level of log lines."),
    flag("log-format", OneOf(&["json", "console"]), "json").help("Format of log lines."),
    flag("enable-log-rotation", Switch, "false")
        .help("Replace the log file of --log-outputs before it becomes too large."),
    flag("log-rotation-config-json", Text, ROTATION).help(
        "Options of --enable-log-rotation, as JSON: maxsize in MiB (0: 100), maxage of old files \
         in days and maxbackups, their number (0: no limit), localtime in their names, compress.",
    ),
];

const TRACING: &[Flag] = &[
    flag("enable-distributed-tracing", Switch, "false")
        .planned("Export traces with OpenTelemetry.", NO_TRACING),
    flag("distributed-tracing-address", Text, "localhost:4317")
        .planned("Address of the OpenTelemetry collector.", NO_TRACING),
    flag("distributed-tracing-service-name", Text, "etcd")
        .planned("Service name in traces.", NO_TRACING),
    flag("distributed-tracing-instance-id", Text, "")
        .planned("Instance ID of this member in traces (empty: none).", NO_TRACING),
    flag("distributed-tracing-sampling-rate", Number, "0")
        .planned("Number of requests in a million that are traced.", NO_TRACING),
];

const DISCOVERY: &[Flag] = &[
    flag("discovery-token", Text, "").help("Token of the new cluster in the discovery service."),
    flag("discovery-endpoints", Text, "").help(
        "Addresses of the discovery service, separated by commas: another cluster of etcd, with the \
         number of members in /_etcd/registry/TOKEN/_config/size.",
    ),
    flag("discovery-dial-timeout", Duration, "2s")
        .help("Time-out of connections to the discovery service."),
    flag("discovery-request-timeout", Duration, "5s")
        .help("Time-out of requests to the discovery service."),
    flag("discovery-keepalive-time", Duration, "2s")
        .help("Time between two pings of the discovery service."),
    flag("discovery-keepalive-timeout", Duration, "6s")
        .help("Time that the discovery service has to answer a ping."),
    flag("discovery-insecure-transport", Switch, "true")
        .help("Connect without TLS to addresses of the discovery service that have no scheme."),
    flag("discovery-insecure-skip-tls-verify", Switch, "false")
        .help("Do not verify the certificate of the discovery service."),
    flag("discovery-cert", Text, "")
        .help("Client certificate for the discovery service (PEM file)."),
    flag("discovery-key", Text, "").help("Private key of --discovery-cert (PEM file)."),
    flag("discovery-cacert", Text, "").help(
        "Certificate authority of the discovery service (PEM file; default: the system's).",
    ),
    flag("discovery-user", Text, "")
        .help("User at the discovery service: NAME or NAME:PASSWORD."),
    flag("discovery-password", Text, "").help("Password of --discovery-user."),
    flag("discovery-srv", Text, "").help("DNS domain whose SRV records name the members."),
    flag("discovery-srv-name", Text, "").help("Suffix of the service name in these SRV records."),
    flag("discovery-fallback", OneOf(&["exit", "proxy"]), "exit")
        .help("What to do when discovery fails. Only exit: etcd's v2 proxy was removed."),
];

const UNSAFE: &[Flag] = &[
    flag("force-new-cluster", Switch, "false")
        .help("Start a new cluster of only this member, with its data."),
    flag("unsafe-accept-log-loss", Switch, "false")
        .help("Start although the log has lost acknowledged entries at its end; they stay lost."),
    flag("unsafe-no-fsync", Switch, "false").help(
        "Do not sync the log and the store: a crash of the machine may lose data or damage them.",
    ),
];

const REST: &[Flag] = &[
    flag("config-file", Text, "")
        .help("File to read all settings from; other flags and the environment are ignored."),
    flag("version", Switch, "false").help("Print the version and exit."),
    flag("socket-reuse-port", Switch, "false")
        .help("Allow other sockets on the same port (SO_REUSEPORT)."),
    flag("socket-reuse-address", Switch, "false")
        .help("Bind addresses in state TIME_WAIT (SO_REUSEADDR). This is always done, as in etcd."),
    flag(
        "v2-deprecation",
        OneOf(&["write-only", "write-only-skip-check", "write-only-drop-data", "gone"]),
        "write-only",
    )
    .ignored("Phase of the removal of etcd's v2 API.", "there is no v2 API")
    .deprecated(
        "--v2-deprecation is deprecated and scheduled for removal in v3.8. The default value is \
         enforced, ignoring user input.",
    ),
];
