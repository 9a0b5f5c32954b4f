//! What clients asked for, and what they were told: all that the outside can know of a cluster.
//!
//! An operation begins when a client asks and ends when it is told something. What was refused has
//! not happened. What was never answered, because the member crashed, or the answer got lost, or
//! the client stopped waiting, may have happened, may happen yet, or never will: it stays *open*,
//! and the checkers may not conclude anything from it but what other operations see of it.

use std::collections::BTreeMap;

use crate::event_queue::Micros;

/// What clients ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// What is there, under one key or under all.
    Read {
        /// `None`: under all of them.
        key: Option<String>,
        /// Whether an older state will do, so that the member need ask no other member.
        serializable: bool,
    },
    /// A value that no other request has.
    Put {
        /// Under which key.
        key: String,
        /// Names the operation.
        value: String,
    },
    /// No value any more.
    Delete {
        /// Under which key.
        key: String,
    },
    /// A put if the key has a certain value, or none; else just a look.
    CompareAndSwap {
        /// Under which key.
        key: String,
        /// What must be there.
        expected: Option<String>,
        /// Names the operation.
        value: String,
    },
}

impl Request {
    /// Whether it is no entry of the log.
    pub fn is_read(&self) -> bool {
        matches!(self, Request::Read { .. })
    }

    /// Whether an older state will do.
    pub fn is_serializable(&self) -> bool {
        matches!(self, Request::Read { serializable: true, .. })
    }

    /// The value that it would leave.
    pub fn value(&self) -> Option<&str> {
        match self {
            Request::Put { value, .. } | Request::CompareAndSwap { value, .. } => Some(value),
            Request::Read { .. } | Request::Delete { .. } => None,
        }
    }
}

/// A key and what is under it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The revision that made the key.
    pub create_revision: i64,
    /// The revision that put the value.
    pub mod_revision: i64,
    /// How many puts there were since it was made.
    pub version: i64,
}

/// What clients are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The store's revision.
    pub revision: i64,
    /// Whether it was changed: that revision is the request's own.
    pub changed: bool,
    /// To a read: what there is. To anything else: what there was before, under its key.
    pub records: Vec<Record>,
}

/// What is known of how an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationOutcome {
    /// Nothing.
    Unknown,
    /// It did not happen.
    Rejected,
    /// It happened.
    Completed(Reply),
}

/// A request of a client, from when it was made.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The client.
    pub client: u64,
    /// The member.
    pub member: u64,
    /// For what.
    pub request: Request,
    /// When.
    pub invoked: Micros,
    /// When it was told, if it was.
    pub completed: Option<Micros>,
    /// What it was told.
    pub outcome: OperationOutcome,
}

impl Operation {
    /// The reply, if there was one.
    pub fn reply(&self) -> Option<&Reply> {
        match &self.outcome {
            OperationOutcome::Completed(reply) => Some(reply),
            OperationOutcome::Unknown | OperationOutcome::Rejected => None,
        }
    }
}

/// All operations, in the order in which they began.
#[derive(Clone, Debug, Default)]
pub struct History {
    operations: Vec<Operation>,
}

impl History {
    /// A client asks. Returns the operation's number.
    pub fn invoke(&mut self, now: Micros, client: u64, member: u64, request: Request) -> usize {
        let (ended, outcome) = (None, OperationOutcome::Unknown);
        self.operations.push(Operation {
            client,
            member,
            request,
            invoked: now,
            completed: ended,
            outcome,
        });
        self.operations.len() - 1
    }

    /// A client is told.
    pub fn complete(&mut self, now: Micros, number: usize, outcome: OperationOutcome) {
        let operation = &mut self.operations[number];
        assert!(operation.completed.is_none(), "a client is told twice: {operation:?}");
        operation.completed = Some(now);
        operation.outcome = outcome;
    }

    /// All of them.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }
}

/// The whole store, as a plain map: what replies must agree with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreModel {
    /// The revision.
    pub revision: i64,
    /// What there is, by key.
    pub records: BTreeMap<String, Record>,
}

impl Default for StoreModel {
    /// An empty store is at revision 1.
    fn default() -> StoreModel {
        StoreModel { revision: 1, records: BTreeMap::new() }
    }
}

impl StoreModel {
    /// Does what is asked for, and says what is to be told.
    pub fn apply(&mut self, request: &Request) -> Reply {
        let reply = self.expected_reply(request);
        if reply.changed {
            self.revision = reply.revision;
            self.apply_change(request);
        }
        reply
    }

    /// What would be told, without doing anything.
    pub fn expected_reply(&self, request: &Request) -> Reply {
        let records: Vec<Record> = match request {
            Request::Read { key: None, .. } => self.records.values().cloned().collect(),
            Request::Read { key: Some(key), .. }
            | Request::Put { key, .. }
            | Request::Delete { key }
            | Request::CompareAndSwap { key, .. } => {
                self.records.get(key).cloned().into_iter().collect()
            }
        };
        let changed = self.would_change(request, &records);
        Reply { revision: self.revision + i64::from(changed), changed, records }
    }

    fn would_change(&self, request: &Request, before: &[Record]) -> bool {
        match request {
            Request::Read { .. } => false,
            Request::Put { .. } => true,
            Request::Delete { .. } => !before.is_empty(),
            Request::CompareAndSwap { expected, .. } => {
                before.first().map(|record| &record.value) == expected.as_ref()
            }
        }
    }

    fn apply_change(&mut self, request: &Request) {
        match request {
            Request::Read { .. } => {}
            Request::Delete { key } => drop(self.records.remove(key)),
            Request::Put { key, value } | Request::CompareAndSwap { key, value, .. } => {
                let revision = self.revision;
                let before = self.records.get(key);
                let record = Record {
                    key: key.clone(),
                    value: value.clone(),
                    create_revision: before.map_or(revision, |record| record.create_revision),
                    mod_revision: revision,
                    version: before.map_or(0, |record| record.version) + 1,
                };
                self.records.insert(key.clone(), record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_store_does_what_etcd_does() {
        let mut state = StoreModel::default();
        let key = || "k".to_owned();
        let put = |value: &str| Request::Put { key: key(), value: value.into() };
        let swap = |expected: Option<&str>| Request::CompareAndSwap {
            key: key(),
            expected: expected.map(str::to_owned),
            value: "s".into(),
        };
        let told = |reply: Reply| (reply.revision, reply.changed, reply.records.len());
        assert_eq!(told(state.apply(&Request::Delete { key: key() })), (1, false, 0));
        assert_eq!(told(state.apply(&swap(Some("a")))), (1, false, 0));
        assert_eq!(told(state.apply(&put("a"))), (2, true, 0));
        assert_eq!(told(state.apply(&swap(None))), (2, false, 1));
        assert_eq!(told(state.apply(&swap(Some("a")))), (3, true, 1));
        let all = state.apply(&Request::Read { key: None, serializable: false });
        let record = Record {
            key: key(),
            value: "s".into(),
            create_revision: 2,
            mod_revision: 3,
            version: 2,
        };
        assert_eq!(all, Reply { revision: 3, changed: false, records: vec![record] });
        assert_eq!(told(state.apply(&Request::Delete { key: key() })), (4, true, 1));
        assert_eq!(told(state.apply(&put("b"))), (5, true, 0));
        assert_eq!(state.records["k"].create_revision, 5);
    }
}
