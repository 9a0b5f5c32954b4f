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
use crate::watch::interface::WatchableKv;

pub fn open<A: ConsistentIndex>(
    era: Era,
    config: StoreConfig<A>,
) -> Result<(Box<dyn WatchableKv<A>>, RecoveryInfo)> {
    Ok(match era {
        Era::V3_0 | Era::V3_1 => {
            let (store, recovery) = EtcdStore::<A, OneMutex>::open(era, config)?;
            (Box::new(store), recovery)
        }
        Era::V3_2 | Era::V3_4 | Era::V3_5 => {
            let (store, recovery) = EtcdStore::<A, RevMu>::open(era, config)?;
            (Box::new(store), recovery)
        }
        Era::Clearlane => {
            let (store, recovery) = SnapshotStore::open(config)?;
            (Box::new(store), recovery)
        }
    })
}
