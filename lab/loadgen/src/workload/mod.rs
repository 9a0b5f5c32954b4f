//! A workload file: a key space, and classes of requests with their rates.
//!
//! `docs/scenarios.md` has the format, with an example. A class has connections of its own: a
//! request that shares one with a large answer waits for its bytes at every server. A table
//! `[model]` describes machines for the simulator, which reads it; the driver ignores it.
//!
//! A file is read strictly: an ignored misspelt line would leave another workload to be measured.

mod set_field;
pub mod fields;
mod parse;
mod shipped;

pub use parse::key_space;
pub(crate) use parse::{TXN_BYTES_MAX, TXN_OPERATIONS_MAX};
pub use shipped::{SHIPPED, ShippedWorkload};

use crate::arrivals::Spacing;
use crate::keys::{Distribution, KeySpace, Sizes};
use crate::{Error, Result};

#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// How long requests are due.
    pub seconds: u64,
    pub space: KeySpace,
    /// In the order of the file; at least one.
    pub classes: Vec<Class>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    pub name: String,
    /// The position in the file. Together with the seed it decides when requests are due, so that a
    /// class does not change when others are left out.
    pub index: u64,
    pub operation: Operation,
    /// Requests per second, on average.
    pub rate: f64,
    pub spacing: Spacing,
    /// Requests use them in turn.
    pub connections: u64,
    /// Which keys requests are about.
    pub distribution: Distribution,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Range {
        /// The length of the range.
        keys: u64,
        limit: Option<u64>,
        serializable: bool,
    },
    /// Asks for the number of keys.
    Count {
        /// The length of the range.
        keys: u64,
        serializable: bool,
    },
    Put {
        value: Sizes,
    },
    Delete {
        /// The length of the range.
        keys: u64,
    },
    /// Puts several keys if the first exists, else reads it.
    Txn {
        keys: u64,
        value: Sizes,
    },
    /// Watches all keys.
    Watch {
        /// It ends after so many events from before the run; 0: when it is created.
        events: u64,
    },
    /// Grants a lease.
    Lease {
        ttl: u64,
    },
    /// Logs the user of the load in.
    Authenticate,
}

impl Operation {
    /// The word in a workload file.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Range { .. } => "range",
            Operation::Count { .. } => "count",
            Operation::Put { .. } => "put",
            Operation::Delete { .. } => "delete",
            Operation::Txn { .. } => "txn",
            Operation::Watch { .. } => "watch",
            Operation::Lease { .. } => "lease",
            Operation::Authenticate => "authenticate",
        }
    }

    /// The most keys in one answer.
    pub fn keys_sent(self) -> u64 {
        match self {
            Operation::Range { keys, limit, .. } => limit.map_or(keys, |limit| limit.min(keys)),
            Operation::Count { .. }
            | Operation::Put { .. }
            | Operation::Delete { .. }
            | Operation::Lease { .. }
            | Operation::Authenticate => 0,
            Operation::Txn { keys, .. } => keys,
            Operation::Watch { events } => events,
        }
    }
}

impl Workload {
    /// An error if a name is not a class, or no class is left.
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

    /// If so, keys may be missing during the run.
    pub fn has_deletes(&self) -> bool {
        self.classes.iter().any(|class| matches!(class.operation, Operation::Delete { .. }))
    }

    /// If so, the keys must be filled first.
    pub fn has_ranges(&self) -> bool {
        let reads = |class: &Class| {
            matches!(class.operation, Operation::Range { .. } | Operation::Count { .. })
        };
        self.classes.iter().any(reads)
    }
}
