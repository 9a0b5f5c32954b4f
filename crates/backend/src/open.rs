//! Opens the backend of an era. Only this file chooses an implementation.

use std::fmt;
use std::sync::Arc;

use clearlane_engine::Engine;

use crate::clearlane::SnapshotBackend;
use crate::config::{Config, PreCommit};
use crate::era::Era;
use crate::error::Result;
use crate::etcd::backend::EtcdBackend;
use crate::interface::Backend;

impl Era {
    /// Opens a backend of this era on `engine`. `payload` describes the engine's present state. It
    /// stays the current payload until the first write transaction ends with a new payload.
    pub fn open<T: Clone + Send + Sync + fmt::Debug + 'static>(
        self,
        engine: Arc<dyn Engine>,
        config: Config,
        pre_commit: PreCommit<T>,
        payload: T,
    ) -> Result<Box<dyn Backend<T>>> {
        Ok(match self {
            Era::Clearlane => Box::new(SnapshotBackend::open(engine, config, pre_commit, payload)?),
            era => Box::new(EtcdBackend::open(era, engine, config, pre_commit, payload)?),
        })
    }
}
