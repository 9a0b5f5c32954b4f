//! etcd itself, as a process: what the replay must agree with before it judges anybody.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::http;
use crate::served::Place;
use crate::wire::PATIENCE;

/// A running etcd.
pub(crate) struct Etcd {
    program: PathBuf,
    process: Child,
    pub(crate) address: SocketAddr,
}

/// Where nobody listens at the moment.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Etcd {
    pub(crate) async fn start(
        program: &Path,
        dir: &Path,
        place: &Place,
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
        let etcd = Etcd { program: program.to_owned(), process, address };
        tokio::time::timeout(PATIENCE, etcd.ready()).await.map_err(|_| "etcd is not ready")?;
        Ok(etcd)
    }

    /// The first call of a recording came when the version of the cluster was known. A learner need
    /// not know it.
    async fn ready(&self) {
        loop {
            if let Ok(answer) = http::ask(self.address, "GET /version", "").await
                && let Ok(answer) = serde_json::from_str::<Value>(&answer.body)
                && answer["etcdcluster"] != "not_decided"
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends it in an orderly way. Which program it was.
    pub(crate) fn stop(mut self) -> Result<PathBuf, String> {
        let asked = Command::new("kill").arg(self.process.id().to_string()).status();
        asked.map_err(|error| error.to_string())?;
        self.process.wait().map_err(|error| error.to_string())?;
        Ok(self.program.clone())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
