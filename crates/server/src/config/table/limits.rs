//! How much there may be: of data, in one request, of the past.

use super::{Flag, flag};
use crate::config::value::Kind::{Count, Duration, Number, OneOf, Switch, Text};

const NO_CHECKS: &str = "members are not compared yet";

pub(super) const STORE: &[Flag] = &[
    flag(
        "quota-backend-bytes",
        Number,
        "0",
        "So much data is taken; 0 is 2 GiB, below 0 no limit.",
    ),
    flag("backend-batch-interval", Duration, "0s", "Between two commits; 0 is 100 ms."),
    flag("backend-batch-limit", Count, "0", "So many changes are committed at once; 0 is 10,000."),
    flag("backend-bbolt-freelist-type", OneOf(&["map", "array"]), "map", "How bbolt counts pages.")
        .ignored("there is no bbolt"),
    flag("memory-mlock", Switch, "false", "Keep the data in memory.")
        .ignored("the engine has a cache of its own"),
    flag("bootstrap-defrag-threshold-megabytes", Count, "0", "Defragment before the start.")
        .ignored("use `clearlane defrag`"),
];

pub(super) const REQUESTS: &[Flag] = &[
    flag("max-txn-ops", Count, "128", "So many operations a transaction has."),
    flag("max-request-bytes", Count, "1572864", "So long a request is, as an entry of the log."),
    flag("max-concurrent-streams", Count, "4294967295", "So many streams a connection has.")
        .ignored("there is no limit"),
    flag("grpc-keepalive-min-time", Duration, "5s", "Between two pings of a client, at least.")
        .ignored("pings are answered however often they come"),
    flag("grpc-keepalive-interval", Duration, "2h0m0s", "Until a silent client is asked.")
        .ignored("it is etcd's default"),
    flag("grpc-keepalive-timeout", Duration, "20s", "Until a client that was asked is given up.")
        .ignored("it is etcd's default"),
    flag("watch-progress-notify-interval", Duration, "10m0s", "Between two notes to a watcher.")
        .ignored("the interval is etcd's default"),
    flag("warning-apply-duration", Duration, "100ms", "What takes longer to apply is logged.")
        .ignored("see --warning-unary-request-duration, which tells where the time went"),
    flag("warning-unary-request-duration", Duration, "300ms", "What takes longer is logged."),
];

pub(super) const UPKEEP: &[Flag] = &[
    flag(
        "auto-compaction-mode",
        OneOf(&["periodic", "revision"]),
        "periodic",
        "Whether the retention is a time or a number of revisions.",
    )
    .ignored("nothing is compacted without being asked"),
    flag("auto-compaction-retention", Text, "0", "So much of the past is kept; 0 keeps all.")
        .ignored("nothing is compacted without being asked"),
    flag("compaction-batch-limit", Count, "1000", "So many revisions in one step.")
        .ignored("the step is etcd's default"),
    flag("compaction-sleep-interval", Duration, "10ms", "Rest behind each step.")
        .ignored("the rest is etcd's default"),
    flag("compact-hash-check-time", Duration, "1m0s", "Between two checks behind compactions.")
        .ignored(NO_CHECKS),
    flag("corrupt-check-time", Duration, "0s", "Between two checks; 0 is never.")
        .ignored(NO_CHECKS),
    flag("downgrade-check-time", Duration, "5s", "Between two looks at a downgrade.")
        .ignored("there is no older version to go to"),
    flag("feature-gates", Text, "", "Features on and off: A=true,B=false.")
        .ignored("no feature here has a gate"),
];
