//! What is in the tree beside the records, how a key lies in it, and what its errors become.

use bytes::Bytes;

use crate::bucket::Bucket;
use crate::error::{Error, one_line};

/// Our own entry in the tree, behind all buckets: commit number and size in use.
pub(super) const METADATA_KEY: &[u8] = &[0xff];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TreeMetadata {
    pub(super) commit: u64,
    pub(super) size_in_use: u64,
}

impl TreeMetadata {
    pub(super) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.commit.to_be_bytes());
        bytes[8..].copy_from_slice(&self.size_in_use.to_be_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<TreeMetadata> {
        let (commit, size_in_use) = bytes.split_at_checked(8)?;
        let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes);
        Some(TreeMetadata { commit: number(commit)?, size_in_use: number(size_in_use)? })
    }
}

pub(super) fn tree_key(bucket: Bucket, key: &[u8]) -> Bytes {
    let mut whole = Vec::with_capacity(1 + key.len());
    whole.push(bucket as u8);
    whole.extend_from_slice(key);
    whole.into()
}

pub(super) fn storage_error(error: sled::Error) -> Error {
    Error::Storage(one_line(&error.to_string()))
}
