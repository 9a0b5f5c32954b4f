//! What is said on the wire, and written to disk? The messages and services of etcd's API.
//!
//! # What is here
//!
//! The `.proto` files in `proto/` at the top of the repository, turned into Rust when this crate is
//! built. Read those: they explain every message, and the docs below are made from them. There is
//! one module for each protobuf package:
//!
//! | module | what it holds | travels | lies on disk |
//! |---|---|---|---|
//! | [`mvccpb`] | the stored record, and the event of a watch | in answers | bucket `key` |
//! | [`etcdserverpb`] | requests, answers, and the request inside a raft entry | client to server | raft log |
//! | [`authpb`] | users, roles, permissions | in requests | buckets `authUsers`, `authRoles` |
//! | [`membershippb`] | facts about the cluster that are agreed on | | raft log |
//! | [`leasepb`] | the stored lease | member to member | bucket `lease` |
//! | [`v3electionpb`], [`v3lockpb`] | elections and locks | client to server | |
//! | [`grpc::health::v1`] | the health service | client to server | |
//! | [`raftpb`], [`walpb`], [`snappb`] | raft messages and the frames of its files | member to member | raft log, snapshots |
//! | [`peerpb`] | what our members say to each other | member to member | |
//!
//! But for the last, packages, names and numbers are etcd's, so that etcd's clients and tools work
//! with us. How they are spread over files, and every comment, is ours.
//!
//! # Why it is at the bottom
//!
//! One would look for wire types at the top of a server. But etcd stores what it sends: the value
//! under a revision *is* an encoded [`mvccpb::KeyValue`], and the data of a raft entry *is* an
//! encoded [`etcdserverpb::InternalRaftRequest`]. Nearly every crate meets one of them, so they lie
//! below all. The gRPC stubs need not: they come with the feature `services`, which the workspace
//! leaves off and only crates that talk to a network ask for.
//!
//! # How a message looks on the wire
//!
//! A message is a row of fields, each a number with a wire type, then the value. There are no names
//! and there is no end mark; a reader must know the length from outside. This is what lies on disk
//! after the first put, of `1` under `a`, into an empty store:
//!
//! ```
//! use clearlane_proto::Message;
//! use clearlane_proto::mvccpb::KeyValue;
//!
//! let record = KeyValue {
//!     key: "a".into(),
//!     create_revision: 2,
//!     mod_revision: 2,
//!     version: 1,
//!     value: "1".into(),
//!     lease: 0,
//! };
//! let bytes = [
//!     0x0a, 1, b'a', // field 1, of type "length, then bytes": the key
//!     0x10, 2, //       field 2, of type "varint": the create revision
//!     0x18, 2, //       field 3
//!     0x20, 1, //       field 4
//!     0x2a, 1, b'1', // field 5: the value
//! ]; //                 field 6 is zero, and not there
//! assert_eq!(record.encode_to_vec(), bytes);
//! assert_eq!(KeyValue::decode(&bytes[..])?, record);
//! # Ok::<(), clearlane_proto::DecodeError>(())
//! ```
//!
//! # Absent, or zero?
//!
//! * **A number, bool, string or bytes** (proto3): zero and absent are the same. Zero is never
//!   written, absent reads as zero. A message that needs "not given" must give zero that meaning:
//!   `revision: 0` is "the newest", `lease: 0` is "none".
//! * **A message or a oneof**: absent and empty differ, hence the [`Option`]. An empty message is
//!   written as a field of length 0. [`etcdserverpb::InternalRaftRequest`] rests on this: "enable
//!   auth" is an empty message that is there.
//! * **An enum** is an `i32` in the struct, because a newer peer may send a number that we have no
//!   name for. `sort_order()` gives the default for such a number; code that has to refuse it asks
//!   [`SortOrder::try_from`](etcdserverpb::range_request::SortOrder).
//! * **proto2** ([`raftpb`], [`walpb`], [`snappb`], [`etcdserverpb::Metadata`]): every field is an
//!   [`Option`] and is written when it is `Some`, zero or not.
//!
//! # What holds
//!
//! * Encoding is a function: fields go out in ascending order, maps are sorted. `HashKV` hashes
//!   encoded records, and members compare those hashes.
//! * A field that we do not know is skipped when reading, and is lost when the message is written
//!   again. So no code decodes a record to pass it on.
//! * Bytes from outside cannot panic the decoder, and cannot exhaust the stack: it refuses what is
//!   nested deeper than 100 messages (etcd: 10,000). Transactions in each other, the only messages
//!   that may lie deeper, are read by [`nested`], with a bound of their own.
//!
//! # What is not here
//!
//! * No checks of what a request means: that is the server's and the member's work.
//! * No encoder for raft's files. Their readers want certain zeros written out, and the crate that
//!   owns the raft log does that by hand; [`raftpb`] and its sisters are for readers and for tests.
//! * No mapping to JSON: [`DESCRIPTORS`] is what that will be made from.
//! * etcd's package `versionpb`, which marks each field with the version that brought it. The
//!   comments in `proto/` say so where it matters.

pub mod nested;

pub use prost::{DecodeError, EncodeError, Message};

/// The compiled `.proto` files as an encoded `google.protobuf.FileDescriptorSet`: every message,
/// field, enum and service with the names that the files give them, imports before their users,
/// comments left out.
///
/// For whatever must know names at run time: the JSON gateway, reflection, and the test that
/// compares our surface with etcd's.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Declares the module of one protobuf package and fills it with the generated code.
macro_rules! package {
    ($(#[doc = $doc:expr])* $name:ident, $file:literal) => {
        $(#[doc = $doc])*
        #[allow(
            missing_docs,
            missing_debug_implementations,
            unreachable_pub,
            rustdoc::all,
            clippy::all,
            clippy::too_many_lines,
            clippy::unwrap_used,
            reason = "generated; the lints are for code that somebody writes"
        )]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/", $file, ".rs"));
        }
    };
}

package! {
    /// The stored record, and the event that watchers see.
    mvccpb, "mvccpb"
}
package! {
    /// Users, roles and permissions as they are stored.
    authpb, "authpb"
}
package! {
    /// The API itself: services, requests, answers; and what members agree on through raft.
    etcdserverpb, "etcdserverpb"
}
package! {
    /// Changes of cluster-wide facts that go through the raft log.
    membershippb, "membershippb"
}
package! {
    /// The lease as it is stored, and what members ask each other about leases.
    leasepb, "leasepb"
}
package! {
    /// Elections, built by the server from keys and a lease.
    v3electionpb, "v3electionpb"
}
package! {
    /// Locks, built by the server from keys and a lease.
    v3lockpb, "v3lockpb"
}
package! {
    /// Raft as etcd's members speak and store it. For readers and tests: see the crate's docs.
    raftpb, "raftpb"
}
package! {
    /// The frames of the write-ahead log. For readers and tests: see the crate's docs.
    walpb, "walpb"
}
package! {
    /// The file that holds a raft snapshot. For readers and tests: see the crate's docs.
    snappb, "snappb"
}
package! {
    /// What our members say to each other. Not etcd's.
    peerpb, "peerpb"
}

/// What all gRPC servers share.
pub mod grpc {
    /// Whether a server is ready.
    pub mod health {
        package! {
            /// The first and only version.
            v1, "grpc.health.v1"
        }
    }
}
