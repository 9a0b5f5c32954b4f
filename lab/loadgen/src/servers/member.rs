//! A member as a process, or a gRPC proxy in front of members. Its ports stay the same when it is
//! restarted.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clearlane_net::free_ports;
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use super::program::ServerProgram;
use crate::{Error, Result, TextResult, connection};

/// Maximum time from the start of a member to its first answer. An election takes one to two
/// seconds, and the recovery of a large store takes longer.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Number of lines at the end of a log that an error shows.
const TAIL_LINES: usize = 5;
/// The quota of the store: 8 GiB. That is enough for every experiment, and the largest quota that
/// etcd recommends.
const QUOTA_BYTES: &str = "8589934592";

#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    client_port: u16,
    /// The member's own port for other members.
    pub(super) peer_port: u16,
    /// The port that other members connect to. If there is a proxy, it is the proxy's port.
    pub(super) advertised_peer_port: u16,
    pub(super) is_learner: bool,
    dir: PathBuf,
    process: Option<Child>,
}

impl Member {
    /// Creates `count` members with numbers from `first` on. They are not running yet.
    pub(super) fn several(first: usize, count: usize, dir: &Path) -> Result<Vec<Member>> {
        let none = |error| Error::Local(format!("cannot find a free port of 127.0.0.1: {error}"));
        let ports = free_ports(2 * count).map_err(none)?;
        let numbered = (first..).zip(ports.chunks_exact(2));
        Ok(numbered.map(|(number, ports)| Member::new(number, [ports[0], ports[1]], dir)).collect())
    }

    fn new(number: usize, [client_port, peer_port]: [u16; 2], dir: &Path) -> Member {
        let name = format!("m{number}");
        Member {
            dir: dir.join(&name),
            name,
            client_port,
            peer_port,
            advertised_peer_port: peer_port,
            is_learner: false,
            process: None,
        }
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }

    pub(super) fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.advertised_peer_port)
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Starts the process, and returns without waiting until it answers. `cluster` has all members,
    /// as `NAME=URL,...`. `state` is `new` for a new cluster, or `existing` for a cluster that this
    /// member joins.
    pub(super) fn start(
        &mut self,
        program: &ServerProgram,
        cluster: &str,
        state: &str,
        flags: &[String],
    ) -> Result<()> {
        let (client, peer) = (self.endpoint(), self.peer_url());
        let listen_peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = Command::new(program.binary());
        command.args(["--name", &self.name]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &listen_peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", cluster, "--initial-cluster-state", state]);
        command.args(["--quota-backend-bytes", QUOTA_BYTES]);
        command.args(program.era().map_or(Vec::new(), |era| vec!["--era", era]));
        command.args(flags);
        self.spawn(command)
    }

    /// Starts the process as a gRPC proxy in front of these endpoints, instead of as a member.
    pub(super) fn start_proxy(
        &mut self,
        program: &ServerProgram,
        endpoints: &[String],
    ) -> Result<()> {
        self.dir.set_file_name("proxy");
        let mut command = Command::new(program.binary());
        command.args(["grpc-proxy", "start", "--endpoints", &endpoints.join(",")]);
        command.args(["--listen-addr", &format!("127.0.0.1:{}", self.client_port)]);
        // With an empty address, the proxy returns the members in its list of members.
        command.args(["--advertise-client-url", ""]);
        self.spawn(command)
    }

    fn spawn(&mut self, mut command: Command) -> Result<()> {
        let local = |what: &Path, error: std::io::Error| {
            Error::Local(format!("{}: {error}", what.display()))
        };
        fs::create_dir_all(&self.dir).map_err(|error| local(&self.dir, error))?;
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.map_err(|error| local(&self.log(), error))?;
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // etcd before 3.4 rejects the flag for the log level, but only warns about the environment
        // variable. Proxies ignore it.
        command.env("ETCD_LOG_LEVEL", "error");
        // A Ctrl-C must reach only this program, which then ends the servers itself.
        command.process_group(0).arg("--data-dir").arg(self.data_dir());
        let process = command.spawn();
        let process = process.map_err(|error| local(command.get_program().as_ref(), error))?;
        self.process = Some(process);
        Ok(())
    }

    /// Kills the process. The process has no time to finish, as in a power failure. Unlike in a
    /// power failure, all data that the process has written is kept. Does nothing if the member is
    /// not running.
    pub(super) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Killing fails only if the process has ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Waits until the member answers a read. The read is serializable for a learner, and
    /// linearizable for other members.
    pub(super) async fn wait_until_healthy(&mut self, name: &str) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let process = self.process.as_mut();
            if let Some(Ok(Some(status))) = process.map(Child::try_wait) {
                let ended = format!("ended before it answered ({status})");
                return Err(self.failure(name, &ended));
            }
            let last = match timeout(REQUEST_TIMEOUT, self.read()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(why)) => why,
                Err(_) => format!("no response within {} s", REQUEST_TIMEOUT.as_secs()),
            };
            if Instant::now() >= deadline {
                let seconds = START_TIMEOUT.as_secs();
                return Err(
                    self.failure(name, &format!("did not answer within {seconds} s: {last}"))
                );
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn read(&self) -> TextResult<()> {
        let channel = self.channel().await.map_err(|error| error.to_string())?;
        let range = RangeRequest {
            key: "healthy".into(),
            serializable: self.is_learner,
            ..RangeRequest::default()
        };
        let answer = KvClient::new(channel).range(range).await;
        answer.map(drop).map_err(|status| status.message().to_owned())
    }

    pub(super) async fn channel(&self) -> Result<Channel> {
        let endpoint = connection::endpoint(&self.endpoint())?;
        connection::channel(&endpoint.into()).await
    }

    fn failure(&self, program: &str, what: &str) -> Error {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let tail = tail(&log);
        let member = &self.name;
        Error::Server(format!("{program}, member {member}, {what}; its log ends with: {tail}"))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the end of a log as one line.
fn tail(log: &str) -> String {
    let lines = log.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>();
    match lines[lines.len().saturating_sub(TAIL_LINES)..].join(" | ") {
        tail if tail.is_empty() => "(it is empty)".to_owned(),
        tail => tail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_one_line() {
        assert_eq!(tail("\n \n"), "(it is empty)");
        assert_eq!(tail("a\n\nb\n"), "a | b");
        assert_eq!(tail("1\n2\n3\n4\n5\n6\n7"), "3 | 4 | 5 | 6 | 7");
    }
}
