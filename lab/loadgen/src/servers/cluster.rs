//! A cluster of one or more members, and learners that join it. A gRPC proxy may be in front of it.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{MemberAddRequest, StatusRequest, StatusResponse};
use tempfile::TempDir;
use tonic::Status;

use super::delay_proxy::DelayProxy;
use super::member::Member;
use super::program::ServerProgram;
use crate::process::{Process, ProcessUsage};
use crate::waiting::read_until;
use crate::{Error, Result, connection};

const UNHEALTHY: &str = "unhealthy cluster";
const ELECTION_MAX: Duration = Duration::from_secs(15);
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct ClusterOptions {
    pub members: usize,
    /// Flags in addition to the flags for names, addresses, data and the era.
    pub flags: Vec<String>,
    /// The round-trip time between any two members, which proxies add. If `None`, members are
    /// connected without proxies.
    pub round_trip: Option<Duration>,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions { members: 1, flags: Vec::new(), round_trip: None }
    }
}

/// The processor time and the memory of all running members together.
pub type ClusterUsage = ProcessUsage;

#[derive(Debug)]
pub struct Cluster {
    program: ServerProgram,
    flags: Vec<String>,
    // Must be declared before `dir`. Fields are dropped in the order of their declarations, so the
    // processes end before their directory is removed.
    members: Vec<Member>,
    /// The gRPC proxy in front of the members. `None` until it is started.
    grpc_proxy: Option<Member>,
    _proxies: Vec<DelayProxy>,
    dir: TempDir,
    /// All members, in the format of the flag `--initial-cluster`.
    initial_cluster: String,
}

impl Cluster {
    /// Starts a cluster. Returns when each member has answered a linearizable read.
    pub async fn start(program: &ServerProgram, options: ClusterOptions) -> Result<Cluster> {
        let dir = tempfile::Builder::new().prefix("clearlane-load-").tempdir();
        let dir = dir
            .map_err(|error| Error::Local(format!("cannot create the data directory: {error}")))?;
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
        let grpc_proxy = None;
        let mut cluster =
            Cluster { program, flags, members, grpc_proxy, _proxies, dir, initial_cluster };
        cluster.start_members(0..options.members, "new").await?;
        Ok(cluster)
    }

    /// Starts members, and returns when each of these members answers reads. `state` is `new` for a
    /// cluster that forms, and `existing` for a cluster that the members join.
    async fn start_members(&mut self, numbers: Range<usize>, state: &str) -> Result<()> {
        for member in &mut self.members[numbers.clone()] {
            member.start(&self.program, &self.initial_cluster, state, &self.flags)?;
        }
        for member in &mut self.members[numbers] {
            member.wait_until_healthy(self.program.name()).await?;
        }
        Ok(())
    }

    /// Returns the number of members. It includes learners, which have the last numbers.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the address of a member for clients.
    pub fn endpoint(&self, member: usize) -> String {
        self.members[member].endpoint()
    }

    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Member::endpoint).collect()
    }

    pub fn data_dir(&self, member: usize) -> PathBuf {
        self.members[member].data_dir()
    }

    /// Returns the process ID of a member, or `None` while the member is not running.
    pub fn pid(&self, member: usize) -> Option<u32> {
        self.members[member].pid()
    }

    /// Returns the total usage of the running members.
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

    /// Returns the usage of the gRPC proxy, or `None` if there is none.
    pub fn proxy_usage(&self) -> Result<Option<ProcessUsage>> {
        let pid = self.grpc_proxy.as_ref().and_then(Member::pid);
        pid.map(|pid| Process::open(pid)?.usage()).transpose()
    }

    /// Starts a gRPC proxy in front of all members. Returns its address when it has answered a
    /// linearizable read. A cluster has at most one gRPC proxy, so an earlier one ends.
    pub async fn start_grpc_proxy(&mut self, program: &ServerProgram) -> Result<String> {
        let mut proxy = Member::several(self.len(), 1, self.dir.path())?.remove(0);
        proxy.start_proxy(program, &self.endpoints())?;
        let proxy = self.grpc_proxy.insert(proxy);
        proxy.wait_until_healthy(&format!("the proxy of {}", program.name())).await?;
        Ok(proxy.endpoint())
    }

    /// Kills a member with SIGKILL.
    pub fn kill(&mut self, member: usize) {
        self.members[member].kill();
    }

    /// Kills a member and starts it with its existing data. Returns when it answers a read.
    pub async fn restart(&mut self, member: usize) -> Result<()> {
        self.kill(member);
        // A member with data ignores the initial cluster and its state.
        self.start_members(member..member + 1, "new").await
    }

    /// Returns the status of a running member.
    pub async fn status(&self, member: usize) -> Result<StatusResponse> {
        let channel = self.members[member].channel().await?;
        let answer = MaintenanceClient::new(channel).status(StatusRequest::default()).await;
        let name = self.program.name();
        answer
            .map(tonic::Response::into_inner)
            .map_err(connection::error(format!("cannot read the status of {name}")))
    }

    /// Adds a learner to the membership. Members reject the change until they have been connected
    /// for some seconds, so the change is tried again.
    async fn admit_learner(&self, peer_url: String) -> Result<()> {
        let mut client = ClusterClient::new(self.members[0].channel().await?);
        let add = async || {
            let peer_urls = vec![peer_url.clone()];
            Ok(client.member_add(MemberAddRequest { peer_urls, is_learner: true }).await)
        };
        let is_final = |added: &std::result::Result<_, Status>| {
            added.as_ref().err().is_none_or(|status| !status.message().contains(UNHEALTHY))
        };
        let added = read_until(ADMISSION_TIMEOUT, RETRY_INTERVAL, is_final, add).await?;
        added.map(drop).map_err(connection::error("cannot add a learner"))
    }

    /// Returns the number of the leader. During an election, waits up to 15 s for a leader.
    pub async fn leader(&self) -> Result<usize> {
        let find = async || {
            for member in (0..self.len()).filter(|member| self.pid(*member).is_some()) {
                let StatusResponse { header, leader, .. } = self.status(member).await?;
                if leader != 0 && header.is_some_and(|header| header.member_id == leader) {
                    return Ok(Some(member));
                }
            }
            Ok(None)
        };
        let leader = read_until(ELECTION_MAX, RETRY_INTERVAL, Option::is_some, find).await?;
        let none = || format!("no member of {} became the leader", self.program.name());
        leader.ok_or_else(|| Error::Server(none()))
    }

    /// Adds a learner, and returns its number when it answers serializable reads. The learner has
    /// no proxy, so do not call this function if the options of the cluster set a round-trip time.
    pub async fn add_learner(&mut self) -> Result<usize> {
        let number = self.len();
        let mut learner = Member::several(number, 1, self.dir.path())?.remove(0);
        learner.is_learner = true;
        self.admit_learner(learner.peer_url()).await?;
        self.members.push(learner);
        self.initial_cluster = initial_cluster(&self.members);
        self.start_members(number..number + 1, "existing").await?;
        Ok(number)
    }
}

fn initial_cluster(members: &[Member]) -> String {
    let each = members.iter().map(|member| format!("{}={}", member.name, member.peer_url()));
    each.collect::<Vec<_>>().join(",")
}
