//! The settings that all experiments share: the scale, the number of rounds, and the servers. Also
//! starts the servers for an experiment.

use std::path::PathBuf;
use std::time::Duration;

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{DeleteRangeRequest, StatusRequest};
use futures_util::TryFutureExt as _;
use tonic::transport::Channel;

use super::arguments::{ExperimentArguments, NO_ERA, Scale};
use super::measurements::Measurements;
use crate::process::ProcessUsage;
use crate::servers::{Cluster, ClusterOptions, ClusterUsage, ServerProgram};
use crate::stop::Stop;
use crate::waiting::answered;
use crate::{Error, Result, connection};

/// Prefix of the keys of all experiments. If the user has given the endpoints of a running cluster,
/// the keys with this prefix are deleted in that cluster.
pub(super) const PREFIX: &str = "/experiment/";
/// The name, in tables, of a cluster whose endpoints the user has given.
const GIVEN: &str = "given";
/// The name, in tables, of the route to a member without a proxy.
const DIRECT: &str = "direct";
/// The reason why an experiment is skipped if only a given cluster can be measured.
pub(super) const STARTS_ITS_SERVERS: &str = "skipped: it starts its servers itself, and cannot \
    use the cluster of --endpoints; name an era or --etcd BINARY";
const CLEAN_UP_MAX: Duration = Duration::from_secs(30);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Context {
    pub(super) scale: Scale,
    pub(super) rounds: u64,
    pub(super) seed: u64,
    pub(super) redis: Option<String>,
    /// The number of keys in an expensive read. If `None`, it is measured.
    pub(super) keys: Option<u64>,
    clearlane: PathBuf,
    /// The eras to measure. If `None`, each experiment chooses its eras.
    eras: Option<Vec<String>>,
    etcd: Option<ServerProgram>,
    given: Vec<String>,
    tell: Box<dyn Fn(&str)>,
    /// When this is set, the running measurement is dropped.
    pub(super) stop: Stop,
}

/// A server that is measured, or a route to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A program that is started for the measurement.
    Program(ServerProgram),
    /// A member that is started for the measurement. Clients use the proxy in front of it. If the
    /// proxy is `None`, they use the member.
    Routed { member: ServerProgram, proxy: Option<ServerProgram> },
    /// The endpoints of a cluster that is already running.
    Given(Vec<String>),
}

/// A cluster that answers requests.
#[derive(Debug)]
pub(super) struct Running {
    /// The cluster that was started. `None` for a given cluster.
    pub(super) cluster: Option<Cluster>,
    /// The addresses for clients: the addresses of all members, or the address of the proxy. If
    /// there is a learner, its address is the last one.
    pub(super) endpoints: Vec<String>,
    /// The address of the leader. For a given cluster, its first address.
    pub(super) leader: String,
}

/// The processor time that all members together have used, and the time that the proxy has used.
/// `None` for processes that were not started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Processor([Option<Duration>; 2]);

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Context { scale, rounds, seed, .. } = self;
        let mut shown = f.debug_struct("Context");
        shown.field("scale", scale).field("rounds", rounds).field("seed", seed);
        shown.finish_non_exhaustive()
    }
}

impl Context {
    /// Creates the context. Fails if a program does not exist, or if an endpoint does not answer.
    /// `tell` is called with lines of progress.
    pub async fn new(
        arguments: &ExperimentArguments,
        tell: impl Fn(&str) + 'static,
        stop: Stop,
    ) -> Result<Context> {
        let rounds = match arguments.scale {
            Scale::Small => 1,
            Scale::Full => 5,
        };
        let clearlane = match &arguments.clearlane {
            Some(clearlane) => clearlane.clone(),
            None => ServerProgram::clearlane_beside_this_program()?,
        };
        let named = arguments.era.iter().filter(|era| *era != NO_ERA).cloned();
        let eras = (!arguments.era.is_empty()).then(|| named.collect::<Vec<_>>());
        if eras.as_ref().is_none_or(|eras| !eras.is_empty()) {
            ServerProgram::clearlane(&clearlane, "clearlane")?;
        }
        for endpoint in &arguments.endpoints {
            check_answers(endpoint).await?;
        }
        Ok(Context {
            scale: arguments.scale,
            rounds: arguments.rounds.unwrap_or(rounds),
            seed: arguments.seed,
            redis: arguments.redis.clone(),
            keys: arguments.keys,
            clearlane,
            eras,
            etcd: arguments.etcd.as_deref().map(ServerProgram::etcd).transpose()?,
            given: arguments.endpoints.clone(),
            tell: Box::new(tell),
            stop,
        })
    }

    pub(super) fn tell(&self, line: &str) {
        (self.tell)(line);
    }

    /// Returns the servers that an experiment can start with flags or with several members, and can
    /// kill: Clearlane in each era that the user has named, or otherwise in each of `eras`, and
    /// etcd if the user has named its program.
    pub(super) fn programs(&self, eras: &[String]) -> Result<Vec<Subject>> {
        let eras = self.eras.as_deref().unwrap_or(eras);
        let programs = eras.iter().map(|era| ServerProgram::clearlane(&self.clearlane, era));
        let mut programs = programs.collect::<Result<Vec<_>>>()?;
        programs.extend(self.etcd.clone());
        Ok(programs.into_iter().map(Subject::Program).collect())
    }

    /// Returns the routes to a member: direct, through Clearlane's proxy, and also through etcd's
    /// proxy if the user has named etcd's program. The member is the first of the
    /// [`programs`](Context::programs).
    pub(super) fn routes(&self, eras: &[String]) -> Result<Vec<Subject>> {
        let Some(Subject::Program(member)) = self.programs(eras)?.into_iter().next() else {
            return Ok(Vec::new());
        };
        let ours = ServerProgram::clearlane(&self.clearlane, "clearlane")?;
        let proxies = [None, Some(ours)].into_iter().chain(self.etcd.clone().map(Some));
        Ok(proxies.map(|proxy| Subject::Routed { member: member.clone(), proxy }).collect())
    }

    /// Returns Clearlane in this era, even if the user has named other eras. If the user has
    /// excluded Clearlane (`--era none`), returns etcd or the given cluster.
    pub(super) fn program_or_given(&self, era: &str) -> Result<Subject> {
        if self.starts_ours() {
            return ServerProgram::clearlane(&self.clearlane, era).map(Subject::Program);
        }
        self.servers(&[])?.into_iter().next().ok_or_else(no_server)
    }

    /// Returns whether a given cluster is the only server.
    pub(super) fn has_only_given(&self) -> bool {
        !self.given.is_empty() && !self.starts_ours() && self.etcd.is_none()
    }

    fn starts_ours(&self) -> bool {
        self.eras.as_ref().is_none_or(|eras| !eras.is_empty())
    }

    /// Returns the same servers as [`programs`](Context::programs), and also the given cluster if
    /// there is one.
    pub(super) fn servers(&self, eras: &[String]) -> Result<Vec<Subject>> {
        let mut servers = self.programs(eras)?;
        if !self.given.is_empty() {
            servers.push(Subject::Given(self.given.clone()));
        }
        Ok(servers)
    }

    /// Returns each program with its version, for reports.
    pub fn versions(&self) -> Result<Vec<(String, String)>> {
        let mut versions = Vec::new();
        if self.starts_ours() {
            let clearlane = ServerProgram::clearlane(&self.clearlane, "clearlane")?;
            versions.push(("clearlane".to_owned(), clearlane.version()?));
        }
        if let Some(etcd) = &self.etcd {
            versions.push((etcd.name().to_owned(), etcd.version()?));
        }
        if !self.given.is_empty() {
            versions.push((GIVEN.to_owned(), self.given.join(", ")));
        }
        Ok(versions)
    }

    /// Returns the points of a curve in the order for a round. Every other round starts at the end,
    /// because the store grows from one point to the next. `seed` is the seed of the round.
    pub(super) fn in_order<T: Clone>(&self, points: &[T], seed: u64) -> Vec<T> {
        let mut points = points.to_vec();
        if seed.wrapping_sub(self.seed) % 2 == 1 {
            points.reverse();
        }
        points
    }

    /// Measures the servers one after the other, in rounds. If a measurement fails, the experiment
    /// fails. After an interruption, the running measurement is dropped, and the figures of the
    /// earlier measurements are returned.
    pub(super) async fn in_turns(
        &self,
        subjects: &[Subject],
        mut measure: impl AsyncFnMut(&Subject, u64, &mut Measurements) -> Result<()>,
    ) -> Result<Measurements> {
        let names = subjects.iter().map(|subject| subject.name().to_owned()).collect();
        let mut all = Measurements::new(names);
        if subjects.is_empty() {
            return Err(no_server());
        }
        for round in 0..self.rounds {
            for subject in subjects {
                let name = subject.name();
                self.tell(&format!("round {} of {}: {name}", round + 1, self.rounds));
                let mut own = Measurements::default();
                let seed = self.seed.wrapping_add(round);
                let result = tokio::select! {
                    biased;
                    () = self.stop.wait() => {
                        all.warn(format!("interrupted in round {}, at {name}", round + 1));
                        subject.clean_up().await;
                        return Ok(all);
                    }
                    result = measure(subject, seed, &mut own) => result,
                };
                if result.is_err() {
                    subject.clean_up().await;
                }
                result.map_err(|error| Error::Server(format!("{name}: {error}")))?;
                all.take(own);
            }
            all.end_round();
        }
        Ok(all)
    }
}

fn no_server() -> Error {
    let allowed = "use --era ERA, --etcd BINARY, or --endpoints URL if the experiment allows it";
    Error::Local(format!("there is no server to measure: {allowed}"))
}

/// The error of an experiment that cannot use a given cluster.
pub(super) fn given() -> Error {
    Error::Local(STARTS_ITS_SERVERS.to_owned())
}

impl Subject {
    pub(super) fn name(&self) -> &str {
        match self {
            Subject::Program(program) => program.name(),
            Subject::Routed { proxy, .. } => proxy.as_ref().map_or(DIRECT, ServerProgram::name),
            Subject::Given(_) => GIVEN,
        }
    }

    /// Starts the server, or deletes the old keys of a given cluster. `options` apply only to
    /// programs.
    pub(super) async fn start(&self, options: ClusterOptions) -> Result<Running> {
        match self {
            Subject::Program(program) | Subject::Routed { member: program, .. } => {
                let cluster = Cluster::start(program, options).await?;
                let leader = cluster.endpoint(cluster.leader().await?);
                let endpoints = cluster.endpoints();
                Ok(Running { cluster: Some(cluster), endpoints, leader })
            }
            Subject::Given(endpoints) => {
                let (endpoints, leader) = (endpoints.clone(), endpoints[0].clone());
                delete_all(&leader).await?;
                Ok(Running { cluster: None, endpoints, leader })
            }
        }
    }

    /// Deletes the experiments' keys in a given cluster, if the cluster answers within 30 s. Call
    /// this function after a measurement that failed or was dropped.
    pub(super) async fn clean_up(&self) {
        if let Subject::Given(endpoints) = self {
            let _ = tokio::time::timeout(CLEAN_UP_MAX, delete_all(&endpoints[0])).await;
        }
    }
}

impl Running {
    /// Adds a learner, which becomes the last member.
    pub(super) async fn add_learner(&mut self) -> Result<()> {
        let cluster = self.cluster.as_mut().ok_or_else(given)?;
        cluster.add_learner().await?;
        self.endpoints = cluster.endpoints();
        Ok(())
    }

    /// Returns the address of the last member, which is the learner if there is one.
    pub(super) fn learner(&self) -> &str {
        self.endpoints.last().expect("a cluster has a member")
    }

    /// Starts a proxy in front of the members. After this call, `endpoints` has only its address.
    pub(super) async fn start_proxy(&mut self, program: &ServerProgram) -> Result<()> {
        let cluster = self.cluster.as_mut().ok_or_else(given)?;
        self.endpoints = vec![cluster.start_grpc_proxy(program).await?];
        Ok(())
    }

    /// Returns the usage of the proxy, or `None` if there is none.
    pub(super) fn proxy_usage(&self) -> Result<Option<ProcessUsage>> {
        self.cluster.as_ref().map_or(Ok(None), Cluster::proxy_usage)
    }

    pub(super) fn processor(&self) -> Result<Processor> {
        let usages = [self.usage()?, self.proxy_usage()?];
        Ok(Processor(usages.map(|usage| Some(usage?.processor))))
    }

    /// Returns the total usage of all members. `None` for a given cluster.
    pub(super) fn usage(&self) -> Result<Option<ClusterUsage>> {
        self.cluster.as_ref().map(Cluster::usage).transpose()
    }

    /// Ends a cluster that was started. In a given cluster, deletes the keys of the experiment
    /// instead.
    pub(super) async fn end(self) -> Result<()> {
        if self.cluster.is_none() { delete_all(&self.leader).await } else { Ok(()) }
    }
}

impl Processor {
    /// Returns the time since `before`, with the names `members` and `proxy`.
    pub(super) fn since(self, before: Processor) -> impl Iterator<Item = (&'static str, Duration)> {
        let pairs = self.0.into_iter().zip(before.0);
        let used = pairs.map(|(after, before)| Some(after?.saturating_sub(before?)));
        ["members", "proxy"].into_iter().zip(used).filter_map(|(name, used)| Some((name, used?)))
    }
}

pub(super) async fn channel(endpoint: &str) -> Result<Channel> {
    connection::channel(&connection::endpoint(endpoint)?.into()).await
}

async fn check_answers(endpoint: &str) -> Result<()> {
    let mut client = MaintenanceClient::new(channel(endpoint).await?);
    let status = client.status(StatusRequest::default()).map_err(connection::text);
    let what = format!("--endpoints {endpoint}: a request for the status");
    answered(&what, ANSWER_TIMEOUT, status).await.map(drop)
}

async fn delete_all(endpoint: &str) -> Result<()> {
    // The prefix ends with `/`, and `0` is the next byte. So the range has all keys with the
    // prefix.
    let range_end = format!("{}0", PREFIX.trim_end_matches('/'));
    let delete = DeleteRangeRequest {
        key: PREFIX.into(),
        range_end: range_end.into(),
        ..DeleteRangeRequest::default()
    };
    let deleted = KvClient::new(channel(endpoint).await?).delete_range(delete).await;
    deleted.map(drop).map_err(connection::error(format!("cannot delete the keys below {PREFIX}")))
}
