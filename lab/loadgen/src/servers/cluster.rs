//! One member or several that are one cluster, and learners that join it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{MemberAddRequest, StatusRequest, StatusResponse};
use tempfile::TempDir;
use tokio::time::sleep;

use super::delay_proxy::DelayProxy;
use super::member::Member;
use super::program::ServerProgram;
use crate::process::Process;
use crate::{Error, Result};

const UNHEALTHY: &str = "unhealthy cluster";
const ELECTION_MAX: Duration = Duration::from_secs(15);
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(30);
const ADMISSION_RETRY: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct ClusterOptions {
    pub members: usize,
    /// Beside those for names, addresses, data and the era.
    pub flags: Vec<String>,
    /// Between any two members, through proxies. Without one, they are connected as they are.
    pub round_trip: Option<Duration>,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions { members: 1, flags: Vec::new(), round_trip: None }
    }
}

/// Of all members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterUsage {
    /// Since the processes started.
    pub processor: Duration,
    pub resident_bytes: u64,
    pub peak_bytes: u64,
}

#[derive(Debug)]
pub struct Cluster {
    program: ServerProgram,
    flags: Vec<String>,
    // They end before their directory is removed: fields are dropped in this order.
    members: Vec<Member>,
    _proxies: Vec<DelayProxy>,
    dir: TempDir,
    /// All members, as the flag `--initial-cluster` wants them.
    initial_cluster: String,
}

impl Cluster {
    /// Returns when each member has answered a linearizable read.
    pub async fn start(program: &ServerProgram, options: ClusterOptions) -> Result<Cluster> {
        let dir = tempfile::Builder::new().prefix("clearlane-load-").tempdir();
        let dir = dir.map_err(|error| Error::Local(format!("no directory for data: {error}")))?;
        let mut members = Member::several(0, options.members, dir.path())?;
        let mut proxies = Vec::new();
        if let Some(round_trip) = options.round_trip {
            for member in &mut members {
                let target = ([127, 0, 0, 1], member.peer_port).into();
                let proxy = DelayProxy::start(target, round_trip / 2)?;
                member.advertised_peer_port = proxy.address().port();
                proxies.push(proxy);
            }
        }
        let (program, flags) = (program.clone(), options.flags);
        let initial_cluster = initial_cluster(&members);
        let _proxies = proxies;
        let mut cluster = Cluster { program, flags, members, _proxies, dir, initial_cluster };
        for member in &mut cluster.members {
            member.start(&cluster.program, &cluster.initial_cluster, "new", &cluster.flags)?;
        }
        for member in &mut cluster.members {
            member.wait_until_healthy(cluster.program.name()).await?;
        }
        Ok(cluster)
    }

    pub fn program(&self) -> &ServerProgram {
        &self.program
    }

    /// With learners, which are the last ones.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A member's address for clients.
    pub fn endpoint(&self, member: usize) -> String {
        self.members[member].endpoint()
    }

    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Member::endpoint).collect()
    }

    pub fn data_dir(&self, member: usize) -> PathBuf {
        self.members[member].data_dir()
    }

    /// None while the member does not run.
    pub fn pid(&self, member: usize) -> Option<u32> {
        self.members[member].pid()
    }

    /// Of members that run.
    pub fn usage(&self) -> Result<ClusterUsage> {
        let mut sum = ClusterUsage::default();
        for pid in self.members.iter().filter_map(Member::pid) {
            let usage = Process::open(pid)?.usage()?;
            sum.processor += usage.processor;
            sum.resident_bytes += usage.resident_bytes;
            sum.peak_bytes += usage.peak_bytes;
        }
        Ok(sum)
    }

    /// With SIGKILL.
    pub fn kill(&mut self, member: usize) {
        self.members[member].kill();
    }

    /// With the data that it has; returns when it answers.
    pub async fn restart(&mut self, member: usize) -> Result<()> {
        let member = &mut self.members[member];
        member.kill();
        // A member that has data ignores both flags.
        member.start(&self.program, &self.initial_cluster, "new", &self.flags)?;
        member.wait_until_healthy(self.program.name()).await
    }

    /// Of a member that runs.
    pub async fn status(&self, member: usize) -> Result<StatusResponse> {
        let channel = self.members[member].channel().await?;
        let answer = MaintenanceClient::new(channel).status(StatusRequest::default()).await;
        let name = self.program.name();
        answer.map(tonic::Response::into_inner).map_err(|status| {
            Error::Server(format!("{name} did not tell its status: {}", status.message()))
        })
    }

    /// Members refuse it until they have been connected for some seconds.
    async fn admit_learner(&self, peer_url: String) -> Result<()> {
        let mut client = ClusterClient::new(self.members[0].channel().await?);
        let deadline = Instant::now() + ADMISSION_TIMEOUT;
        loop {
            let peer_urls = vec![peer_url.clone()];
            let status =
                match client.member_add(MemberAddRequest { peer_urls, is_learner: true }).await {
                    Ok(_) => return Ok(()),
                    Err(status) => status,
                };
            if !status.message().contains(UNHEALTHY) || Instant::now() >= deadline {
                let why = status.message();
                return Err(Error::Server(format!("no learner was added: {why}")));
            }
            sleep(ADMISSION_RETRY).await;
        }
    }

    /// Waits for the end of an election.
    pub async fn leader(&self) -> Result<usize> {
        let deadline = Instant::now() + ELECTION_MAX;
        loop {
            for member in (0..self.len()).filter(|member| self.pid(*member).is_some()) {
                let StatusResponse { header, leader, .. } = self.status(member).await?;
                if leader != 0 && header.is_some_and(|header| header.member_id == leader) {
                    return Ok(member);
                }
            }
            if Instant::now() >= deadline {
                return Err(Error::Server(format!("no member of {} leads", self.program.name())));
            }
            sleep(ADMISSION_RETRY).await;
        }
    }

    /// Returns its number, when it answers serializable reads. Not with a round trip.
    pub async fn add_learner(&mut self) -> Result<usize> {
        let number = self.len();
        let mut learner = Member::several(number, 1, self.dir.path())?.remove(0);
        learner.is_learner = true;
        self.admit_learner(learner.peer_url()).await?;
        self.members.push(learner);
        self.initial_cluster = initial_cluster(&self.members);
        let learner = &mut self.members[number];
        learner.start(&self.program, &self.initial_cluster, "existing", &self.flags)?;
        learner.wait_until_healthy(self.program.name()).await?;
        Ok(number)
    }
}

fn initial_cluster(members: &[Member]) -> String {
    let each = members.iter().map(|member| format!("{}={}", member.name, member.peer_url()));
    each.collect::<Vec<_>>().join(",")
}
