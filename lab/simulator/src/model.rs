//! The table `[model]` of a scenario: the machines, and the work on them in addition to the
//! requests.
//!
//! `docs/scenarios.md` lists every field. Lagging watchers and logins are simulated on the first
//! member only. Compactions, snapshots and the notification of synced watchers run on every member
//! to which clients connect, and always on the first.

use std::collections::BTreeMap;

use crate::spread::Spread;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connect {
    /// The first member.
    #[default]
    Leader,
    /// The voting members, in turn.
    Spread,
    /// The member with this number. Numbers start at 1.
    Member(usize),
}

/// The values of the table `[model]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub commit_interval_ns: u64,
    /// Number of pending operations at which the backend commits.
    pub batch_limit: u64,
    /// Puts are rejected while more entries than this are committed but not applied.
    pub apply_gap_max: u64,
    /// If set, replaces [`Costs::log_sync`](crate::costs::Costs::log_sync).
    pub sync: Option<Spread>,
    /// If set, replaces [`Costs::commit_sync`](crate::costs::Costs::commit_sync).
    pub commit_sync: Option<Spread>,
    /// Number of voting members.
    pub members: usize,
    pub learners: usize,
    /// The round trip between any two members.
    pub round_trip: Option<Spread>,
    /// The round trips of pairs of members that differ from `round_trip`. The smaller number is
    /// first, and numbers start at 1.
    pub round_trips: BTreeMap<(usize, usize), Option<Spread>>,
    pub clients: Connect,
    /// The members to which the clients of a class connect, by class. The clients of all other
    /// classes connect to `clients`.
    pub connect: BTreeMap<String, Connect>,
    pub client_round_trip_ns: u64,
    /// If true, clients use no cores of the members' machines.
    pub clients_apart: bool,
    /// Number of entries between two snapshots. If `None`, the era's default is used.
    pub snapshot_count: Option<u64>,
    pub watchers: Watchers,
    /// Time between two compactions. If 0, there are no compactions.
    pub compaction_every_ns: u64,
    pub auth: Auth,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watchers {
    /// Number of synced watchers. Each synced watcher is notified of every write.
    pub synced: u64,
    /// Number of unsynced watchers that start together.
    pub lagging: u64,
    /// Number of revisions by which lagging watchers are behind when they start.
    pub behind: u64,
    /// Time after which the next lagging watchers start. If 0, they start only once.
    pub every_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Auth {
    /// If true, each request checks a permission.
    pub enabled: bool,
    pub logins_per_s: f64,
    /// CPU time of a password check.
    pub bcrypt_ns: u64,
    /// Whether a password check holds a lock. If `None`, the era decides.
    pub inside_lock: Option<bool>,
}

impl Default for Auth {
    fn default() -> Auth {
        // The time of a password check with bcrypt cost 10, the default of etcd.
        Auth { enabled: false, logins_per_s: 0.0, bcrypt_ns: 60_000_000, inside_lock: None }
    }
}

/// The round trip within a data centre.
const ROUND_TRIP_NS: u64 = 500_000;

impl Model {
    /// Returns the round trip between two members, which are numbered from 0.
    pub(crate) fn round_trip(&self, one: usize, other: usize) -> Spread {
        let pair = (one.min(other) + 1, one.max(other) + 1);
        let spread = self.round_trips.get(&pair).copied().flatten().or(self.round_trip);
        spread.unwrap_or(Spread::constant(ROUND_TRIP_NS))
    }

    pub fn connects(&self, class: &str) -> Connect {
        self.connect.get(class).copied().unwrap_or(self.clients)
    }

    /// Returns the model without snapshots, unsynced watchers, compactions and logins.
    pub(crate) fn without_background(&self) -> Model {
        Model {
            snapshot_count: Some(0),
            watchers: Watchers { lagging: 0, ..self.watchers },
            compaction_every_ns: 0,
            auth: Auth { logins_per_s: 0.0, ..self.auth },
            ..self.clone()
        }
    }

    /// Returns whether requests can arrive at this member. Members are numbered from 0.
    pub(crate) fn is_used(&self, place: usize) -> bool {
        let is_here = |connect: Connect| match connect {
            Connect::Leader => place == 0,
            Connect::Spread => place < self.members,
            Connect::Member(number) => place + 1 == number,
        };
        // The first member is always used. As the leader, it reports the committed and applied
        // indexes, and does the background work that runs at one member only.
        place == 0 || is_here(self.clients) || self.connect.values().copied().any(is_here)
    }
}

impl Default for Model {
    /// Returns etcd's defaults.
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
