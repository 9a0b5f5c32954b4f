//! The writer's side of the index, where writer and compaction reach it from different threads.
//!
//! etcd's index has its own lock, so it needs no other: each of the two has a handle on the tree.
//! The persistent index has none, for in its own store the lock `store` stands around it anyway. In
//! a store of the old eras it gets one, `index`: a write transaction holds it to its end, a
//! compaction for each step over the index. Reads do not take it.

use std::ops::{Deref, DerefMut};

use clearlane_contention::{Mutex, MutexGuard, Registry};

use crate::tree_index::TreeIndex;

#[derive(Debug)]
pub(crate) enum SharedIndex<I> {
    Handles(I),
    Guarded(Mutex<I>),
}

impl<I: TreeIndex> SharedIndex<I> {
    pub(crate) fn new(index: I, locks: &Registry) -> SharedIndex<I> {
        match index.clone_handle() {
            Some(handle) => SharedIndex::Handles(handle),
            None => SharedIndex::Guarded(Mutex::new(locks, "index", index)),
        }
    }

    pub(crate) fn write(&self) -> IndexWriter<'_, I> {
        match self {
            SharedIndex::Handles(index) => {
                let handle = index.clone_handle();
                IndexWriter::Handle(handle.expect("an index that has handed out one has more"))
            }
            SharedIndex::Guarded(index) => IndexWriter::Guard(index.lock()),
        }
    }
}

/// The writer's side, for as long as one has it.
pub(crate) enum IndexWriter<'i, I> {
    Handle(I),
    Guard(MutexGuard<'i, I>),
}

impl<I> Deref for IndexWriter<'_, I> {
    type Target = I;

    fn deref(&self) -> &I {
        match self {
            IndexWriter::Handle(index) => index,
            IndexWriter::Guard(index) => index,
        }
    }
}

impl<I> DerefMut for IndexWriter<'_, I> {
    fn deref_mut(&mut self) -> &mut I {
        match self {
            IndexWriter::Handle(index) => index,
            IndexWriter::Guard(index) => index,
        }
    }
}
