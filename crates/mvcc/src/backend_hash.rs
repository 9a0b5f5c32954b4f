//! A checksum of all buckets of a backend. It shows whether a backend still has the same bytes.
//!
//! [`HashKV`](crate::hash) covers only keys, and compares members. This checksum also covers
//! leases, users, alarms and members. It compares states of one member: the buckets of two members
//! may differ although their keys agree, for example when one member compacts later.
//!
//! The checksum is a CRC-32C of all buckets in the order of their names. The name of each bucket is
//! added before its records, so that a record that moves to another bucket is noticed. The keys
//! `consistent_index`, `term` and `storageVersion` are omitted. The first two record this member's
//! position in the log, so each commit may change them. The third records the layout of its files.

use std::ops::ControlFlow;

use clearlane_engine::{Bucket, KeyRange, Read};

use crate::error::Result;

const IGNORED_META_KEYS: [&[u8]; 3] = [b"consistent_index", b"term", b"storageVersion"];

/// Returns the checksum of a committed state. It includes everything that a
/// [pre-commit hook](clearlane_backend::PreCommit) stores, except the omitted keys.
pub fn backend_hash(committed: &dyn Read) -> Result<u32> {
    let mut sum = 0;
    for bucket in Bucket::ALL {
        sum = crc32c::crc32c_append(sum, bucket.name().as_bytes());
        let mut add = |key: &[u8], value: &[u8]| {
            if bucket != Bucket::Meta || !IGNORED_META_KEYS.contains(&key) {
                sum = crc32c::crc32c_append(crc32c::crc32c_append(sum, key), value);
            }
            ControlFlow::Continue(())
        };
        let scanned = committed.scan(bucket, KeyRange::ALL, &mut add);
        scanned.map_err(clearlane_backend::Error::from)?;
    }
    Ok(sum)
}
