//! HTTP, logs, traces, and flags of no other section.

use super::{Flag, flag};
use crate::config::value::ValueKind::{Number, OneOf, Switch, Text};

const NO_ROTATION: &str = "logs are not rotated; leave that to the collector of the logs";
const NO_TRACING: &str = "there is no tracing";

pub(super) const HTTP: &[Flag] = &[
    flag("cors", Text, "*", "Which origins a browser may come from."),
    flag("host-whitelist", Text, "*", "Which names of this host are taken."),
    flag("enable-grpc-gateway", Switch, "true", "Serve /v3/... as JSON.")
        .ignored("it is always served"),
    flag("enable-pprof", Switch, "false", "Serve Go's profiles.").ignored("this is no Go program"),
    flag("metrics", OneOf(&["basic", "extensive"]), "basic", "How much is measured."),
];

pub(super) const LOGGING: &[Flag] = &[
    flag("logger", OneOf(&["zap"]), "zap", "The logger whose format logs have. There is one."),
    flag("log-outputs", Text, "default", "default and stderr, stdout, or files; a list."),
    flag(
        "log-level",
        OneOf(&["debug", "info", "warn", "error", "panic", "fatal"]),
        "info",
        "What is less than this is not logged.",
    ),
    flag("log-format", OneOf(&["json", "console"]), "json", "How a line looks."),
    flag("enable-log-rotation", Switch, "false", "Begin new files.").ignored(NO_ROTATION),
    flag(
        "log-rotation-config-json",
        Text,
        r#"{"maxsize": 100, "maxage": 0, "maxbackups": 0, "localtime": false, "compress": false}"#,
        "When to begin new files.",
    )
    .ignored(NO_ROTATION),
];

pub(super) const TRACING: &[Flag] = &[
    flag("enable-distributed-tracing", Switch, "false", "Send traces.").ignored(NO_TRACING),
    flag("distributed-tracing-address", Text, "localhost:4317", "Where to.").ignored(NO_TRACING),
    flag("distributed-tracing-service-name", Text, "etcd", "The name of the service.")
        .ignored(NO_TRACING),
    flag("distributed-tracing-instance-id", Text, "", "As which one.").ignored(NO_TRACING),
    flag("distributed-tracing-sampling-rate", Number, "0", "How many of a million requests.")
        .ignored(NO_TRACING),
];

pub(super) const UNSAFE: &[Flag] = &[
    flag("force-new-cluster", Switch, "false", "Go on as the only member, with what is here."),
    flag("unsafe-no-fsync", Switch, "false", "Lose data when the power fails.")
        .ignored("what is acknowledged is on disk"),
];

pub(super) const REST: &[Flag] = &[
    flag("config-file", Text, "", "Read all from this file, and nothing from elsewhere."),
    flag("version", Switch, "false", "Print the version and end."),
    flag("socket-reuse-port", Switch, "false", "Share the port with others.")
        .ignored("a port has one owner"),
    flag("socket-reuse-address", Switch, "false", "Take an address that is not free yet.")
        .ignored("that is always done where it is safe"),
    flag(
        "v2-deprecation",
        OneOf(&["not-yet", "write-only", "write-only-drop-data", "gone"]),
        "write-only",
        "What is kept of etcd's second version.",
    )
    .ignored("there is nothing of it"),
];
