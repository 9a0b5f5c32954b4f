//! What all experiments are given: how large, how often, which servers; and what they measure on.

use std::path::PathBuf;
use std::time::Duration;

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{DeleteRangeRequest, StatusRequest};
use tonic::transport::Channel;

use super::arguments::{ExperimentArguments, NO_ERA, Scale};
use super::measurements::Measurements;
use crate::servers::{Cluster, ClusterOptions, ClusterUsage, ServerProgram};
use crate::stop::Stop;
use crate::{Error, Result, connection};

/// Below it are the keys of all experiments. Of a cluster that is given, they are deleted.
pub(super) const PREFIX: &str = "/experiment/";
/// In tables, the name of a cluster that is given by its endpoints.
const GIVEN: &str = "given";
const CLEAN_UP_MAX: Duration = Duration::from_secs(30);

pub struct Context {
    pub(super) scale: Scale,
    pub(super) rounds: u64,
    pub(super) seed: u64,
    pub(super) redis: Option<String>,
    /// Number of keys in an expensive read, instead of a measured one.
    pub(super) keys: Option<u64>,
    clearlane: PathBuf,
    /// Instead of those of an experiment.
    eras: Option<Vec<String>>,
    etcd: Option<ServerProgram>,
    given: Vec<String>,
    tell: Box<dyn Fn(&str)>,
    /// What runs is given up.
    pub(super) stop: Stop,
}

/// A server under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Which is started.
    Program(ServerProgram),
    /// Which runs already: the endpoints.
    Given(Vec<String>),
}

/// One that answers.
#[derive(Debug)]
pub(super) enum Running {
    Started(Cluster),
    Given(Vec<String>),
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Context { scale, rounds, seed, .. } = self;
        let mut shown = f.debug_struct("Context");
        shown.field("scale", scale).field("rounds", rounds).field("seed", seed);
        shown.finish_non_exhaustive()
    }
}

impl Context {
    /// An error if a program is not there, or an endpoint does not answer. `tell` is given lines of
    /// progress.
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

    pub(super) fn pick<T>(&self, small: T, full: T) -> T {
        match self.scale {
            Scale::Small => small,
            Scale::Full => full,
        }
    }

    /// Those that can be started with flags, killed, or be of several members: these eras unless
    /// others are asked for, and etcd if there is one.
    pub(super) fn programs(&self, eras: &[&str]) -> Result<Vec<Subject>> {
        let eras = match &self.eras {
            Some(eras) => eras.clone(),
            None => eras.iter().map(|era| (*era).to_owned()).collect(),
        };
        let programs = eras.iter().map(|era| ServerProgram::clearlane(&self.clearlane, era));
        let mut programs = programs.collect::<Result<Vec<_>>>()?;
        programs.extend(self.etcd.clone());
        Ok(programs.into_iter().map(Subject::Program).collect())
    }

    /// Our server in this era, whichever eras are compared; without a server of ours, the first one
    /// that is compared.
    pub(super) fn program_or_given(&self, era: &str) -> Result<Subject> {
        if self.starts_ours() {
            return ServerProgram::clearlane(&self.clearlane, era).map(Subject::Program);
        }
        self.servers(&[])?.into_iter().next().ok_or_else(no_server)
    }

    /// Whether there is nothing to start beside a cluster that is given.
    pub(super) fn has_only_given(&self) -> bool {
        !self.given.is_empty() && !self.starts_ours() && self.etcd.is_none()
    }

    fn starts_ours(&self) -> bool {
        self.eras.as_ref().is_none_or(|eras| !eras.is_empty())
    }

    /// Those, and the cluster that is given, if there is one.
    pub(super) fn servers(&self, eras: &[&str]) -> Result<Vec<Subject>> {
        let mut servers = self.programs(eras)?;
        if !self.given.is_empty() {
            servers.push(Subject::Given(self.given.clone()));
        }
        Ok(servers)
    }

    /// Each program with its version, for reports.
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

    /// The points of a curve, from its end in every other round: the store grows from one point to
    /// the next. `seed` is that of the round.
    pub(super) fn in_order<T: Clone>(&self, points: &[T], seed: u64) -> Vec<T> {
        let mut points = points.to_vec();
        if seed.wrapping_sub(self.seed) % 2 == 1 {
            points.reverse();
        }
        points
    }

    /// In rounds, one server after the other. A run that fails ends all; after an interruption,
    /// what runs is given up, and the figures of those before are returned.
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
                result.map_err(|error| of_server(name, &error))?;
                all.take(own);
            }
        }
        Ok(all)
    }

    /// Flags are for programs alone.
    pub(super) async fn start(
        &self,
        subject: &Subject,
        options: ClusterOptions,
    ) -> Result<Running> {
        match subject {
            Subject::Program(program) => {
                Ok(Running::Started(Cluster::start(program, options).await?))
            }
            Subject::Given(endpoints) => {
                delete_all(&endpoints[0]).await?;
                Ok(Running::Given(endpoints.clone()))
            }
        }
    }
}

fn no_server() -> Error {
    let allowed = "name an era, --etcd BINARY, or --endpoints URL if that is possible here";
    Error::Local(format!("no server is left to be measured: {allowed}"))
}

fn of_server(name: &str, error: &Error) -> Error {
    Error::Server(format!("{name}: {error}"))
}

impl Subject {
    pub(super) fn name(&self) -> &str {
        match self {
            Subject::Program(program) => program.name(),
            Subject::Given(_) => GIVEN,
        }
    }

    /// After a run that was given up: leaves no key in a cluster that was given, if it answers.
    pub(super) async fn clean_up(&self) {
        if let Subject::Given(endpoints) = self {
            let _ = tokio::time::timeout(CLEAN_UP_MAX, delete_all(&endpoints[0])).await;
        }
    }
}

impl Running {
    pub(super) fn endpoint(&self) -> String {
        self.endpoints().swap_remove(0)
    }

    pub(super) fn endpoints(&self) -> Vec<String> {
        match self {
            Running::Started(cluster) => cluster.endpoints(),
            Running::Given(endpoints) => endpoints.clone(),
        }
    }

    /// Of a cluster that is given, it is not known.
    pub(super) fn usage(&self) -> Result<Option<ClusterUsage>> {
        match self {
            Running::Started(cluster) => cluster.usage().map(Some),
            Running::Given(_) => Ok(None),
        }
    }

    /// Leaves no key in a cluster that was given.
    pub(super) async fn end(self) -> Result<()> {
        match self {
            Running::Started(_) => Ok(()),
            Running::Given(endpoints) => delete_all(&endpoints[0]).await,
        }
    }
}

pub(super) async fn channel(endpoint: &str) -> Result<Channel> {
    Ok(connection::open(&connection::endpoint(endpoint)?.into(), 1).await?.remove(0))
}

async fn check_answers(endpoint: &str) -> Result<()> {
    let wanted = Duration::from_secs(5);
    let mut client = MaintenanceClient::new(channel(endpoint).await?);
    let told = |why: String| Error::Server(format!("--endpoints {endpoint}: {why}"));
    match tokio::time::timeout(wanted, client.status(StatusRequest::default())).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(told(status.message().to_owned())),
        Err(_) => Err(told(format!("no answer within {} s", wanted.as_secs()))),
    }
}

async fn delete_all(endpoint: &str) -> Result<()> {
    // The last byte of the prefix, and one more: all keys that begin with the prefix.
    let range_end = format!("{}0", PREFIX.trim_end_matches('/'));
    let delete = DeleteRangeRequest {
        key: PREFIX.into(),
        range_end: range_end.into(),
        ..DeleteRangeRequest::default()
    };
    KvClient::new(channel(endpoint).await?).delete_range(delete).await.map_err(|status| {
        Error::Server(format!("the keys below {PREFIX} stay: {}", status.message()))
    })?;
    Ok(())
}
