//! etcd in a separate process. Replaying a recording against etcd must find no difference; this
//! checks the replay.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use clearlane_net::free_ports;

use crate::served::MemberSpec;

pub(crate) struct Etcd {
    process: Child,
    pub(crate) address: SocketAddr,
}

/// Returns an address where no process is listening.
pub(crate) fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_ports(1).unwrap()[0]))
}

impl Etcd {
    pub(crate) fn start(
        program: &Path,
        dir: &Path,
        place: &MemberSpec,
        flags: &[String],
    ) -> Result<Etcd, String> {
        let address = free_address();
        let process = Command::new(program)
            .args(["--data-dir".as_ref(), dir.as_os_str()])
            .args(["--name", place.name, "--initial-cluster", &place.initial_cluster])
            .args(["--initial-cluster-state", place.state])
            .args(["--listen-client-urls", &format!("http://{address}")])
            .args(["--advertise-client-urls", place.client_url])
            .args(["--listen-peer-urls", &format!("http://{}", place.peer_listen)])
            .args(["--initial-advertise-peer-urls", &place.peer_url])
            .args(["--log-level", "fatal"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let process = process.map_err(|error| format!("{}: {error}", program.display()))?;
        Ok(Etcd { process, address })
    }

    /// Stops etcd with SIGTERM.
    pub(crate) fn stop(mut self) -> Result<(), String> {
        let asked = Command::new("kill").arg(self.process.id().to_string()).status();
        asked.map_err(|error| error.to_string())?;
        self.process.wait().map(drop).map_err(|error| error.to_string())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
