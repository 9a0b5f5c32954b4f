//! A *turn*: one server in one round of an experiment.

use std::time::Duration;

use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;

use super::context::{Context, Running, Subject, channel};
use super::load;
use super::plan::{Plan, Values};
use crate::keys::KeySpace;
use crate::servers::ClusterOptions;
use crate::waiting::read_until;
use crate::{Error, Result, connection, requests};

const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

pub(super) struct Turn<'a> {
    pub(super) context: &'a Context,
    pub(super) plan: &'a Plan,
    pub(super) values: Values,
    pub(super) subject: &'a Subject,
    pub(super) seed: u64,
}

impl Turn<'_> {
    pub(super) fn server(&self) -> &str {
        self.subject.name()
    }

    /// Returns the same turn at a point of the curve.
    pub(super) fn at(&self, name: &str, point: f64) -> Turn<'_> {
        Turn { values: self.values.with(name, point), ..*self }
    }

    /// Starts the servers that the plan needs, and puts the keys. A proxy starts last, so it has no
    /// keys in its cache.
    pub(super) async fn start(&self, flags: &[String]) -> Result<Running> {
        let Turn { context, plan, values, subject, seed } = self;
        let members = plan.members.as_ref().map_or(Ok(1), |members| values.number(members))?;
        let flags = flags.iter().map(|flag| values.text(flag)).collect();
        let round_trip = self.round_trip()?;
        let options = ClusterOptions { members, flags, round_trip };
        let mut running = subject.start(options).await?;
        if plan.has_learner {
            running.add_learner().await?;
        }
        for piece in &plan.fill {
            let space = values.keys_of(piece)?.space;
            load::fill(context, &running.leader, &space, *seed).await?;
            if plan.has_learner {
                wait_for_keys(running.learner(), &space).await?;
            }
        }
        if let Subject::Routed { proxy: Some(proxy), .. } = subject {
            running.start_proxy(proxy).await?;
        }
        Ok(running)
    }

    pub(super) fn round_trip(&self) -> Result<Option<Duration>> {
        let ms = self.plan.round_trip_ms.as_ref().map(|text| self.values.number::<f64>(text));
        Ok(ms.transpose()?.map(|ms| Duration::from_secs_f64(ms / 1e3)))
    }
}

/// Waits until a learner, which follows the leader, has all keys. Fails if a request fails, or if
/// the learner does not have all keys within [`CATCH_UP_TIMEOUT`].
async fn wait_for_keys(endpoint: &str, space: &KeySpace) -> Result<()> {
    let (mut client, expected) = (KvClient::new(channel(endpoint).await?), space.count as i64);
    let count = async || {
        let count = RangeRequest { serializable: true, ..requests::count(space) };
        let found = client.range(count).await;
        let failed = connection::error("the keys of the learner could not be counted");
        Ok(found.map_err(failed)?.into_inner().count)
    };
    let found = read_until(CATCH_UP_TIMEOUT, PAUSE, |found| *found == expected, count).await?;
    if found == expected {
        return Ok(());
    }
    Err(Error::Server(format!("the learner has {found} of {expected} keys after 60 s")))
}
