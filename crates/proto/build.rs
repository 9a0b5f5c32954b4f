//! Compiles `proto/`, a link to the folder at the top of the repository, into Rust.
//!
//! [`protox`] is a protobuf compiler written in Rust, so the build does not need `protoc`. It makes
//! *descriptors*, which are protobuf's own description of the messages. `prost` turns them into
//! structs, and tonic turns the services into stubs. The crate also contains the descriptors, for
//! tests, for the JSON gateway, and for the list of calls on the metrics page.
//!
//! Three settings differ from prost's defaults:
//!
//! * A field of type `bytes` becomes [`Bytes`], not `Vec<u8>`. A decoded key or value is a slice of
//!   its message, and code that keeps it longer copies it.
//! * A `map` becomes a `BTreeMap`, so that encoding a message twice returns the same bytes.
//! * `Debug` is not derived for `SECRET_MESSAGES`.
//!
//! [`Bytes`]: https://docs.rs/bytes/latest/bytes/struct.Bytes.html

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use prost_types::{DescriptorProto, FileDescriptorSet};
use protox::prost::Message;

const FILES: [&str; 20] = [
    "mvccpb/kv.proto",
    "authpb/auth.proto",
    "etcdserverpb/header.proto",
    "etcdserverpb/kv.proto",
    "etcdserverpb/watch.proto",
    "etcdserverpb/lease.proto",
    "etcdserverpb/cluster.proto",
    "etcdserverpb/maintenance.proto",
    "etcdserverpb/auth.proto",
    "membershippb/membership.proto",
    "etcdserverpb/raft_internal.proto",
    "leasepb/lease.proto",
    "v3electionpb/election.proto",
    "v3lockpb/lock.proto",
    "grpc/health/v1/health.proto",
    "raftpb/raft.proto",
    "etcdserverpb/wal_metadata.proto",
    "walpb/record.proto",
    "snappb/snapshot.proto",
    "peerpb/peer.proto",
];

/// The messages with a password, its hash, or a token. `src/secret.rs` implements their `Debug`.
const SECRET_MESSAGES: [&str; 6] = [
    ".authpb.User",
    ".etcdserverpb.AuthenticateRequest",
    ".etcdserverpb.AuthenticateResponse",
    ".etcdserverpb.AuthUserAddRequest",
    ".etcdserverpb.AuthUserChangePasswordRequest",
    ".etcdserverpb.InternalAuthenticateRequest",
];

/// Returns the folder of the `.proto` files. `proto` in this crate is a symbolic link to the folder
/// at the top of the repository. In a checkout without symbolic links, as on Windows, `proto` is a
/// small file, so the function returns the folder at the top itself.
fn proto_folder(package: &Path) -> PathBuf {
    let link = package.join("proto");
    if link.is_dir() { link } else { package.join("../../proto") }
}

fn main() -> Result<(), Box<dyn Error>> {
    let proto = proto_folder(Path::new(&env::var("CARGO_MANIFEST_DIR")?));
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", proto.display());

    let mut compiler = protox::Compiler::new([&proto])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    let descriptors = compiler.file_descriptor_set();
    fs::write(out.join("descriptors.bin"), without_comments(&descriptors).encode_to_vec())?;

    let services = env::var_os("CARGO_FEATURE_SERVICES").is_some();
    tonic_prost_build::configure()
        .out_dir(&out)
        .bytes(".")
        .btree_map(".")
        .skip_debug(SECRET_MESSAGES)
        .build_client(services)
        .build_server(services)
        // Callers create their own channels, so the stubs need no `connect` function.
        .build_transport(false)
        .compile_fds(with_rust_names(descriptors))?;
    Ok(())
}

/// Removes comments, which are already in the Rust code.
fn without_comments(descriptors: &FileDescriptorSet) -> FileDescriptorSet {
    let mut descriptors = descriptors.clone();
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    descriptors
}

/// Renames the fields that end in `URLs`. Without this function, prost would rename `peerURLs` to
/// `peer_ur_ls`.
///
/// Only the Rust code gets these names. The wire format contains field numbers and no names, and
/// `descriptors.bin`, which is written earlier, has the original names.
fn with_rust_names(mut descriptors: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut descriptors.file {
        file.message_type.iter_mut().for_each(rename_fields);
    }
    descriptors
}

fn rename_fields(message: &mut DescriptorProto) {
    for field in &mut message.field {
        if let Some(stem) = field.name().strip_suffix("URLs") {
            field.name = Some(format!("{stem}_urls"));
        }
    }
    message.nested_type.iter_mut().for_each(rename_fields);
}
