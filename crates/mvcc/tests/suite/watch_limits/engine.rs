//! The memory engine with a counter of the records that are read. It can also return errors.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use clearlane_engine::{
    Bucket, Defragment, Engine, EngineKind, Error, KeyRange, MemoryEngine, Read, Result, Snapshot,
    Visitor, WriteTxn,
};

pub(crate) struct Reads {
    count: AtomicUsize,
    reads_before_failure: AtomicUsize,
    /// An action that the next read runs first.
    before: Mutex<Option<Before>>,
}

type Before = Box<dyn FnOnce() + Send>;

impl std::fmt::Debug for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reads").finish_non_exhaustive()
    }
}

impl Reads {
    /// Returns how many records were read since the last call.
    pub(crate) fn take_count(&self) -> usize {
        self.count.swap(0, Ordering::Relaxed)
    }

    /// Lets this number of reads succeed. All later reads fail.
    pub(crate) fn fail_after(&self, good: usize) {
        self.reads_before_failure.store(good, Ordering::Relaxed);
    }

    pub(crate) fn recover(&self) {
        self.fail_after(usize::MAX);
    }

    pub(crate) fn before_next(&self, before: impl FnOnce() + Send + 'static) {
        *self.before.lock().unwrap() = Some(Box::new(before));
    }

    fn note(&self) -> Result<()> {
        let before = self.before.lock().unwrap().take();
        if let Some(before) = before {
            before();
        }
        if self.reads_before_failure.load(Ordering::Relaxed) == 0 {
            return Err(Error::Storage("on purpose".to_owned()));
        }
        self.reads_before_failure.fetch_sub(1, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct CountingEngine {
    inner: MemoryEngine,
    pub(crate) reads: Arc<Reads>,
}

impl CountingEngine {
    pub(crate) fn new() -> CountingEngine {
        let (count, good) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
        let reads = Reads { count, reads_before_failure: good, before: Mutex::new(None) };
        CountingEngine { inner: MemoryEngine::new(), reads: Arc::new(reads) }
    }
}

impl Engine for CountingEngine {
    fn kind(&self) -> EngineKind {
        self.inner.kind()
    }

    fn begin_write(&self) -> Result<Box<dyn WriteTxn>> {
        self.inner.begin_write()
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        let inner = self.inner.snapshot()?;
        Ok(Arc::new(CountingSnapshot { inner, reads: Arc::clone(&self.reads) }))
    }

    fn size_on_disk(&self) -> Result<u64> {
        self.inner.size_on_disk()
    }

    fn size_in_use(&self) -> u64 {
        self.inner.size_in_use()
    }

    fn begin_defragment(&self) -> Result<Box<dyn Defragment>> {
        self.inner.begin_defragment()
    }
}

#[derive(Debug)]
struct CountingSnapshot {
    inner: Arc<dyn Snapshot>,
    reads: Arc<Reads>,
}

impl Read for CountingSnapshot {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        self.reads.note()?;
        self.inner.get(bucket, key)
    }

    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        let mut outcome = Ok(());
        self.inner.scan(bucket, range, &mut |key, value| {
            outcome = self.reads.note();
            if outcome.is_err() { ControlFlow::Break(()) } else { visit(key, value) }
        })?;
        outcome
    }

    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>> {
        self.inner.last_key(bucket)
    }
}

impl Snapshot for CountingSnapshot {}
