//! Limits that the process sets for itself before it opens its data: the number of open files, the
//! mode of new files, whether a crash writes memory to disk, and whether memory is locked.
//!
//! Each connection uses one open file. If connections used all of the allowed files, the member
//! could not open a new segment of its log, and would stop. So connections of clients get all
//! allowed files except [a reserve](reserved_files). If the limit of open files is very low,
//! clients get a quarter of the files, and the reserve is smaller.

use clearlane_rpc::{http, serve};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

/// As in etcd, a member does not start if the limit of open files is this number or less.
const FILES_MIN: usize = 150;
/// Number of files reserved for the log, the store, and the connections to other members.
const OWN_FILES: usize = 160;
/// Number of files reserved for each network thread. The number includes the files of its handshake
/// thread, and the files with which each runtime waits for events.
const FILES_PER_NET_THREAD: usize = 12;

/// Limits on the number of client connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllowedConnections {
    pub(crate) max: usize,
    /// The limit if `--max-connections` is not set: `max`, but at most
    /// [`CONNECTIONS_MAX`](serve::CONNECTIONS_MAX), because each connection also takes memory.
    pub(crate) default: usize,
}

/// Raises the limit of open files and returns how many connections it allows. Fails if the limit is
/// [`FILES_MIN`] or less.
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

/// Raises the limit of open files. Returns how many connections a TCP proxy may have, each of which
/// uses two files.
pub(crate) fn proxied_connections_max() -> usize {
    let files = raise_open_files().and_then(|files| usize::try_from(files).ok());
    let files = files.unwrap_or(usize::MAX);
    (files.saturating_sub(OWN_FILES).max(files / 4) / 2).clamp(1, serve::CONNECTIONS_MAX)
}

/// Number of files that client connections must leave free.
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

/// Raises the limit of open files to the process's hard limit. Go does the same for etcd: the lower
/// default is meant for programs that cannot handle more files. Returns the limit that now applies,
/// or `None` if the number of open files is not limited.
fn raise_open_files() -> Option<u64> {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limits.maximum, maximum: limits.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limits.maximum,
        Err(_) => limits.current,
    }
}

/// Locks the memory of the process, so that it is never swapped out, for `--memory-mlock`. Memory
/// that the process allocates later is locked when it is first used.
///
/// If the system limits locked memory, allocations fail once the limit is reached. So a limit of
/// any size is an error, even a limit that would suffice at startup. A process with the capability
/// `CAP_IPC_LOCK` has no limit.
#[cfg(target_os = "linux")]
pub(crate) fn lock_memory() -> Result<(), String> {
    use rustix::mm::{MlockAllFlags, mlockall};
    use rustix::thread::{CapabilitySet, capabilities};
    let may_lock_all =
        capabilities(None).is_ok_and(|all| all.effective.contains(CapabilitySet::IPC_LOCK));
    if let Some(bytes) = getrlimit(Resource::Memlock).current
        && !may_lock_all
    {
        return Err(format!(
            "--memory-mlock: the limit of locked memory is {bytes} bytes, and must be `unlimited`: \
             raise it with `ulimit -l`, or LimitMEMLOCK= of systemd"
        ));
    }
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
        .map_err(|error| format!("--memory-mlock: {error}"))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn lock_memory() -> Result<(), String> {
    Err("--memory-mlock: memory can be locked on Linux only".to_owned())
}

/// Makes new files, directories and sockets accessible to this user only.
pub(crate) fn keep_files_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Prevents core files, so that a crash writes no keys or passwords to disk.
///
/// The limit is one byte, and no core file is that small. Linux pipes a core to a program even if
/// the limit is zero, but not if the limit is one.
pub(crate) fn prevent_core_files() {
    let none = Rlimit { current: Some(1), maximum: Some(1) };
    if setrlimit(Resource::Core, none).is_err() {
        // The call fails if the hard limit is zero. Then only zero can be set.
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
        // If only 256 files are allowed, clients get a quarter. The remaining files are fewer than
        // the usual reserve.
        assert_eq!(of(256), (64, 64));
    }
}
