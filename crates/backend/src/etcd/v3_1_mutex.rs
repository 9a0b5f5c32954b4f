//! Era 3.1 (etcd 3.0 and 3.1): reads and writes share one mutex, `batchTx`.
//!
//! * **A read** and **a write transaction** hold it from opening to end. A read goes through the
//!   engine's open write transaction: so it sees what is not committed yet, and fails once that
//!   transaction is lost, after a failed commit.
//! * **A commit** holds it while the engine writes and syncs. At the batch limit the end of a write
//!   transaction commits.
//!
//! ```text
//!   expensive read  ▶━━━━━━━━━━━━ holds batchTx ━━━━━━━━━━━━▶
//!   cheap read             ······· waits for batchTx ········▪
//!   commit                      ·· waits for batchTx ·········▶━ sync ━▶
//! ```
//!
//! What follows from it: `docs/backend.md`.

use std::fmt::Debug;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange};

use crate::error::Result;
use crate::etcd::batch_tx::Batch;
use crate::interface::{RangeVisitor, ReadTx};
use crate::merge;

/// Read through the guard of `batchTx`: an open read, and the reading side of a write transaction.
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
