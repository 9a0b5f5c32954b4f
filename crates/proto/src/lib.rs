//! The messages and services of etcd's API, of raft and of etcd's files: one module per protobuf
//! package, generated from `proto/` at the top of the repository when this crate is built.
//!
//! Names and numbers are etcd's, except in [`peerpb`], which is ours. The package `versionpb` is
//! left out; comments in `proto/` say which version brought a field where it matters. The crate is
//! at the bottom because etcd stores what it sends: nearly every crate reads or writes one of these
//! messages. gRPC stubs come with the feature `services` only.
//!
//! * Encoding is a function: fields in ascending order, maps sorted. `HashKV` hashes encoded
//!   records, and members compare those hashes.
//! * An unknown field is skipped when reading and lost when the message is written again, so no
//!   code decodes a record to pass it on.
//! * A decoder refuses bytes nested deeper than 100 messages (etcd: 10,000). Nested transactions
//!   are read by [`nested`], which has a bound of its own: `docs/clearlane-and-etcd.md`.

pub mod nested;
mod secret;

pub use prost::{DecodeError, Message};

/// The compiled `.proto` files as an encoded `google.protobuf.FileDescriptorSet`: every message,
/// field, enum and service with the names that the files give them, imports before their users,
/// comments left out.
///
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
            clippy::allow_attributes_without_reason,
            clippy::too_many_lines,
            clippy::unwrap_used,
            reason = "generated; the lints are for code written by hand"
        )]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/", $file, ".rs"));
        }
    };
}

package! {
    /// The stored record, and the event that watchers see.
    ///
    /// A message is a row of fields: a number with a wire type, then the value. There is no end
    /// mark; a reader must know the length from outside. This is on disk after the first put, of
    /// `1` under `a`, into an empty store:
    ///
    /// ```
    /// use clearlane_proto::Message;
    /// use clearlane_proto::mvccpb::KeyValue;
    ///
    /// let record = KeyValue {
    ///     key: "a".into(),
    ///     create_revision: 2,
    ///     mod_revision: 2,
    ///     version: 1,
    ///     value: "1".into(),
    ///     lease: 0,
    /// };
    /// let bytes = [
    ///     0x0a, 1, b'a', // field 1, of type "length, then bytes": the key
    ///     0x10, 2, //       field 2, of type "varint": the create revision
    ///     0x18, 2, //       field 3
    ///     0x20, 1, //       field 4
    ///     0x2a, 1, b'1', // field 5: the value
    /// ]; //                 field 6 is zero, and not there
    /// assert_eq!(record.encode_to_vec(), bytes);
    /// assert_eq!(KeyValue::decode(&bytes[..])?, record);
    /// # Ok::<(), clearlane_proto::DecodeError>(())
    /// ```
    mvccpb, "mvccpb"
}
package! {
    /// Users, roles and permissions as they are stored.
    authpb, "authpb"
}
package! {
    /// The API itself: services, requests, answers; and what members agree on through raft.
    ///
    /// Absent, or zero? Of a number, bool, string or bytes (proto3) zero is not written, and absent
    /// reads as zero; so `revision: 0` is "the newest" and `lease: 0` is "none". Of a message or a
    /// oneof absent and empty differ, hence the [`Option`]: "enable auth" in an
    /// `InternalRaftRequest` is an empty message that is there. An enum is an `i32` in the struct,
    /// because a newer peer may send an unknown number: `sort_order()` gives the default for it,
    /// code that has to refuse it asks `SortOrder::try_from`. In proto2 (`raftpb`, `walpb`,
    /// `snappb`, `Metadata`) every field is an [`Option`], written when it is `Some`, zero or not.
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
    /// Raft as etcd's members speak and store it. For readers and tests: the crate that owns
    /// the raft log writes these by hand, because etcd wants certain zeros written out.
    raftpb, "raftpb"
}
package! {
    /// The frames of the write-ahead log. For readers and tests: the crate that owns
    /// the raft log writes these by hand, because etcd wants certain zeros written out.
    walpb, "walpb"
}
package! {
    /// The file that holds a raft snapshot. For readers and tests: the crate that owns
    /// the raft log writes these by hand, because etcd wants certain zeros written out.
    snappb, "snappb"
}
package! {
    /// What our members say to each other. Not etcd's.
    peerpb, "peerpb"
}

pub mod grpc {
    pub mod health {
        package! {
            v1, "grpc.health.v1"
        }
    }
}
