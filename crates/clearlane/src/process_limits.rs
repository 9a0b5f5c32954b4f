//! What the process sets for itself before it opens its data: how many files may be open, which
//! rights new files have, and whether a crash writes memory to disk.
//!
//! A connection is a file. With none left, a new segment of the log could not be opened, and a
//! member stops when its log fails. So connections get all but [some](reserved_files).

use clearlane_rpc::{http, serve};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

/// etcd refuses to start with no more.
const FILES_MIN: usize = 150;
/// For the log, the store, and connections to other members.
const OWN_FILES: usize = 160;
/// With the one for handshakes before it, and what each runtime waits with.
const FILES_PER_NET_THREAD: usize = 12;

/// How many connections of clients there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllowedConnections {
    pub(crate) max: usize,
    /// Without `--max-connections`: each takes memory, too.
    pub(crate) default: usize,
}

/// Raises the limit of open files. The error is a limit that no member can work with.
pub(crate) fn allowed_connections(
    net_threads: usize,
    metrics_ports: usize,
) -> Result<AllowedConnections, String> {
    let files = raise_open_files().and_then(|files| usize::try_from(files).ok());
    let files = files.unwrap_or(usize::MAX);
    if files <= FILES_MIN {
        return Err(format!(
            "the limit of open files is {files}, and must be more than {FILES_MIN}: raise it with \
             `ulimit -n`, or LimitNOFILE= of systemd"
        ));
    }
    Ok(connections_of(files, reserved_files(net_threads, metrics_ports)))
}

/// What the limit of clients' connections does not count.
fn reserved_files(net_threads: usize, metrics_ports: usize) -> usize {
    OWN_FILES
        + FILES_PER_NET_THREAD * net_threads
        + clearlane_peer::CONNECTIONS_MAX
        + http::METRICS_CONNECTIONS_MAX * metrics_ports
}

fn connections_of(files: usize, reserved: usize) -> AllowedConnections {
    let max = files.saturating_sub(reserved).max(files / 4);
    AllowedConnections { max, default: max.min(serve::CONNECTIONS_MAX) }
}

/// As far as the system lets each process go, as Go does for etcd: the lower limit is meant for
/// programs that cannot have more. Returns it, or `None` if there is none.
fn raise_open_files() -> Option<u64> {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limits.maximum, maximum: limits.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limits.maximum,
        Err(_) => limits.current,
    }
}

/// New files are for this user alone, and so are new directories and sockets.
pub(crate) fn keep_files_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Without core files, keys and passwords do not reach a disk that way.
///
/// The limit is one byte: no file is that small, and Linux pipes a core of a process with that
/// limit to no program either, which it does with a limit of zero.
pub(crate) fn prevent_core_files() {
    let none = Rlimit { current: Some(1), maximum: Some(1) };
    if setrlimit(Resource::Core, none).is_err() {
        // The limit is lower already.
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_counted_has_files_left() {
        let reserved = reserved_files(1, 1);
        assert_eq!(reserved, 364);
        let of = |files| {
            let AllowedConnections { max, default } = connections_of(files, reserved);
            (max, default)
        };
        assert_eq!(of(1_048_576), (1_048_212, 65_536));
        assert_eq!(of(1024), (660, 660));
        // With so few, members and metrics must not be asked for all that they may have.
        assert_eq!(of(256), (64, 64));
    }
}
