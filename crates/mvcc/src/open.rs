//! Opens the store of an era. Only this module chooses an implementation.

use clearlane_backend::Era;

use crate::clearlane::store::SnapshotStore;
use crate::config::StoreConfig;
use crate::error::Result;
use crate::etcd::store::EtcdStore;
use crate::interface::ConsistentIndex;
use crate::restore::RecoveryInfo;
use crate::watch::interface::WatchableKv;

pub fn open<A: ConsistentIndex>(
    era: Era,
    config: StoreConfig<A>,
) -> Result<(Box<dyn WatchableKv<A>>, RecoveryInfo)> {
    Ok(match era {
        Era::Clearlane => {
            let (store, recovery) = SnapshotStore::open(config)?;
            (Box::new(store), recovery)
        }
        era => {
            let (store, recovery) = EtcdStore::open(era, config)?;
            (Box::new(store), recovery)
        }
    })
}
