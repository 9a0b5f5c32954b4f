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
//! All flags of etcd are known here, so that etcd's command line starts a member.
//! A flag that changes nothing is [`FlagStatus::Ignored`], which is shown in the help, in the docs,
//! and as a warning when it is set to something else than its default.

mod cluster;
mod limits;
mod clearlane_only;
mod running;
mod security;

use super::value::{self, ValueKind};

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Without its dashes.
    pub name: &'static str,
    /// What its value may be.
    pub kind: ValueKind,
    /// What it is when it is not set.
    pub default: &'static str,
    /// What it does, in a line.
    pub help: &'static str,
    /// Whether it does it.
    pub status: FlagStatus,
}

/// Whether a flag has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagStatus {
    /// It does.
    Honoured,
    /// It is taken, and changes nothing. Why.
    Ignored(&'static str),
}

/// Flags that belong together.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// What they are about.
    pub title: &'static str,
    /// In the order of the help.
    pub flags: &'static [Flag],
}

/// All flags.
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

/// All flags, in the order of the help.
pub fn all() -> impl Iterator<Item = &'static Flag> {
    SECTIONS.iter().flat_map(|section| section.flags)
}

/// The flag of this name.
pub fn find(name: &str) -> Option<&'static Flag> {
    all().find(|flag| flag.name == name)
}

impl Flag {
    /// The variable that sets it.
    pub fn variable(&self) -> String {
        format!("ETCD_{}", self.name.to_uppercase().replace('-', "_"))
    }

    /// Whether a value is the default, however it is written.
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
