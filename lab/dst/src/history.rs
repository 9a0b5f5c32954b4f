//! Operations and their outcomes: everything that an observer outside of the cluster can know.
//!
//! A rejected operation has not happened. An operation without a response is *open*: the member
//! crashed, the response was lost, or the client timed out. It may have happened, may still happen,
//! or may never happen. Checkers infer its effect only from other operations.

use std::collections::BTreeMap;

use crate::event_queue::Micros;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Read {
        /// The key, or `None` for all keys.
        key: Option<String>,
        serializable: bool,
    },
    /// Puts `value`, which is unique among all requests.
    Put {
        key: String,
        value: String,
    },
    Delete {
        key: String,
    },
    /// Puts `value` if the key has the value `expected`, otherwise reads. If `expected` is `None`,
    /// the key must be absent.
    CompareAndSwap {
        key: String,
        expected: Option<String>,
        value: String,
    },
}

impl Request {
    pub fn is_read(&self) -> bool {
        matches!(self, Request::Read { .. })
    }

    pub fn is_serializable(&self) -> bool {
        matches!(self, Request::Read { serializable: true, .. })
    }

    pub fn value(&self) -> Option<&str> {
        match self {
            Request::Put { value, .. } | Request::CompareAndSwap { value, .. } => Some(value),
            Request::Read { .. } | Request::Delete { .. } => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    pub key: String,
    pub value: String,
    pub create_revision: i64,
    pub mod_revision: i64,
    /// Number of puts since the key was last absent. The put that creates the key makes version 1.
    pub version: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The revision of the store.
    pub revision: i64,
    /// If true, the request made `revision`.
    pub changed: bool,
    /// The result of a read. For other requests, the key's record before the request.
    pub records: Vec<Record>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationOutcome {
    /// The request may have happened, may still happen, or may never happen.
    Unknown,
    /// The request did not happen.
    Rejected,
    Completed(Reply),
}

#[derive(Clone, Debug)]
pub struct Operation {
    pub client: u64,
    pub member: u64,
    pub request: Request,
    pub invoked: Micros,
    pub completed: Option<Micros>,
    pub outcome: OperationOutcome,
}

impl Operation {
    pub fn reply(&self) -> Option<&Reply> {
        match &self.outcome {
            OperationOutcome::Completed(reply) => Some(reply),
            OperationOutcome::Unknown | OperationOutcome::Rejected => None,
        }
    }
}

/// The operations in the order of `invoked`.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub operations: Vec<Operation>,
}

impl History {
    /// Adds an operation and returns its number.
    pub fn invoke(&mut self, now: Micros, client: u64, member: u64, request: Request) -> usize {
        self.operations.push(Operation {
            client,
            member,
            request,
            invoked: now,
            completed: None,
            outcome: OperationOutcome::Unknown,
        });
        self.operations.len() - 1
    }

    pub fn complete(&mut self, now: Micros, number: usize, outcome: OperationOutcome) {
        let operation = &mut self.operations[number];
        assert!(operation.completed.is_none(), "a client is told twice: {operation:?}");
        operation.completed = Some(now);
        operation.outcome = outcome;
    }
}

/// The store as a plain map. Replies are compared with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreModel {
    pub revision: i64,
    pub records: BTreeMap<String, Record>,
}

impl Default for StoreModel {
    fn default() -> StoreModel {
        StoreModel { revision: 1, records: BTreeMap::new() }
    }
}

impl StoreModel {
    pub fn apply(&mut self, request: &Request) -> Reply {
        let reply = self.expected_reply(request);
        if !reply.changed {
            return reply;
        }
        self.revision = reply.revision;
        match request {
            Request::Read { .. } => {}
            Request::Delete { key } => drop(self.records.remove(key)),
            Request::Put { key, value } | Request::CompareAndSwap { key, value, .. } => {
                let before = self.records.get(key);
                let record = Record {
                    key: key.clone(),
                    value: value.clone(),
                    create_revision: before.map_or(reply.revision, |record| record.create_revision),
                    mod_revision: reply.revision,
                    version: before.map_or(0, |record| record.version) + 1,
                };
                self.records.insert(key.clone(), record);
            }
        }
        reply
    }

    /// Returns the reply that [`apply`](StoreModel::apply) would return. Changes nothing.
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
        let changed = match request {
            Request::Read { .. } => false,
            Request::Put { .. } => true,
            Request::Delete { .. } => !records.is_empty(),
            Request::CompareAndSwap { expected, .. } => {
                records.first().map(|record| &record.value) == expected.as_ref()
            }
        };
        Reply { revision: self.revision + i64::from(changed), changed, records }
    }
}
