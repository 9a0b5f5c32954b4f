//! Which flags are there? One table, from which everything that knows of flags is made.
//!
//! ```text
//!   name │ kind │ default │ help │ status
//!    ├─────────▶ the parser      --name=v
//!    ├─────────▶ the environment ETCD_NAME=v
//!    ├─────────▶ the config file name: v
//!    ├─────────▶ --help
//!    └─────────▶ docs/flags.md   (a test compares)
//! ```
//!
//! All flags of etcd are known. One that changes nothing is [`FlagStatus::Ignored`], and logs a
//! warning when it is set to something else than its default.

mod cluster;
mod limits;
mod clearlane_only;
mod running;
mod security;

use super::value::{self, ValueKind};

#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Without its dashes.
    pub name: &'static str,
    pub kind: ValueKind,
    pub default: &'static str,
    /// One line.
    pub help: &'static str,
    pub status: FlagStatus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagStatus {
    Honoured,
    /// Accepted without effect, and why.
    Ignored(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub struct Section {
    pub title: &'static str,
    pub flags: &'static [Flag],
}

pub const SECTIONS: &[Section] = &[
    Section { title: "Member", flags: cluster::MEMBER },
    Section { title: "Cluster", flags: cluster::CLUSTER },
    Section { title: "Raft", flags: cluster::RAFT },
    Section { title: "Store", flags: limits::STORE },
    Section { title: "Limits of requests", flags: limits::REQUESTS },
    Section { title: "Compaction and corruption checks", flags: limits::COMPACTION },
    Section { title: "Eras: Clearlane's own", flags: clearlane_only::ERAS },
    Section { title: "Security", flags: security::TLS },
    Section { title: "Authentication", flags: security::AUTH },
    Section { title: "HTTP", flags: running::HTTP },
    Section { title: "Logging", flags: running::LOGGING },
    Section { title: "Tracing", flags: running::TRACING },
    Section { title: "Discovery", flags: cluster::DISCOVERY },
    Section { title: "Unsafe", flags: running::UNSAFE },
    Section { title: "The rest", flags: running::REST },
];

/// In the order of the help.
pub fn all() -> impl Iterator<Item = &'static Flag> {
    SECTIONS.iter().flat_map(|section| section.flags)
}

pub fn find(name: &str) -> Option<&'static Flag> {
    all().find(|flag| flag.name == name)
}

impl Flag {
    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("ETCD_{}", self.name.to_uppercase().replace('-', "_"))
    }

    /// Values are compared, not their texts.
    pub fn is_default(&self, text: &str) -> bool {
        text == self.default || value::are_equal(self.kind, text, self.default)
    }

    const fn ignored(self, why: &'static str) -> Flag {
        Flag { status: FlagStatus::Ignored(why), ..self }
    }
}

/// A flag that is honoured.
pub(crate) const fn flag(
    name: &'static str,
    kind: ValueKind,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag { name, kind, default, help, status: FlagStatus::Honoured }
}
