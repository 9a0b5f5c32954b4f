//! Runs the phases of a plan. Each phase sends the requests of a workload when they are due.
//! Nothing else runs in the calm phase. Other requests, or the server's own snapshots, run during
//! the other phases.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{CompactionRequest, DefragmentRequest, RangeRequest};
use futures_util::TryFutureExt as _;
use tokio::time::sleep;
use tokio::try_join;

use super::context::{Running, channel};
use super::load::{Background, open_loop, write_revisions};
use super::measurements::Measurements;
use super::plan::{Once, OtherCall, OthersPlan, PhasePlan};
use super::turn::Turn;
use crate::requests::{Call, RANGE, range, watch_all};
use crate::run::WindowBegin;
use crate::users::{self, User};
use crate::waiting::answered;
use crate::workload::Workload;
use crate::{Result, connection, fill};

/// Time from the start of the window until the phase sends its single request, if it has one.
const ONCE_AFTER: Duration = Duration::from_secs(1);
const ONCE_TIMEOUT: Duration = Duration::from_secs(120);

/// A server with its keys.
struct Prepared<'a> {
    turn: &'a Turn<'a>,
    running: Running,
    /// The first revision of the history.
    first_revision: i64,
}

pub(super) async fn measure(turn: &Turn<'_>, into: &mut Measurements) -> Result<()> {
    for phases in turn.plan.phases.chunk_by(|one, next| one.flags == next.flags) {
        let prepared = Prepared::start(turn, &phases[0].flags).await?;
        for phase in phases {
            prepared.run(phase, into).await?;
        }
        prepared.running.end().await?;
    }
    Ok(())
}

impl Prepared<'_> {
    async fn start<'a>(turn: &'a Turn<'a>, flags: &[String]) -> Result<Prepared<'a>> {
        let running = turn.start(flags).await?;
        let first_revision = fill::revision(channel(&running.leader).await?, None).await? + 1;
        if turn.plan.has_history {
            let revisions = turn.values.get("revisions")?;
            turn.context.tell(&format!("{}: writing {revisions} revisions", turn.server()));
            let history = turn.values.keys_of("data")?;
            write_revisions(&running.leader, &history, revisions, turn.seed).await?;
        }
        if turn.plan.has_users {
            users::enable(channel(&running.leader).await?).await?;
        }
        Ok(Prepared { turn, running, first_revision })
    }

    async fn run(&self, plan: &PhasePlan, into: &mut Measurements) -> Result<()> {
        let (turn, server, name) = (self.turn, self.turn.server(), &plan.name);
        let classes = plan.classes.iter().map(|class| turn.values.text(class));
        let workload = turn.values.workload(&turn.plan.load)?;
        let workload = only(workload, &classes.collect::<Vec<_>>())?;
        let others = match &plan.others {
            Some(others) => Some((&others.figure, self.start_others(others).await?)),
            None => None,
        };
        let begin = WindowBegin::default();
        let once = self.once(plan, begin.clone());
        let run = open_loop(turn, &self.running, (name, &workload), begin, into);
        let ((), took) = try_join!(run, once)?;
        if let Some(took) = took {
            into.add(server, "took s", took);
            for class in &workload.classes {
                let longest = into.median(server, &format!("{name}/{}/max", class.name));
                let share = longest.map(|longest| longest / 1e3 / took);
                into.add(server, &format!("{}/share", class.name), share);
            }
        }
        if let Some((figure, others)) = others {
            others.end(figure, server, into).await;
        }
        Ok(())
    }

    async fn start_others(&self, plan: &OthersPlan) -> Result<Background> {
        let values = &self.turn.values;
        let clients = plan.clients.as_ref().map_or(Ok(1), |clients| values.number(clients))?;
        let times = [plan.delay_ms, plan.pause_ms].map(Duration::from_millis);
        let endpoint =
            if plan.is_at_learner { self.running.learner() } else { &self.running.leader };
        Background::start(endpoint, vec![self.call(plan.call)?; clients], times).await
    }

    fn call(&self, call: OtherCall) -> Result<Call> {
        let data = || self.turn.values.keys_of("data").map(|data| data.space);
        Ok(match call {
            OtherCall::Range => {
                let space = data()?;
                let all = RangeRequest { serializable: true, ..range(&space, 0, space.count) };
                Call::new(RANGE, &all, Some(space.count))
            }
            OtherCall::Snapshot => Call::snapshot(),
            OtherCall::Watch => {
                let events = self.turn.values.get("revisions")?;
                Call::watch(watch_all(&data()?, self.first_revision), Some(events))
            }
            OtherCall::Login => Call::login(&User::of_load()),
        })
    }

    /// Sends the single request of a phase. Returns the seconds until its response, or `None` if
    /// the phase has no such request.
    async fn once(&self, plan: &PhasePlan, begin: WindowBegin) -> Result<Option<f64>> {
        let Some(once) = plan.once else { return Ok(None) };
        let channel = channel(&self.running.leader).await?;
        let revision = fill::revision(channel.clone(), None).await?;
        begin.wait().await;
        sleep(ONCE_AFTER).await;
        let begin = Instant::now();
        let request = async {
            match once {
                Once::Compact => {
                    let compact = CompactionRequest { revision, physical: true };
                    KvClient::new(channel).compact(compact).await.map(drop)
                }
                Once::Defragment => {
                    let mut client = MaintenanceClient::new(channel);
                    client.defragment(DefragmentRequest {}).await.map(drop)
                }
            }
        };
        let what = match once {
            Once::Compact => "a compaction",
            Once::Defragment => "a defragmentation",
        };
        answered(what, ONCE_TIMEOUT, request.map_err(connection::text)).await?;
        Ok(Some(begin.elapsed().as_secs_f64()))
    }
}

/// Returns the workload with only these classes. If `classes` is empty, it has all classes.
fn only(workload: Workload, classes: &[String]) -> Result<Workload> {
    let names = workload.classes.iter().map(|class| class.name.clone());
    let others = names.filter(|name| !classes.contains(name)).collect::<Vec<_>>();
    if classes.is_empty() || others.is_empty() { Ok(workload) } else { workload.without(&others) }
}
