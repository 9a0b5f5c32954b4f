//! A workload file: a key space, and classes of requests with their rates.
//!
//! `docs/scenarios.md` describes the format with an example. Each class has its own connections: on
//! a shared connection, a request would have to wait for the bytes of a large response, with any
//! server. A table `[model]` describes machines for the simulator. The driver ignores it.
//!
//! A file is read strictly, and an unknown field is an error. If a misspelt line were ignored, the
//! measured workload would differ from the workload that the author intended.

mod set_field;
pub mod fields;
mod parse;
mod shipped;

pub use parse::key_space;
pub(crate) use parse::{TXN_BYTES_MAX, TXN_OPERATIONS_MAX};
pub use shipped::{SHIPPED, ShippedWorkload};

use serde::{Serialize, Serializer};

use crate::arrivals::Spacing;
use crate::keys::{Distribution, KeySpace, Sizes};
use crate::{Error, Result};

#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Number of seconds for which requests are due.
    pub seconds: u64,
    pub space: KeySpace,
    /// The classes in the order of the file. There is at least one.
    pub classes: Vec<Class>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Class {
    pub name: String,
    /// The position in the file. Together with the seed it decides when requests are due. So the
    /// requests of a class stay the same if other classes are omitted.
    #[serde(skip)]
    pub index: u64,
    #[serde(flatten)]
    pub operation: Operation,
    /// Requests per second, on average.
    pub rate: f64,
    #[serde(rename = "arrivals")]
    pub spacing: Spacing,
    /// Number of connections. Requests use them in turn.
    pub connections: u64,
    /// Decides which keys the requests use.
    pub distribution: Distribution,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "operation", rename_all = "lowercase")]
pub enum Operation {
    Range {
        /// The length of the range.
        keys: u64,
        limit: Option<u64>,
        #[serde(rename = "consistency", serialize_with = "consistency")]
        serializable: bool,
    },
    /// Requests only the number of keys.
    Count {
        /// The length of the range.
        keys: u64,
        #[serde(rename = "consistency", serialize_with = "consistency")]
        serializable: bool,
    },
    Put {
        value: Sizes,
    },
    Delete {
        /// The length of the range.
        keys: u64,
    },
    /// Puts several keys if the first one exists, otherwise reads the first one.
    Txn {
        keys: u64,
        value: Sizes,
    },
    /// Watches all keys.
    Watch {
        /// Number of past events, from before the run, after which the watch ends. If 0, the watch
        /// ends as soon as it has been created.
        events: u64,
    },
    /// Grants a lease.
    Lease {
        ttl: u64,
    },
    /// Logs in as the user of the load.
    Authenticate,
}

fn consistency<S: Serializer>(
    serializable: &bool,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(if *serializable { "serializable" } else { "linearizable" })
}

impl Operation {
    /// Returns the word for this operation in a workload file.
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

    /// Returns an upper bound for the number of keys in one response.
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
    /// Returns the class with this name.
    pub fn class(&self, name: &str) -> Result<&Class> {
        let no_class = || Error::Workload(format!("the workload has no class {name}"));
        self.classes.iter().find(|class| class.name == name).ok_or_else(no_class)
    }

    /// Removes classes. Fails if a name is not a class, or if no class would be left.
    pub fn without(mut self, names: &[String]) -> Result<Workload> {
        let there = self.classes.iter().map(|class| class.name.as_str());
        let there = there.collect::<Vec<_>>().join(", ");
        if let Some(name) = names.iter().find(|name| self.classes.iter().all(|c| c.name != **name))
        {
            let wrong = format!("--without {name}: unknown class; known are {there}");
            return Err(Error::Workload(wrong));
        }
        self.classes.retain(|class| !names.contains(&class.name));
        if self.classes.is_empty() {
            let wrong = format!("--without omits all classes: {there}");
            return Err(Error::Workload(wrong));
        }
        Ok(self)
    }

    /// Returns whether a class deletes keys. If so, keys may be missing during the run.
    pub fn has_deletes(&self) -> bool {
        self.classes.iter().any(|class| matches!(class.operation, Operation::Delete { .. }))
    }

    /// Returns whether a class reads keys. If so, the keys must be filled before the run.
    pub fn has_ranges(&self) -> bool {
        let reads = |class: &Class| {
            matches!(class.operation, Operation::Range { .. } | Operation::Count { .. })
        };
        self.classes.iter().any(reads)
    }
}
