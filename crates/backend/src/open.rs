//! Opens the backend of an era: the one place that chooses an implementation.

use std::fmt;
use std::sync::Arc;

use clearlane_engine::Engine;

use crate::clearlane::SnapshotBackend;
use crate::config::{Config, PreCommit};
use crate::era::Era;
use crate::error::Result;
use crate::etcd::buffered_backend::BufferedBackend;
use crate::etcd::v3_1_mutex::MutexBackend;
use crate::interface::Backend;

impl Era {
    /// Opens a backend of this era on `engine`. `payload` describes the state that the engine
    /// holds, until the first write transaction ends with another.
    pub fn open<T: Clone + Send + Sync + fmt::Debug + 'static>(
        self,
        engine: Arc<dyn Engine>,
        config: Config,
        pre_commit: PreCommit<T>,
        payload: T,
    ) -> Result<Box<dyn Backend<T>>> {
        Ok(match self {
            Era::V3_0 | Era::V3_1 => {
                Box::new(MutexBackend::open(self, engine, config, pre_commit, payload)?)
            }
            Era::V3_2 | Era::V3_4 | Era::V3_5 => {
                Box::new(BufferedBackend::open(self, engine, config, pre_commit, payload)?)
            }
            Era::Clearlane => Box::new(SnapshotBackend::open(engine, config, pre_commit, payload)?),
        })
    }
}
