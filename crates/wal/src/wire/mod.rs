//! Entries, states and changes of members in the bytes of etcd's files, written by hand.
//!
//! The generated types of `clearlane-proto` cannot write these files: some zeros must be there
//! (`etcd-dump-logs` follows a pointer for each field and dies of one that is absent), some must
//! not (a normal entry without data has no data field), and lists of ids are not packed. A decoder
//! as lenient as theirs would take a state for an entry if one bit of the record's type flipped.
//!
//! A reader accepts what any etcd wrote: an absent number is 0, ids may be packed, and of a field
//! that comes twice the last one counts. It refuses fields and enum values that it does not know,
//! because dropping them would lose what a newer etcd meant. A [`Record`] is read stricter still,
//! because no checksum covers it: type, crc, data, in this order, once.
//!
//! `docs/log.md` has the table of the fields that are written although they are zero.

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
