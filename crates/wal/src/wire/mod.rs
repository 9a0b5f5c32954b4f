//! Encodes and decodes entries, states and member changes in the format of etcd's files, by hand.
//!
//! With the generated types of `clearlane-proto`, each caller would have to choose the fields that
//! are written. Here the rules are in one place. Some zeros must be written: `etcd-dump-logs`
//! follows a pointer for each field and crashes if one is absent. Other empty fields must not be
//! written: a normal entry without data has no data field. Lists of ids are not packed. The
//! generated decoder is also too lenient: it could take a state for an entry if one bit of the
//! record's type flips.
//!
//! The decoder accepts everything that a known version of etcd writes. An absent number is 0, ids
//! may be packed, and if a field occurs twice the last one is used. It rejects unknown fields and
//! enum values, because ignoring them could lose information from a newer etcd. A [`Record`] is
//! read more strictly, because no checksum covers its type and its crc: type, crc and data must
//! occur once, in this order.
//!
//! `docs/log.md` has a table of the fields that are written even if they are zero.

mod fields;
mod conf;
mod context;
mod entry;
mod record;

pub use conf::{ConfChange, ConfChangeKind, ConfState};
pub use context::MemberContext;
pub use entry::{Entry, EntryKind, HardState};
pub use fields::DecodeError;
pub use record::{Metadata, Record, RecordKind, WalSnapshot};
