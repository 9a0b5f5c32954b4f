//! The one pointer that is published: loaded by readers, replaced by compare-and-swap.
//!
//! The applier and the committer replace it, and each changes only its own part of the state. So a
//! new state is made from the current one, and again if that has been replaced meanwhile: see
//! [`AtomicState::update`].
//!
//! With the feature `shuttle` the pointer is one that a model checker schedules around.

use std::sync::Arc;

#[cfg(not(feature = "shuttle"))]
type Pointer<V> = arc_swap::ArcSwap<V>;
#[cfg(feature = "shuttle")]
type Pointer<V> = shuttle::sync::Mutex<Arc<V>>;

#[derive(Debug)]
pub(crate) struct AtomicState<V> {
    current: Pointer<V>,
}

impl<V> AtomicState<V> {
    pub(crate) fn new(first: V) -> AtomicState<V> {
        AtomicState { current: Pointer::new(Arc::new(first)) }
    }

    /// Replaces the current state by what `next` makes of it. Returns the state that was replaced
    /// and the new one. `next` may be called again, so it must be cheap and change nothing.
    pub(crate) fn update(&self, next: impl Fn(&V) -> V) -> (Arc<V>, Arc<V>) {
        let mut current = self.load();
        loop {
            let replacement = Arc::new(next(&current));
            match self.replace(&current, Arc::clone(&replacement)) {
                Ok(()) => return (current, replacement),
                Err(newer) => current = newer,
            }
        }
    }
}

#[cfg(not(feature = "shuttle"))]
impl<V> AtomicState<V> {
    /// The current state. Takes no lock.
    pub(crate) fn load(&self) -> Arc<V> {
        self.current.load_full()
    }

    fn replace(&self, expected: &Arc<V>, next: Arc<V>) -> Result<(), Arc<V>> {
        let found = self.current.compare_and_swap(expected, next);
        if Arc::ptr_eq(&found, expected) { Ok(()) } else { Err(Arc::clone(&found)) }
    }
}

/// Each operation is a point where the model checker may switch tasks.
#[cfg(feature = "shuttle")]
impl<V> AtomicState<V> {
    pub(crate) fn load(&self) -> Arc<V> {
        Arc::clone(&self.current.lock().expect("no task panics while it holds the pointer"))
    }

    fn replace(&self, expected: &Arc<V>, next: Arc<V>) -> Result<(), Arc<V>> {
        let mut current = self.current.lock().expect("no task panics while it holds the pointer");
        if !Arc::ptr_eq(&current, expected) {
            return Err(Arc::clone(&current));
        }
        *current = next;
        drop(current);
        // Each lock is such a point, an unlock is not. Without one here, whatever the task does
        // next would happen together with the replacement.
        drop(self.load());
        Ok(())
    }
}
