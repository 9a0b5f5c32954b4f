//! Opens the store of an era: the one place that chooses an implementation.

use clearlane_backend::Era;

use crate::clearlane::store::SnapshotStore;
use crate::config::StoreConfig;
use crate::error::Result;
use crate::etcd::store::EtcdStore;
use crate::etcd::v3_1_mutex::OneMutex;
use crate::etcd::v3_2_rev_mu::RevMu;
use crate::interface::ConsistentIndex;
use crate::restore::RecoveryInfo;
use crate::tree_index::TreeIndex;
use crate::tree_index::locked::{CompactionLock, LockedIndex};
use crate::tree_index::persistent::PersistentIndex;
use crate::watch::interface::WatchableKv;

/// Which parts a store is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreParts {
    /// How it reads beside a writer, in the backend and above it.
    pub era: Era,
    /// Its index.
    pub index: IndexKind,
}

/// The two tree indexes. Each can be chosen with each era, to see what it alone costs.
///
/// With [`Persistent`](IndexKind::Persistent) in an old era no walk stops a put; all other locks
/// stay. With [`Locked`](IndexKind::Locked) in the default era the state's index is a handle on the
/// one tree: a walk holds up a put, and a read does not outlast a compaction above its revision. It
/// then answers that the revision was compacted, and shows no past of which a part is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKind {
    /// etcd's: one tree under one lock.
    Locked,
    /// Ours: a snapshot is a pointer.
    Persistent,
}

/// The parts that belong together: etcd's index in etcd's eras.
impl From<Era> for StoreParts {
    fn from(era: Era) -> StoreParts {
        let index = match era {
            Era::Clearlane => IndexKind::Persistent,
            _ => IndexKind::Locked,
        };
        StoreParts { era, index }
    }
}

/// Opens the store that an engine holds, of these parts, and restores its index.
pub fn open<A: ConsistentIndex>(
    parts: StoreParts,
    store_config: StoreConfig<'_, A>,
) -> Result<(Box<dyn WatchableKv<A>>, RecoveryInfo)> {
    match parts.index {
        IndexKind::Locked => {
            let lock = match parts.era {
                Era::V3_0 | Era::V3_1 | Era::V3_2 => CompactionLock::WholeWalk,
                _ => CompactionLock::PerKey,
            };
            let index = LockedIndex::new(&store_config.config.locks, lock);
            open_with(parts.era, store_config, index)
        }
        IndexKind::Persistent => open_with(parts.era, store_config, PersistentIndex::default()),
    }
}

fn open_with<A: ConsistentIndex, I: TreeIndex>(
    era: Era,
    store_config: StoreConfig<'_, A>,
    index: I,
) -> Result<(Box<dyn WatchableKv<A>>, RecoveryInfo)> {
    Ok(match era {
        Era::V3_0 | Era::V3_1 => {
            let (store, opened) = EtcdStore::<A, I, OneMutex<I::Snapshot>>::open_with_index(
                era,
                store_config,
                index,
            )?;
            (Box::new(store), opened)
        }
        Era::V3_2 | Era::V3_4 | Era::V3_5 => {
            let (store, opened) =
                EtcdStore::<A, I, RevMu<I::Snapshot>>::open_with_index(era, store_config, index)?;
            (Box::new(store), opened)
        }
        Era::Clearlane => {
            let (store, opened) = SnapshotStore::open_with_index(store_config, index)?;
            (Box::new(store), opened)
        }
    })
}
