//! The messages and services of etcd's API, of raft and of etcd's files. There is one module per
//! protobuf package. The modules are generated from the files in `proto/` when this crate is built.
//!
//! Names and numbers are the same as etcd's, except in [`peerpb`], which is our own package. etcd's
//! package `versionpb`, which annotates fields with versions, is omitted. Comments in `proto/` such
//! as "Since 3.4" name the version of etcd that introduced a field. Most crates depend on this
//! crate, because etcd's formats on disk consist of the same kind of messages as its API. The gRPC
//! stubs exist only with the feature `services`.
//!
//! * Encoding is deterministic: fields in ascending order, maps sorted. `HashKV` hashes encoded
//!   records, and members compare these hashes.
//! * A decoder skips an unknown field, and the field is lost when the message is encoded again. So
//!   code that only forwards a record forwards its bytes and does not decode them.
//! * A decoder rejects a message with more than 100 levels of nesting (etcd: 10,000). [`nested`]
//!   decodes nested transactions with a separate limit: see `docs/clearlane-and-etcd.md`.

pub mod nested;
mod secret;

pub use prost::{DecodeError, Message};

/// The compiled `.proto` files, as an encoded `google.protobuf.FileDescriptorSet`.
///
/// The set has every message, field, enum and service, with the names in the files. Each file is
/// listed after the files that it imports. Comments are omitted.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Declares the module of one protobuf package, with the generated code.
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
    /// The stored record, and the event that watchers receive.
    ///
    /// An encoded message is a list of fields: a number with a wire type, then the value. It has no
    /// end mark, so a reader must get the length from elsewhere. Example: the first put into an
    /// empty store sets key `a` to value `1`. The record on disk then has these bytes:
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
    /// ]; //                 field 6 is zero and therefore absent
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
    /// The API itself: services, requests and responses; and the requests in the raft log.
    ///
    /// How absent fields and zeros are read:
    ///
    /// * *proto3 numbers, bools, strings and bytes.* Zero is not written, and an absent field reads
    ///   as zero. So `revision: 0` means the newest revision, and `lease: 0` means no lease.
    /// * *proto3 messages and oneofs.* An absent message differs from an empty one, so the field is
    ///   an [`Option`]. "Enable auth" in an `InternalRaftRequest` is an empty message that is
    ///   present.
    /// * *proto3 enums.* The field is an `i32`, because a newer peer may send an unknown number.
    ///   `sort_order()` returns the default for an unknown number. Code that must reject unknown
    ///   numbers calls `SortOrder::try_from`.
    /// * *proto2* (`raftpb`, `walpb`, `snappb`, `Metadata`). Every field that is not repeated is an
    ///   [`Option`]. It is written if it is `Some`, even if it is zero.
    etcdserverpb, "etcdserverpb"
}
package! {
    /// Changes of the cluster's settings that go through the raft log.
    membershippb, "membershippb"
}
package! {
    /// The lease as it is stored, and the messages between members about leases.
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
    /// Raft as etcd's members send and store it. These types are for tests and benches. The crate
    /// `clearlane-wal` encodes and decodes the raft log by hand, because etcd expects certain zeros
    /// to be written.
    raftpb, "raftpb"
}
package! {
    /// The records of the write-ahead log. These types are for tests and benches. The crate
    /// `clearlane-wal` encodes and decodes the records by hand, because etcd expects certain zeros
    /// to be written.
    walpb, "walpb"
}
package! {
    /// The file in which etcd stores a raft snapshot. Clearlane neither reads nor writes such a
    /// file.
    snappb, "snappb"
}
package! {
    /// Messages between our members. This package is not etcd's.
    peerpb, "peerpb"
}

pub mod grpc {
    pub mod health {
        package! {
            v1, "grpc.health.v1"
        }
    }
}
