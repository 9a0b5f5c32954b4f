//! `snapshot save`: saves a member's store as a file, completely or not at all.
//!
//! The file gets its name only after all data has arrived, the checksum matches, and the data is
//! synced to disk. An interrupted attempt leaves a file with the suffix `.part`.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use clearlane_proto::etcdserverpb::SnapshotRequest;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use sha2::{Digest, Sha256};

use super::{Action, BoxError, Tool, call};
use crate::config::arguments::FlagReader;
use crate::config::table::flag;
use crate::config::value::ValueKind::Text;

pub(super) const TOOL: Tool = Tool {
    name: &["snapshot", "save"],
    about: "Save a snapshot of the store of a running member",
    positional: &[
        flag("ENDPOINT", Text, "").help("Client address of the member: HOST:PORT or a URL."),
        flag("FILE", Text, "").help("File to write."),
    ],
    words: None,
    flags: call::FLAGS,
    action: Action::Text(save),
};

/// Number of bytes of the SHA-256 checksum, which follows the store.
const CHECKSUM_BYTES: usize = 32;
/// The length of an etcd snapshot without its checksum is a multiple of this number of bytes.
const SNAPSHOT_BLOCK_BYTES: u64 = 512;

fn save(flags: &FlagReader) -> Result<String, BoxError> {
    let (endpoint, path) = (flags.text("ENDPOINT"), Path::new(flags.text("FILE")));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let part = path.with_added_extension("part");
    let length = runtime.block_on(fetch(flags, endpoint, &part))?;
    std::fs::rename(&part, path)?;
    let dir = path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()?;
    Ok(format!("Snapshot saved at {} ({length} bytes)\n", path.display()))
}

async fn fetch(flags: &FlagReader, endpoint: &str, part: &Path) -> Result<u64, BoxError> {
    let channel = call::connect(flags, endpoint).await?;
    let request = call::request(flags, &channel, SnapshotRequest {}).await?;
    let asked = MaintenanceClient::new(channel).snapshot(request).await;
    let mut pieces =
        asked.map_err(|status| format!("{endpoint}: {}", status.message()))?.into_inner();
    let mut file = File::create(part).map_err(|error| format!("{}: {error}", part.display()))?;
    let mut tail = ChecksumReader::default();
    while let Some(piece) = pieces.message().await? {
        file.write_all(&piece.blob)?;
        tail.push(&piece.blob);
    }
    let length = tail.check()?;
    file.sync_all()?;
    Ok(length)
}

/// Computes the checksum of all bytes except the last 32, which are the expected checksum.
#[derive(Default)]
struct ChecksumReader {
    sum: Sha256,
    tail: Vec<u8>,
    summed: u64,
}

impl ChecksumReader {
    fn push(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        let ready = self.tail.len().saturating_sub(CHECKSUM_BYTES);
        self.sum.update(&self.tail[..ready]);
        self.tail.drain(..ready);
        self.summed += ready as u64;
    }

    /// Returns the length of the file. Fails if the checksum is missing or does not match.
    fn check(self) -> Result<u64, BoxError> {
        if self.tail.len() < CHECKSUM_BYTES || !self.summed.is_multiple_of(SNAPSHOT_BLOCK_BYTES) {
            return Err("the snapshot ends without its checksum; it was cut off".into());
        }
        if self.sum.finalize()[..] == self.tail[..] {
            Ok(self.summed + CHECKSUM_BYTES as u64)
        } else {
            Err("the checksum of the snapshot does not match; it was damaged in transit".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], piece: usize) -> Result<u64, String> {
        let mut tail = ChecksumReader::default();
        bytes.chunks(piece).for_each(|piece| tail.push(piece));
        tail.check().map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_sum_is_found_however_it_is_cut() {
        let mut bytes = vec![7; 1024];
        let sum = Sha256::digest(&bytes);
        bytes.extend_from_slice(&sum);
        for piece in [1, 31, 32, 33, 512, 2000] {
            assert_eq!(check(&bytes, piece), Ok(1056));
            assert!(check(&bytes[..1040], piece).unwrap_err().contains("cut off"));
            let mut damaged = bytes.clone();
            damaged[100] = 8;
            assert!(check(&damaged, piece).unwrap_err().contains("damaged"));
        }
        assert!(check(&[], 1).is_err());
    }
}
