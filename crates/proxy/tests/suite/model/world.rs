//! The cluster: its true history, and three members that apply the log with delays.

use std::collections::BTreeMap;
use std::sync::Arc;

use clearlane_proto::etcdserverpb::ResponseHeader;
use clearlane_proto::mvccpb::event::EventType;
use clearlane_proto::mvccpb::{Event, KeyValue};
use clearlane_proxy::cache::range::Span;
use rand::RngExt as _;
use rand::rngs::SmallRng;

/// Milliseconds since the start of the simulation.
pub(super) type Time = u64;

pub(super) const DIRECTORIES: [&str; 2] = ["a/", "b/"];
pub(super) const USERS: usize = 2;
const KEYS_PER_DIRECTORY: usize = 10;
const CLUSTER_ID: u64 = 7;

/// Who may read what. User 0 and user 1 have a permission for each directory, or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Auth {
    is_enabled: bool,
    allowed: [[bool; 2]; USERS],
}

impl Auth {
    pub(super) fn random(random: &mut SmallRng) -> Auth {
        let allowed = [(); USERS].map(|()| [random.random_bool(0.5), random.random_bool(0.5)]);
        Auth { is_enabled: random.random_bool(0.3), allowed }
    }

    pub(super) fn permits(&self, user: Option<usize>, span: &Span) -> bool {
        let permits = |(number, directory)| {
            let all = Span::of_prefix(str::as_bytes(directory));
            let is_apart = all.to <= Some(span.from.clone())
                || span.to.as_ref().is_some_and(|to| *to <= all.from);
            is_apart || user.is_some_and(|user| self.allowed[user][number])
        };
        !self.is_enabled || DIRECTORIES.into_iter().enumerate().all(permits)
    }
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Txn(i64),
    Compaction(i64),
    Auth(Auth),
}

/// What a member has applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    entries: usize,
    pub(super) revision: i64,
    pub(super) compacted: i64,
    pub(super) auth: Auth,
    pub(super) is_alive: bool,
}

/// Revisions, each with the record or `None` for a deletion.
type Versions = Vec<(i64, Option<Arc<KeyValue>>)>;

#[derive(Debug)]
pub(super) struct World {
    log: Vec<Entry>,
    keys: BTreeMap<Vec<u8>, Versions>,
    /// The events of each revision, with the previous records.
    events: BTreeMap<i64, Vec<Event>>,
    pub(super) revision: i64,
    pub(super) compacted: i64,
    /// All writes up to this revision were acknowledged.
    pub(super) acknowledged: i64,
    /// The times of the commits, from revision 2 on.
    commits: Vec<Time>,
    auth: Vec<(Time, Auth)>,
    pub(super) members: [Member; 3],
}

impl World {
    pub(super) fn new() -> World {
        let auth = Auth::default();
        let member = Member { entries: 0, revision: 1, compacted: 0, auth, is_alive: true };
        World {
            log: Vec::new(),
            keys: BTreeMap::new(),
            events: BTreeMap::new(),
            revision: 1,
            compacted: 0,
            acknowledged: 1,
            commits: Vec::new(),
            auth: vec![(0, auth)],
            members: [member; 3],
        }
    }

    pub(super) fn auth(&self) -> Auth {
        self.auth.last().unwrap().1
    }

    /// Returns true if the user could read the range at some time of this interval.
    pub(super) fn was_permitted(
        &self,
        user: Option<usize>,
        span: &Span,
        from: Time,
        to: Time,
    ) -> bool {
        let ends = self.auth.iter().skip(1).map(|(time, _)| *time).chain([Time::MAX]);
        let mut intervals = self.auth.iter().zip(ends);
        intervals
            .any(|((start, auth), end)| *start <= to && end >= from && auth.permits(user, span))
    }

    /// Commits a transaction that changes a few keys.
    pub(super) fn commit(&mut self, now: Time, random: &mut SmallRng) {
        self.revision += 1;
        let mut events = Vec::new();
        for _ in 0..random.random_range(1..=4) {
            let directory = DIRECTORIES[random.random_range(0..2)];
            let key = format!("{directory}{}", random.random_range(0..KEYS_PER_DIRECTORY));
            let key = key.into_bytes();
            let versions = self.keys.entry(key.clone()).or_default();
            if versions.last().is_some_and(|(revision, _)| *revision == self.revision) {
                continue;
            }
            let old = versions.last().and_then(|(_, record)| record.clone());
            let mut record =
                KeyValue { key: key.into(), mod_revision: self.revision, ..KeyValue::default() };
            let mut event = Event { prev_kv: old.as_deref().cloned(), ..Event::default() };
            if old.is_some() && random.random_bool(0.3) {
                event.set_type(EventType::Delete);
                versions.push((self.revision, None));
            } else {
                record.value = format!("value {}", self.revision).into();
                record.create_revision =
                    old.as_ref().map_or(self.revision, |old| old.create_revision);
                record.version = old.as_ref().map_or(1, |old| old.version + 1);
                versions.push((self.revision, Some(Arc::new(record.clone()))));
            }
            event.kv = Some(record);
            events.push(event);
        }
        self.events.insert(self.revision, events);
        self.commits.push(now);
        self.log.push(Entry::Txn(self.revision));
    }

    pub(super) fn compact(&mut self, revision: i64) {
        if revision > self.compacted {
            self.compacted = revision;
            self.log.push(Entry::Compaction(revision));
        }
    }

    pub(super) fn set_auth(&mut self, now: Time, auth: Auth) {
        self.auth.push((now, auth));
        self.log.push(Entry::Auth(auth));
    }

    pub(super) fn turn_auth_off(&mut self, now: Time) {
        let auth = Auth { is_enabled: false, ..self.auth() };
        self.set_auth(now, auth);
    }

    /// Returns the newest revision that was committed at this time or earlier.
    pub(super) fn committed_at(&self, time: Time) -> i64 {
        self.commits.partition_point(|commit| *commit <= time) as i64 + 1
    }

    /// Lets a member apply one entry of the log. Returns false if it has all.
    pub(super) fn apply(&mut self, member: usize) -> bool {
        let member = &mut self.members[member];
        let Some(entry) = self.log.get(member.entries) else { return false };
        member.entries += 1;
        match *entry {
            Entry::Txn(revision) => member.revision = revision,
            Entry::Compaction(revision) => member.compacted = revision,
            Entry::Auth(auth) => member.auth = auth,
        }
        true
    }

    pub(super) fn pick_member(&self, random: &mut SmallRng) -> Option<usize> {
        let first = random.random_range(0..3);
        (first..first + 3).map(|it| it % 3).find(|it| self.members[*it].is_alive)
    }

    /// Returns the records of a range as they were at a revision.
    pub(super) fn state(&self, span: &Span, at: i64) -> Vec<Arc<KeyValue>> {
        let record = |versions: &Versions| {
            let newer = versions.partition_point(|(revision, _)| *revision <= at);
            newer.checked_sub(1).and_then(|last| versions[last].1.clone())
        };
        let keys = self.keys.range(span.from.to_vec()..);
        let keys = keys.take_while(|(key, _)| span.to.as_ref().is_none_or(|to| key[..] < to[..]));
        keys.filter_map(|(_, versions)| record(versions)).collect()
    }

    /// Returns the events of the revisions in a range of keys, oldest first, with previous records.
    pub(super) fn events<'a>(
        &'a self,
        span: &'a Span,
        revisions: std::ops::RangeInclusive<i64>,
    ) -> impl Iterator<Item = &'a Event> {
        let revisions = match revisions.is_empty() {
            true => 0..=0,
            false => revisions,
        };
        let all = self.events.range(revisions).flat_map(|(_, events)| events);
        all.filter(|event| contains(span, &event.kv.as_ref().unwrap().key))
    }
}

fn contains(span: &Span, key: &[u8]) -> bool {
    key >= &span.from[..] && span.to.as_ref().is_none_or(|to| key < &to[..])
}

pub(super) fn header(member: usize, revision: i64) -> ResponseHeader {
    let member_id = member as u64 + 1;
    ResponseHeader { cluster_id: CLUSTER_ID, member_id, revision, raft_term: 1 }
}

pub(super) fn revision_of(event: &Event) -> i64 {
    event.kv.as_ref().unwrap().mod_revision
}
