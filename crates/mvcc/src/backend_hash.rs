//! A checksum over every bucket of a backend: whether it still holds what it held, byte by byte.
//!
//! [`HashKV`](crate::hash) compares members by their keys. This sum also covers leases, users,
//! alarms and members. It is for one member: buckets may differ where keys agree, for example when
//! one member compacts later.
//!
//! A CRC-32C over all buckets in the order of their names, each name before its records, so that a
//! record that moves to another bucket is noticed. Left out are `consistent_index`, `term` and
//! `storageVersion`: they say how far this member's log was at the last commit, and which layout
//! its files have. Each commit may change them.

use std::ops::ControlFlow;

use clearlane_engine::{Bucket, KeyRange, Read};

use crate::error::Result;

const IGNORED_META_KEYS: [&[u8]; 3] = [b"consistent_index", b"term", b"storageVersion"];

/// Of a committed state. What a [pre-commit hook](clearlane_backend::PreCommit) stores is in it.
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
