//! The table `[model]` of a scenario: the machines, and what runs on them beside the requests.
//!
//! `docs/scenarios.md` lists every field. Background work runs on the first member only, except
//! compactions.

use std::collections::BTreeMap;

use crate::spread::Spread;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connect {
    /// The first member.
    #[default]
    Leader,
    /// The voting members, in turn.
    Spread,
    /// From 1 on.
    Member(usize),
}

/// The values of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub commit_interval_ns: u64,
    /// Number of pending operations at which the backend commits.
    pub batch_limit: u64,
    /// Puts are refused while more entries than this are committed and not applied.
    pub apply_gap_max: u64,
    /// Replaces [`Costs::log_sync`](crate::costs::Costs::log_sync).
    pub sync: Option<Spread>,
    /// Replaces [`Costs::commit_sync`](crate::costs::Costs::commit_sync).
    pub commit_sync: Option<Spread>,
    /// Number of voting members.
    pub members: usize,
    pub learners: usize,
    /// Between any two members.
    pub round_trip: Option<Spread>,
    /// Exceptions for pairs of members, the smaller number first, from 1 on.
    pub round_trips: BTreeMap<(usize, usize), Option<Spread>>,
    pub clients: Connect,
    /// Exceptions by class.
    pub connect: BTreeMap<String, Connect>,
    pub client_round_trip_ns: u64,
    /// Clients use no cores of the members' machines.
    pub clients_apart: bool,
    /// Entries between two snapshots; `None` uses the era's default.
    pub snapshot_count: Option<u64>,
    pub watchers: Watchers,
    /// 0: there are no compactions.
    pub compaction_every_ns: u64,
    pub auth: Auth,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watchers {
    /// Synced watchers, each of which is notified of every write.
    pub synced: u64,
    /// Unsynced watchers that begin together.
    pub lagging: u64,
    /// Revisions by which they are behind.
    pub behind: u64,
    /// Interval at which a new group begins; 0: once.
    pub every_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Auth {
    /// Whether each request checks a permission.
    pub enabled: bool,
    pub logins_per_s: f64,
    /// CPU of a password check.
    pub bcrypt_ns: u64,
    /// Whether the check holds a lock; `None` uses the era's default.
    pub inside_lock: Option<bool>,
}

impl Default for Auth {
    fn default() -> Auth {
        // With bcrypt cost 10, as in etcd.
        Auth { enabled: false, logins_per_s: 0.0, bcrypt_ns: 60_000_000, inside_lock: None }
    }
}

/// Within one data centre.
const ROUND_TRIP_NS: u64 = 500_000;

impl Model {
    /// Members are numbered from 0.
    pub(crate) fn round_trip(&self, one: usize, other: usize) -> Spread {
        let pair = (one.min(other) + 1, one.max(other) + 1);
        let spread = self.round_trips.get(&pair).copied().flatten().or(self.round_trip);
        spread.unwrap_or(Spread::constant(ROUND_TRIP_NS))
    }

    pub fn connects(&self, class: &str) -> Connect {
        self.connect.get(class).copied().unwrap_or(self.clients)
    }

    /// Without watchers, compactions and logins.
    pub(crate) fn without_background(&self) -> Model {
        Model {
            snapshot_count: Some(0),
            watchers: Watchers { lagging: 0, ..self.watchers },
            compaction_every_ns: 0,
            auth: Auth { logins_per_s: 0.0, ..self.auth },
            ..self.clone()
        }
    }

    /// Whether requests can arrive at this member, numbered from 0.
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
    /// etcd's defaults.
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
