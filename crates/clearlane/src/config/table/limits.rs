//! How much there may be: of data, in one request, of the past.

use super::{Flag, flag};
use crate::config::value::ValueKind::{Count, Duration, Gates, Number, OneOf, Switch, Text};

pub(super) const STORE: &[Flag] = &[
    flag(
        "quota-backend-bytes",
        Number,
        "0",
        "Bytes of data that are taken; 0 is 2 GiB, below 0 no limit.",
    ),
    flag("backend-batch-interval", Duration, "0s", "Between two commits; 0 is 100 ms."),
    flag(
        "backend-batch-limit",
        Count,
        "0",
        "Number of changes that are committed at once; 0 is 10,000.",
    ),
    flag("backend-bbolt-freelist-type", OneOf(&["map", "array"]), "map", "How bbolt counts pages.")
        .ignored("there is no bbolt"),
    flag("memory-mlock", Switch, "false", "Keep the data in memory.")
        .ignored("the engine has a cache of its own"),
    flag("bootstrap-defrag-threshold-megabytes", Count, "0", "Defragment before the start.")
        .ignored("use `clearlane defrag`"),
];

pub(super) const REQUESTS: &[Flag] = &[
    flag("max-txn-ops", Count, "128", "Number of operations that a transaction may have."),
    flag(
        "max-request-bytes",
        Count,
        "1572864",
        "Bytes that a request may have, as an entry of the log.",
    ),
    flag(
        "max-concurrent-streams",
        Count,
        "4294967295",
        "Number of streams that a connection may have.",
    ),
    flag("grpc-keepalive-min-time", Duration, "5s", "Between two pings of a client, at least."),
    flag("grpc-keepalive-interval", Duration, "2h0m0s", "Until a silent client is sent a ping."),
    flag(
        "grpc-keepalive-timeout",
        Duration,
        "20s",
        "Until a client that does not answer the ping is given up.",
    ),
    flag(
        "watch-progress-notify-interval",
        Duration,
        "10m0s",
        "Between two progress notices to a watcher.",
    ),
    flag("warning-apply-duration", Duration, "100ms", "What takes longer to apply is logged."),
    flag("warning-unary-request-duration", Duration, "300ms", "What takes longer is logged."),
];

pub(super) const COMPACTION: &[Flag] = &[
    flag(
        "auto-compaction-mode",
        OneOf(&["periodic", "revision"]),
        "periodic",
        "Whether the retention is a time or a number of revisions.",
    ),
    flag("auto-compaction-retention", Text, "0", "How much of the past is kept; 0 keeps all."),
    flag("compaction-batch-limit", Count, "1000", "Number of revisions in one step."),
    flag("compaction-sleep-interval", Duration, "10ms", "Rest behind each step."),
    flag("compact-hash-check-time", Duration, "1m0s", "Between two checks behind compactions."),
    flag("corrupt-check-time", Duration, "0s", "Between two checks; 0 is never."),
    flag("downgrade-check-time", Duration, "5s", "Between two checks for a downgrade.")
        .ignored("there is no older version to go to"),
    flag("feature-gates", Gates, "", "Features on and off: A=true,B=false."),
];
