//! The tree of etcd's index, and the clone that a compaction walks.

use imbl::OrdMap;

use super::key::Key;
use crate::key_index::KeyIndex;

pub(super) type Tree = OrdMap<Key, KeyIndex>;

/// The clone to walk over, if the compaction locks for each key.
#[derive(Debug, Default)]
pub(super) struct TreeClone(pub(super) Option<Tree>);
