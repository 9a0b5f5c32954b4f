//! Era 3.1 (etcd 3.0 and 3.1): reads and writes share one mutex, `batchTx`.
//!
//! * **A read** and **a write transaction** hold `batchTx` until they end. A read uses the engine's
//!   open write transaction. So it sees writes that are not committed yet. A read fails if a put, a
//!   delete or a commit has failed in the engine before, or if a write transaction was dropped
//!   before its end.
//! * **A commit** holds `batchTx` while the engine writes and syncs. When the batch limit is
//!   reached, the end of a write transaction commits.
//!
//! ```text
//!   expensive read  ▶━━━━━━━━━━━━ holds batchTx ━━━━━━━━━━━━▶
//!   cheap read             ······· waits for batchTx ········▪
//!   commit                      ·· waits for batchTx ·········▶━ sync ━▶
//! ```
//!
//! `docs/backend.md` describes the consequences.

use std::fmt::Debug;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange};

use crate::error::Result;
use crate::etcd::batch_tx::Batch;
use crate::interface::{RangeVisitor, ReadTx};
use crate::merge;

/// Reads through the guard of `batchTx`. Both an open read and a write transaction read in this
/// way.
impl<T: Debug> ReadTx for Batch<T> {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.reader()?.get(bucket, key)?)
    }

    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()> {
        merge::scan_engine(self.reader()?, bucket, range, visit).map(|_flow| ())
    }
}
