//! The plain model: a map of visible records, a map of durable records, and no concurrency.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use clearlane_backend::{
    Backend, Config, DroppedStates, Era, Error, RangeVisitor, ReadTx, Result, Sizes, Value,
    WriteTx, WriteTxResult,
};
use clearlane_engine::stream::Exporter;
use clearlane_engine::{Bucket, KeyRange};

use super::Entry;

pub(crate) type Map = BTreeMap<(Bucket, Bytes), Bytes>;

/// The simplest possible backend: opening a read copies everything.
#[derive(Debug)]
pub(crate) struct Model {
    state: Mutex<ModelState>,
    durable: Arc<Mutex<Map>>,
    config: Config,
}

#[derive(Debug, Default)]
struct ModelState {
    visible: Map,
    removals: Vec<Bytes>,
    payload: Entry,
    pending_ops: u64,
    dirty: bool,
    abandoned: bool,
    last_tick: Duration,
}

impl Model {
    /// Opens a model over a map that outlives it, as an engine outlives a backend.
    pub(crate) fn open(durable: Arc<Mutex<Map>>, config: Config) -> Model {
        let visible = durable.lock().unwrap().clone();
        let payload = super::contents::saved_entry(&visible);
        Model {
            state: Mutex::new(ModelState { visible, payload, ..ModelState::default() }),
            durable,
            config,
        }
    }

    fn commit_state(&self, state: &mut ModelState) -> Result<()> {
        if state.abandoned {
            return Err(Error::Abandoned);
        }
        for record in state.removals.drain(..) {
            state.visible.remove(&(Bucket::Key, record));
        }
        let index = (Bucket::Meta, Bytes::from_static(b"consistent_index"));
        state.visible.insert(index, state.payload.to_string().into());
        (state.pending_ops, state.dirty) = (0, false);
        *self.durable.lock().unwrap() = state.visible.clone();
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct ModelReadTx(Map);

impl ReadTx for ModelReadTx {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.0.get(&(bucket, Bytes::copy_from_slice(key))).cloned())
    }

    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()> {
        for ((found, key), value) in &self.0 {
            let wanted = *found == bucket && range.contains(key);
            if wanted && visit(key, Value::Shared(value)) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
}

struct ModelWriteTx<'m> {
    model: &'m Model,
    state: MutexGuard<'m, ModelState>,
    ended: bool,
}

impl ReadTx for ModelWriteTx<'_> {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        ModelReadTx(self.state.visible.clone()).get(bucket, key)
    }

    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> Result<()> {
        ModelReadTx(self.state.visible.clone()).range(bucket, range, visit)
    }
}

impl WriteTx<Entry> for ModelWriteTx<'_> {
    fn put(&mut self, bucket: Bucket, key: &[u8], value: Bytes) -> Result<()> {
        if bucket == Bucket::Key {
            let key = Bytes::copy_from_slice(key);
            let last = self.state.visible.keys().rfind(|(bucket, _)| *bucket == Bucket::Key);
            if let Some((_, last)) = last.filter(|(_, last)| *last >= key) {
                return Err(Error::OutOfOrder { key, last: last.clone() });
            }
        }
        self.state.visible.insert((bucket, Bytes::copy_from_slice(key)), value);
        self.state.pending_ops += 1;
        Ok(())
    }

    fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        if bucket == Bucket::Key {
            return Err(Error::AppendOnly);
        }
        self.state.visible.remove(&(bucket, Bytes::copy_from_slice(key)));
        self.state.pending_ops += 1;
        Ok(())
    }

    fn end(mut self: Box<Self>, payload: Entry) -> Result<WriteTxResult> {
        self.ended = true;
        (self.state.payload, self.state.dirty) = (payload, true);
        let commit_due = self.state.pending_ops >= self.model.config.batch_limit;
        Ok(WriteTxResult { dropped_states: DroppedStates::default(), commit_due })
    }

    fn payload(&self) -> &Entry {
        &self.state.payload
    }
}

impl Drop for ModelWriteTx<'_> {
    fn drop(&mut self) {
        self.state.abandoned |= !self.ended;
    }
}

impl Backend<Entry> for Model {
    fn era(&self) -> Era {
        Era::Clearlane
    }

    fn begin_read(&self) -> Box<dyn ReadTx + '_> {
        Box::new(ModelReadTx(self.state.lock().unwrap().visible.clone()))
    }

    fn begin_write(&self) -> Result<Box<dyn WriteTx<Entry> + '_>> {
        let state = self.state.lock().unwrap();
        if state.abandoned {
            return Err(Error::Abandoned);
        }
        Ok(Box::new(ModelWriteTx { model: self, state, ended: false }))
    }

    fn commit_if_due(&self, now: Duration) -> Result<bool> {
        let mut state = self.state.lock().unwrap();
        if now.saturating_sub(state.last_tick) < self.config.batch_interval {
            return Ok(false);
        }
        state.last_tick = now;
        let commit = state.dirty || !state.removals.is_empty();
        if commit {
            self.commit_state(&mut state)?;
        }
        Ok(commit)
    }

    fn commit(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.abandoned {
            return Err(Error::Abandoned);
        }
        if state.dirty || !state.removals.is_empty() {
            self.commit_state(&mut state)
        } else {
            Ok(())
        }
    }

    fn remove(&self, records: &[Bytes]) -> Result<()> {
        self.state.lock().unwrap().removals.extend_from_slice(records);
        Ok(())
    }

    fn defragment(&self) -> Result<()> {
        Ok(())
    }

    fn snapshot(&self) -> Result<Exporter> {
        self.commit()?;
        let engine = super::memory_engine();
        let mut txn = engine.begin_write()?;
        for ((bucket, key), value) in &*self.durable.lock().unwrap() {
            txn.put(*bucket, key, value)?;
        }
        txn.commit()?;
        Ok(Exporter::new(engine.snapshot()?))
    }

    fn sizes(&self) -> Result<Sizes> {
        let durable = self.durable.lock().unwrap();
        let in_use = durable.iter().map(|((_, key), value)| (key.len() + value.len()) as u64).sum();
        let pending_ops = self.state.lock().unwrap().pending_ops;
        Ok(Sizes { on_disk: 0, in_use, pending_ops })
    }
}
