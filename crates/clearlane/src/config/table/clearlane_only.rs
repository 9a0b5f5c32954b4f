//! What etcd has no flag for: which era of the read path is used, and what is recorded of it.

use super::{Flag, flag};
use crate::config::value::ValueKind::{Count, OneOf, Text};

pub(super) const ERAS: &[Flag] = &[
    flag(
        "era",
        OneOf(&["3.0", "3.1", "3.2", "3.4", "3.5", "clearlane"]),
        "clearlane",
        "The read path of which etcd.",
    ),
    flag(
        "read-mode",
        OneOf(&["", "log", "read-index", "lease", "serializable"]),
        "",
        "How a linearizable read is made one; the era's if nothing is said.",
    ),
    flag("engine", OneOf(&["redb", "sled", "memory"]), "redb", "What has the data on disk."),
    flag(
        "engine-cache-bytes",
        Count,
        "67108864",
        "Bytes of the data that the engine has in memory; the system keeps the file's pages, too.",
    ),
    flag(
        "net-threads",
        Count,
        "0",
        "Number of threads that serve clients; 0 is half the number of cores, and at most 4.",
    ),
    flag(
        "timeline",
        Text,
        "",
        "Records which thread waited for which, in this file; SIGUSR1 ends it or begins anew.",
    ),
];
