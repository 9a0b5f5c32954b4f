//! Shows how many pages the same records take in a bucket that is filled to 0.9, and in a bucket
//! that is filled to 0.5.

use std::fmt::Write as _;
use std::path::Path;

use clearlane_engine::Bucket;

use crate::look::Look;
use crate::story::{Outcome, open, revision_key};

const RECORDS: u64 = 2_000;
const COMMIT_RECORDS: u64 = 20;

pub(crate) fn tell(dir: &Path) -> Outcome<String> {
    let store = dir.join("filled");
    let engine = open(&store)?;
    for first in (1..=RECORDS).step_by(COMMIT_RECORDS as usize) {
        let mut txn = engine.begin_write()?;
        for main in first..first + COMMIT_RECORDS {
            for bucket in [Bucket::Key, Bucket::Lease] {
                txn.put(bucket, &revision_key(main), &[1; 100])?;
            }
        }
        txn.commit()?;
    }
    let look = Look::at(&store)?;
    let mut lines = format!("  {RECORDS} records in order, {COMMIT_RECORDS} in a commit\n");
    for (bucket, fill) in [(Bucket::Key, "0.9"), (Bucket::Lease, "0.5")] {
        let leaves = look.leaves_of(bucket.name());
        let records: usize = leaves.iter().map(|leaf| leaf.elements.len()).sum();
        assert_eq!(records as u64, RECORDS);
        let each = records as f64 / leaves.len() as f64;
        let _ = writeln!(
            lines,
            "  bucket {:<6} fill {fill}   {:>3} leaves, {each:.1} records on each",
            bucket.name(),
            leaves.len()
        );
    }
    Ok(lines)
}
