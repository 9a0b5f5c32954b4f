//! How does an entry, a state, a change of members look as bytes? Written by hand.
//!
//! # Why by hand
//!
//! The messages are protobuf, and `clearlane-proto` has them as generated types. But etcd's files
//! ask for more than the generator knows. Some zeros must be there: `etcd-dump-logs` follows a
//! pointer for each field and dies of one that is absent. Some must not: a normal entry without
//! data has no data field. Lists of ids are not packed. And a decoder that is as lenient as
//! protobuf would take a state for an entry, if one bit of the record's type flipped. So both
//! directions are written out, and what is written is this:
//!
//! | message | written always, zero or not | written if not empty |
//! |---|---|---|
//! | [`Entry`] | kind, term, index | data |
//! | [`HardState`] | term, vote, commit | |
//! | [`ConfState`] | auto_leave | each id, with a tag of its own |
//! | [`ConfChange`] | kind, node id | id, context |
//! | [`WalSnapshot`] (the log's record of one) | index, term | ConfState, whenever index is not 0 |
//! | [`Metadata`] | node id, cluster id | |
//! | [`Record`] | type, crc | data |
//!
//! # A worked example
//!
//! ```
//! use clearlane_wal::wire::{Entry, EntryKind};
//!
//! let entry = Entry { kind: EntryKind::Normal, term: 2, index: 300, data: "hi".into() };
//! let bytes = [
//!     0x08, 0, //          field 1, varint: the kind, although it is 0
//!     0x10, 2, //          field 2: the term
//!     0x18, 0xac, 0x02, // field 3: 300 = 0b10_0101100, seven bits a byte, lowest first
//!     0x22, 2, b'h', b'i', // field 4, length and bytes
//! ];
//! assert_eq!(entry.encode(), bytes);
//! assert_eq!(Entry::decode(&bytes)?, entry);
//! # Ok::<(), clearlane_wal::wire::DecodeError>(())
//! ```
//!
//! # What a reader accepts
//!
//! What any etcd wrote: an absent number is 0, ids may be packed, a field may come twice and the
//! last one counts. It refuses fields and enum values that it does not know: a reader that drops them
//! would lose what a newer etcd meant, and stopping is better than that. A [`Record`] is read
//! stricter still, because no checksum covers it: type, crc, data, in this order, once.

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
