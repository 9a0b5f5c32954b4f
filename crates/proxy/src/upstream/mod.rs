//! The members of the cluster behind the proxy: connections, health, and the choice among them.
//!
//! ```text
//!   flags, SRV records, membership ─▶ endpoints ─▶ one task per member: connect, probe, reconnect
//!                                                        │ state
//!   a call ─▶ pick a ready member ◀────────────────────────┘
//!   a call in flight ◀── `lost`: its member is suspect, and another one is ready
//! ```
//!
//! A member is *ready* while it answers linearizable probes. So a member that is killed, stopped,
//! cut off or whose disk hangs becomes *suspect* within [`PROBE_INTERVAL`] and [`PROBE_TIMEOUT`].
//! Pings of HTTP/2 would not find a hung disk, and etcd closes connections that ping more often
//! than every five seconds. They are sent only if the operator wants them.
//!
//! If the cluster has no quorum, every member is suspect. Calls then go to any connected member,
//! because serializable reads are still possible there.

pub(crate) mod local;
mod member;
mod membership;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use clearlane_net::tls::Dialer;
use tokio::sync::watch;
use tokio::time::timeout;

pub(crate) use self::member::is_transport_error;
pub use self::member::{Member, MemberState, PingConfig};

/// The pause between two probes of a member.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// A member that does not answer a probe in this time is suspect.
const PROBE_TIMEOUT: Duration = Duration::from_millis(1500);
/// Longest time that a call waits for a member that can take it.
pub const CONNECTION_PATIENCE: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, Default)]
pub struct UpstreamConfig {
    /// The client URLs of members. A URL without a scheme uses TLS if `uses_tls` is true.
    pub endpoints: Vec<String>,
    pub dialer: Dialer,
    pub uses_tls: bool,
    /// After each interval, the client URLs of the members replace the endpoints. Zero: never.
    pub sync_interval: Duration,
    pub pings: Option<PingConfig>,
}

#[derive(Debug)]
pub struct Upstream {
    members: ArcSwap<Vec<Arc<Member>>>,
    turn: AtomicUsize,
    dialer: Dialer,
    uses_tls: bool,
    pings: Option<PingConfig>,
    /// Changes whenever the state of a member changes.
    changed: watch::Sender<u64>,
}

impl Upstream {
    /// Starts the tasks of all members. Must be called on a runtime.
    pub fn start(config: &UpstreamConfig) -> Arc<Upstream> {
        let upstream = Arc::new(Upstream {
            members: ArcSwap::default(),
            turn: AtomicUsize::new(0),
            dialer: config.dialer.clone(),
            uses_tls: config.uses_tls,
            pings: config.pings,
            changed: watch::channel(0).0,
        });
        upstream.set_endpoints(&config.endpoints);
        if !config.sync_interval.is_zero() {
            tokio::spawn(membership::follow(Arc::downgrade(&upstream), config.sync_interval));
        }
        upstream
    }

    /// Replaces the endpoints. Members that stay keep their connections. The connections of others
    /// end when their last call has ended.
    pub fn set_endpoints(&self, endpoints: &[String]) {
        let old = self.members.load_full();
        let mut members: Vec<Arc<Member>> = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let url = self.url_of(endpoint);
            if members.iter().any(|member| member.url() == url) {
                continue;
            }
            let known = old.iter().find(|member| member.url() == url);
            members.push(known.cloned().unwrap_or_else(|| {
                Member::start(url, self.dialer.clone(), self.pings, self.changed.clone())
            }));
        }
        for gone in old.iter().filter(|old| !members.iter().any(|new| new.url() == old.url())) {
            gone.stop();
        }
        self.members.store(Arc::new(members));
        local::members_changed();
        self.changed.send_modify(|changes| *changes += 1);
    }

    fn url_of(&self, endpoint: &str) -> String {
        if endpoint.contains("://") {
            return endpoint.trim_end_matches('/').to_owned();
        }
        let scheme = if self.uses_tls { "https" } else { "http" };
        format!("{scheme}://{endpoint}")
    }

    pub fn members(&self) -> Arc<Vec<Arc<Member>>> {
        self.members.load_full()
    }

    /// Returns the next member in turn that can take a call: a ready one, or else one that is
    /// connected.
    pub fn pick(&self) -> Option<Arc<Member>> {
        self.choose(self.turn.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the member for calls that must all go to one member: the same one for the same
    /// `number`, as long as it is ready.
    pub fn choose(&self, number: usize) -> Option<Arc<Member>> {
        let members = self.members.load();
        let in_turn = || (0..members.len()).map(|step| &members[(number + step) % members.len()]);
        let ready = in_turn().find(|member| member.state() == MemberState::Ready);
        ready.or_else(|| in_turn().find(|member| member.channel().is_some())).cloned()
    }

    /// Waits until there is a member for which [`pick`](Upstream::pick) can be used. Returns `None`
    /// after [`CONNECTION_PATIENCE`].
    pub async fn wait_and_pick(&self) -> Option<Arc<Member>> {
        let mut changed = self.changed.subscribe();
        let found = async {
            loop {
                changed.borrow_and_update();
                if let Some(member) = self.pick() {
                    return Some(member);
                }
                changed.changed().await.ok()?;
            }
        };
        timeout(CONNECTION_PATIENCE, found).await.ok().flatten()
    }

    /// Returns true if this member is suspect or down, and another one is ready.
    pub fn is_lost(&self, member: &Member) -> bool {
        let is_ready = |other: &Arc<Member>| other.state() == MemberState::Ready;
        matches!(member.state(), MemberState::Suspect | MemberState::Down)
            && self.members.load().iter().any(is_ready)
    }

    /// Returns when a call that waits for this member should try another one: the member is
    /// [lost](Upstream::is_lost), or has a newer connection than the call's `generation`. Behind a
    /// load balancer, a new connection may lead to another member.
    pub async fn lost(&self, member: &Member, generation: u64) {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let is_replaced = member.generation() != generation;
            if is_replaced && member.state() == MemberState::Ready || self.is_lost(member) {
                return;
            }
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.members.load().iter().for_each(|member| member.stop());
    }
}
