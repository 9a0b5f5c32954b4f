//! The names of the five designs, and opening one by name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use clearlane_engine::Engine;

use crate::config::{Config, PreCommit};
use crate::error::{Error, Result};
use crate::interface::Backend;
use crate::{buffered, mutex, snapshot};

/// The five ways to read beside a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Design {
    /// etcd 3.0 and 3.1: one mutex for everybody.
    Mutex,
    /// etcd 3.2 and 3.3: a read-write lock and a buffer of what is pending.
    ReadTx,
    /// etcd 3.4: every read copies the buffer, then needs no lock.
    ConcurrentReadTx,
    /// etcd 3.5 and later: reads between two writes share one copy.
    CachedReadTx,
    /// Clearlane's own: a read is one pointer.
    SnapshotReadTx,
}

impl Design {
    /// Every design, oldest first.
    pub const ALL: [Design; 5] = [
        Design::Mutex,
        Design::ReadTx,
        Design::ConcurrentReadTx,
        Design::CachedReadTx,
        Design::SnapshotReadTx,
    ];

    /// The generation of etcd that has it, which is its name on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Design::Mutex => "3.1",
            Design::ReadTx => "3.2",
            Design::ConcurrentReadTx => "3.4",
            Design::CachedReadTx => "3.5",
            Design::SnapshotReadTx => "clearlane",
        }
    }

    /// Opens a backend of this design on `engine`. `payload` describes the state that the engine
    /// holds, until the first write transaction ends with another.
    pub fn open<T: Clone + Send + Sync + fmt::Debug + 'static>(
        self,
        engine: Arc<dyn Engine>,
        config: Config,
        pre_commit: PreCommit<T>,
        payload: T,
    ) -> Result<Box<dyn Backend<T>>> {
        Ok(match self {
            Design::Mutex => {
                Box::new(mutex::MutexBackend::open(engine, config, pre_commit, payload)?)
            }
            Design::ReadTx | Design::ConcurrentReadTx | Design::CachedReadTx => {
                Box::new(buffered::Buffered::open(self, engine, config, pre_commit, payload)?)
            }
            Design::SnapshotReadTx => {
                Box::new(snapshot::SnapshotBackend::open(engine, config, pre_commit, payload)?)
            }
        })
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Design {
    type Err = Error;

    fn from_str(name: &str) -> Result<Design> {
        let found = Design::ALL.into_iter().find(|design| design.name() == name);
        found.ok_or_else(|| Error::UnknownDesign { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::Design;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for design in Design::ALL {
            assert_eq!(design.name().parse::<Design>().unwrap(), design);
        }
        assert_eq!(
            "3.9".parse::<Design>().unwrap_err().to_string(),
            "unknown design \"3.9\": allowed are 3.1, 3.2, 3.4, 3.5, clearlane"
        );
    }
}
