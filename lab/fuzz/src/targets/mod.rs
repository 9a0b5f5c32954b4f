//! The targets. Each has its own file.

pub mod addresses;
pub mod arguments;
pub mod bolt_file;
pub mod bolt_transactions;
pub mod config_file;
pub mod gateway_answer;
pub mod gateway_request;
pub mod grpc_frame;
pub mod jwt;
pub mod kv_requests;
pub mod messages;
pub mod peer_message;
pub mod raft_entry;
pub mod snapshot_file;
pub mod snapshot_stream;
pub mod store_records;
pub mod wal_directory;
pub mod wal_records;

pub type Target = fn(&[u8]);

/// All targets by name. The name is also the name of the file and of the directory in `corpus`.
pub const ALL: [(&str, Target); 18] = [
    ("addresses", addresses::target),
    ("arguments", arguments::target),
    ("bolt_file", bolt_file::target),
    ("bolt_transactions", bolt_transactions::target),
    ("config_file", config_file::target),
    ("gateway_answer", gateway_answer::target),
    ("gateway_request", gateway_request::target),
    ("grpc_frame", grpc_frame::target),
    ("jwt", jwt::target),
    ("kv_requests", kv_requests::target),
    ("messages", messages::target),
    ("peer_message", peer_message::target),
    ("raft_entry", raft_entry::target),
    ("snapshot_file", snapshot_file::target),
    ("snapshot_stream", snapshot_stream::target),
    ("store_records", store_records::target),
    ("wal_directory", wal_directory::target),
    ("wal_records", wal_records::target),
];

pub fn find(name: &str) -> Option<Target> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}
