//! The eras: generations of the read path, with the names that `--era` accepts. All crates share
//! this enum.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Era {
    /// etcd 3.0: like 3.1, but a linearizable read is an entry of the raft log.
    V3_0,
    /// etcd 3.1: one mutex for reads, writes and commits.
    V3_1,
    /// etcd 3.2 and 3.3: a read-write lock and a buffer of pending writes.
    V3_2,
    /// etcd 3.4: every read copies the buffer while it holds the lock, and then releases the lock.
    V3_4,
    /// etcd 3.5 and later: reads that open between two writes usually share one copy of the buffer.
    V3_5,
    /// Clearlane's own: opening a read loads one pointer.
    Clearlane,
}

impl Era {
    /// All eras, oldest first.
    pub const ALL: [Era; 6] =
        [Era::V3_0, Era::V3_1, Era::V3_2, Era::V3_4, Era::V3_5, Era::Clearlane];

    /// The eras with different stores. Era 3.0 has the store of 3.1.
    pub const DISTINCT_STORES: [Era; 5] =
        [Era::V3_1, Era::V3_2, Era::V3_4, Era::V3_5, Era::Clearlane];

    /// Returns the name that is used on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Era::V3_0 => "3.0",
            Era::V3_1 => "3.1",
            Era::V3_2 => "3.2",
            Era::V3_4 => "3.4",
            Era::V3_5 => "3.5",
            Era::Clearlane => "clearlane",
        }
    }
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Era {
    type Err = Error;

    /// Also accepts the versions of etcd that have the read path of an earlier version: 3.3, 3.6
    /// and 3.7.
    fn from_str(name: &str) -> Result<Era> {
        let alias = match name {
            "3.3" => Some(Era::V3_2),
            "3.6" | "3.7" => Some(Era::V3_5),
            _ => None,
        };
        let found = alias.or_else(|| Era::ALL.into_iter().find(|era| era.name() == name));
        found.ok_or_else(|| Error::UnknownEra { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::Era;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for era in Era::ALL {
            assert_eq!(era.name().parse::<Era>().unwrap(), era);
        }
        assert_eq!(
            "3.9".parse::<Era>().unwrap_err().to_string(),
            "unknown era \"3.9\": allowed are 3.0, 3.1, 3.2, 3.4, 3.5, clearlane; \
             3.3 reads as 3.2, and 3.6 and 3.7 read as 3.5"
        );
    }

    #[test]
    fn versions_without_a_read_path_of_their_own_are_aliases() {
        for (name, era) in [("3.3", Era::V3_2), ("3.6", Era::V3_5), ("3.7", Era::V3_5)] {
            assert_eq!(name.parse::<Era>().unwrap(), era);
        }
    }
}
