//! The memory engine with a hook that runs before reads, puts, commits and steps of a
//! defragmentation. The hook may block or fail.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::memory::MemoryEngine;
use clearlane_engine::{
    Bucket, Defragment, Engine, EngineKind, KeyRange, Read, Result, Snapshot, Visitor, WriteTxn,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineCall {
    /// A get, or one record of a scan.
    Read,
    Put,
    Commit,
    Defragment,
}

/// A function that is called before each operation that [`EngineCall`] lists. It may block. If it
/// returns an error, the operation fails with that error.
type Hook = Arc<dyn Fn(EngineCall) -> Result<()> + Send + Sync>;

pub(crate) struct HookedEngine {
    inner: MemoryEngine,
    hook: Hook,
}

impl HookedEngine {
    pub(crate) fn new(
        hook: impl Fn(EngineCall) -> Result<()> + Send + Sync + 'static,
    ) -> Arc<HookedEngine> {
        Arc::new(HookedEngine { inner: MemoryEngine::new(), hook: Arc::new(hook) })
    }
}

impl fmt::Debug for HookedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedEngine")
    }
}

impl Engine for HookedEngine {
    fn kind(&self) -> EngineKind {
        self.inner.kind()
    }

    fn begin_write(&self) -> Result<Box<dyn WriteTxn>> {
        let (inner, hook) = (self.inner.begin_write()?, Arc::clone(&self.hook));
        Ok(Box::new(HookedWriteTxn { inner, hook }))
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        let (inner, hook) = (self.inner.snapshot()?, Arc::clone(&self.hook));
        Ok(Arc::new(HookedSnapshot { inner, hook }))
    }

    fn size_on_disk(&self) -> Result<u64> {
        self.inner.size_on_disk()
    }

    fn size_in_use(&self) -> u64 {
        self.inner.size_in_use()
    }

    fn begin_defragment(&self) -> Result<Box<dyn Defragment>> {
        let (inner, hook) = (self.inner.begin_defragment()?, Arc::clone(&self.hook));
        Ok(Box::new(HookedDefragment { inner, hook }))
    }
}

fn get(read: &dyn Read, hook: &Hook, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
    hook(EngineCall::Read)?;
    read.get(bucket, key)
}

/// Scans, and calls the hook before each record.
fn scan(
    read: &dyn Read,
    hook: &Hook,
    bucket: Bucket,
    range: KeyRange<'_>,
    visit: &mut Visitor<'_>,
) -> Result<()> {
    let mut outcome = Ok(());
    read.scan(bucket, range, &mut |key, value| {
        outcome = hook(EngineCall::Read);
        if outcome.is_err() { ControlFlow::Break(()) } else { visit(key, value) }
    })?;
    outcome
}

struct HookedSnapshot {
    inner: Arc<dyn Snapshot>,
    hook: Hook,
}

impl fmt::Debug for HookedSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedSnapshot")
    }
}

impl Read for HookedSnapshot {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        get(&*self.inner, &self.hook, bucket, key)
    }

    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        scan(&*self.inner, &self.hook, bucket, range, visit)
    }

    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>> {
        self.inner.last_key(bucket)
    }
}

impl Snapshot for HookedSnapshot {}

struct HookedWriteTxn {
    inner: Box<dyn WriteTxn>,
    hook: Hook,
}

impl fmt::Debug for HookedWriteTxn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedWriteTxn")
    }
}

impl Read for HookedWriteTxn {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        get(&*self.inner, &self.hook, bucket, key)
    }

    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        scan(&*self.inner, &self.hook, bucket, range, visit)
    }

    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>> {
        self.inner.last_key(bucket)
    }
}

impl WriteTxn for HookedWriteTxn {
    fn put(&mut self, bucket: Bucket, key: &[u8], value: &[u8]) -> Result<()> {
        (self.hook)(EngineCall::Put)?;
        self.inner.put(bucket, key, value)
    }

    fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        self.inner.delete(bucket, key)
    }

    fn commit(self: Box<Self>) -> Result<()> {
        (self.hook)(EngineCall::Commit)?;
        self.inner.commit()
    }
}

struct HookedDefragment {
    inner: Box<dyn Defragment>,
    hook: Hook,
}

impl fmt::Debug for HookedDefragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedDefragment")
    }
}

impl Defragment for HookedDefragment {
    fn step(&mut self, records: usize) -> Result<bool> {
        (self.hook)(EngineCall::Defragment)?;
        self.inner.step(records)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.inner.finish()
    }
}
