//! The table `[model]` of a scenario: the machines, and what runs on them beside the requests.
//!
//! `docs/scenarios.md` lists every field with an example. All of the background is the first
//! member's, but for compactions. Times are always the same, or have a mean and a 99th percentile
//! ([`Spread`]).

use std::collections::BTreeMap;

use crate::spread::Spread;

/// Which member a request goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connect {
    /// To the first.
    #[default]
    Leader,
    /// To all voting members, in turn.
    Spread,
    /// To this one, from 1 on.
    Member(usize),
}

/// What is in the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Between two commits of the backend.
    pub commit_interval_ns: u64,
    /// So many pending operations are committed at once.
    pub batch_limit: u64,
    /// So much may be committed and not applied, before puts are refused.
    pub apply_gap_max: u64,
    /// A sync of the log; as the costs have it if there is none.
    pub sync: Option<Spread>,
    /// A sync of the backend, likewise.
    pub commit_sync: Option<Spread>,
    /// Voting members.
    pub members: usize,
    /// Members that do not vote.
    pub learners: usize,
    /// Between any two members.
    pub round_trip: Option<Spread>,
    /// Between two of them, the smaller number first, from 1 on.
    pub round_trips: BTreeMap<(usize, usize), Option<Spread>>,
    /// Where clients go.
    pub clients: Connect,
    /// Where those of a class go.
    pub connect: BTreeMap<String, Connect>,
    /// Between a client and its member.
    pub client_round_trip_ns: u64,
    /// Clients have machines of their own.
    pub clients_apart: bool,
    /// Entries between two snapshots of the applier, if not as many as in the era.
    pub snapshot_count: Option<u64>,
    /// The watchers.
    pub watchers: Watchers,
    /// Between two compactions; none if 0.
    pub compaction_every_ns: u64,
    /// Users and their passwords.
    pub auth: Auth,
}

/// The watchers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watchers {
    /// Number of watchers that are notified of each write.
    pub synced: u64,
    /// So many begin behind.
    pub lagging: u64,
    /// By so many revisions.
    pub behind: u64,
    /// Each time that so much has passed, or once.
    pub every_ns: u64,
}

/// Users and their passwords.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Auth {
    /// Each request asks whether it may.
    pub enabled: bool,
    /// Users come with passwords, so many a second.
    pub logins_per_s: f64,
    /// A password takes so long to be checked.
    pub bcrypt_ns: u64,
    /// Under a lock, if not as in the era.
    pub inside_lock: Option<bool>,
}

/// With the cost of 10 that etcd has.
const BCRYPT_NS: u64 = 60_000_000;

impl Default for Auth {
    fn default() -> Auth {
        Auth { enabled: false, logins_per_s: 0.0, bcrypt_ns: BCRYPT_NS, inside_lock: None }
    }
}

/// Between machines of one data centre.
const ROUND_TRIP_NS: u64 = 500_000;

impl Model {
    /// Between two members, numbered from 0.
    pub(crate) fn round_trip(&self, one: usize, other: usize) -> Spread {
        let pair = (one.min(other) + 1, one.max(other) + 1);
        let spread = self.round_trips.get(&pair).copied().flatten().or(self.round_trip);
        spread.unwrap_or(Spread::constant(ROUND_TRIP_NS))
    }

    /// Where the requests of a class go.
    pub fn connects(&self, class: &str) -> Connect {
        self.connect.get(class).copied().unwrap_or(self.clients)
    }

    /// The same machines with nothing to do beside requests.
    pub(crate) fn without_background(&self) -> Model {
        Model {
            snapshot_count: Some(0),
            watchers: Watchers { lagging: 0, ..self.watchers },
            compaction_every_ns: 0,
            auth: Auth { logins_per_s: 0.0, ..self.auth },
            ..self.clone()
        }
    }

    /// Whether a client asks this member, from 0 on, for something.
    pub(crate) fn is_used(&self, place: usize) -> bool {
        let is_here = |connect: Connect| match connect {
            Connect::Leader => place == 0,
            Connect::Spread => place < self.members,
            Connect::Member(number) => place + 1 == number,
        };
        // The leader reports what is committed and applied, and works in the background.
        place == 0 || is_here(self.clients) || self.connect.values().copied().any(is_here)
    }
}

impl Default for Model {
    /// With etcd's settings.
    fn default() -> Model {
        Model {
            commit_interval_ns: 100_000_000,
            batch_limit: 10_000,
            apply_gap_max: 5_000,
            sync: None,
            commit_sync: None,
            members: 1,
            learners: 0,
            round_trip: None,
            round_trips: BTreeMap::new(),
            clients: Connect::Leader,
            connect: BTreeMap::new(),
            client_round_trip_ns: 0,
            clients_apart: false,
            snapshot_count: None,
            watchers: Watchers::default(),
            compaction_every_ns: 0,
            auth: Auth::default(),
        }
    }
}
