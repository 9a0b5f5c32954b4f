//! The pointer to the current state. Readers load it, and writers replace it by compare-and-swap.
//!
//! Both the writer and the committer replace the state, and each changes only its own part of the
//! state. So each builds a new state from the current state. If the current state is replaced
//! before the new state is published, the new state is built again: see [`AtomicState::update`].
//!
//! With the feature `shuttle` the pointer is a mutex that a model checker can schedule.

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

    /// Replaces the current state with the result of `next`. Returns the replaced state and the new
    /// state. `next` may be called several times, so it must be cheap and have no side effects.
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
    /// Returns the current state. Takes no lock.
    pub(crate) fn load(&self) -> Arc<V> {
        self.current.load_full()
    }

    fn replace(&self, expected: &Arc<V>, next: Arc<V>) -> Result<(), Arc<V>> {
        let found = self.current.compare_and_swap(expected, next);
        if Arc::ptr_eq(&found, expected) { Ok(()) } else { Err(Arc::clone(&found)) }
    }
}

/// The same methods for the model checker, which may switch tasks whenever a lock is taken.
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
        // The model checker switches tasks when a lock is taken, but not when it is released.
        // Without this call, the model checker could not switch tasks between the replacement and
        // the task's next action.
        drop(self.load());
        Ok(())
    }
}
