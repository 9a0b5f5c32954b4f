//! A workload file: a key space, and classes of requests with their rates.
//!
//! `docs/scenarios.md` has the format, with an example. A class has connections of its own: a
//! request that shares one with a large answer waits for its bytes at every server. A table
//! `[model]` describes machines for the simulator, which reads it; the driver ignores it.
//!
//! A file is read strictly, since a misspelt line would otherwise be left out unnoticed, and the
//! rest would be measured.

mod set_field;
pub mod fields;
mod parse;

pub use parse::key_space;
pub(crate) use parse::{TXN_BYTES_MAX, TXN_OPERATIONS_MAX};

use crate::arrivals::Spacing;
use crate::keys::{KeySpace, Sizes};
use crate::{Error, Result};

/// A file that has been read.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// For how long requests are due.
    pub seconds: u64,
    /// Which keys there are.
    pub space: KeySpace,
    /// In the order of the file; at least one.
    pub classes: Vec<Class>,
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// What it is called in results.
    pub name: String,
    /// Its place in the file. It decides, with the seed, when requests are due, so that a class
    /// does not change when others are left out.
    pub index: u64,
    /// What a request does.
    pub operation: Operation,
    /// Requests per second, on average.
    pub rate: f64,
    /// How they follow each other.
    pub spacing: Spacing,
    /// How many connections they are dealt to.
    pub connections: u64,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads.
    Range {
        /// How many keys in a row.
        keys: u64,
        /// How many of them are sent.
        limit: Option<u64>,
        /// Whether the past will do.
        serializable: bool,
    },
    /// Writes one key.
    Put {
        /// With so much.
        value: Sizes,
    },
    /// Takes keys away.
    Delete {
        /// How many in a row.
        keys: u64,
    },
    /// Writes several keys if the first is there, else reads it.
    Txn {
        /// How many in a row.
        keys: u64,
        /// With so much each.
        value: Sizes,
    },
}

impl Operation {
    /// As in a file.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Range { .. } => "range",
            Operation::Put { .. } => "put",
            Operation::Delete { .. } => "delete",
            Operation::Txn { .. } => "txn",
        }
    }

    /// How many keys an answer brings at most.
    pub fn keys_sent(self) -> u64 {
        match self {
            Operation::Range { keys, limit, .. } => limit.map_or(keys, |limit| limit.min(keys)),
            Operation::Put { .. } | Operation::Delete { .. } => 0,
            Operation::Txn { keys, .. } => keys,
        }
    }
}

impl Workload {
    /// Leaves classes out.
    pub fn without(mut self, names: &[String]) -> Result<Workload> {
        let there = self.classes.iter().map(|class| class.name.as_str());
        let there = there.collect::<Vec<_>>().join(", ");
        if let Some(name) = names.iter().find(|name| self.classes.iter().all(|c| c.name != **name))
        {
            let wrong = format!("--without {name}: there is no such class; there are {there}");
            return Err(Error::Workload(wrong));
        }
        self.classes.retain(|class| !names.contains(&class.name));
        if self.classes.is_empty() {
            let wrong = format!("--without leaves no class of {there}");
            return Err(Error::Workload(wrong));
        }
        Ok(self)
    }

    /// Whether keys may be missing while it runs.
    pub fn has_deletes(&self) -> bool {
        self.classes.iter().any(|class| matches!(class.operation, Operation::Delete { .. }))
    }

    /// Whether it needs the keys that a fill makes.
    pub fn has_ranges(&self) -> bool {
        self.classes.iter().any(|class| matches!(class.operation, Operation::Range { .. }))
    }
}
