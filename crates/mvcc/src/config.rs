//! The configuration that a store is opened with.

use std::sync::Arc;

use clearlane_backend::{Config, PreCommit};
use clearlane_engine::Engine;

use crate::interface::KeyLeases;

#[derive(Debug)]
pub struct StoreConfig<A> {
    pub engine: Arc<dyn Engine>,
    pub config: Config,
    /// The hook that saves, with each commit, the consistent index of the state that becomes
    /// durable.
    pub pre_commit: PreCommit<A>,
    /// The consistent index of the engine's present state.
    pub consistent_index: A,
    pub leases: Arc<dyn KeyLeases>,
}

impl<A> StoreConfig<A> {
    /// Creates the configuration of a store without leases.
    pub fn new(
        engine: Arc<dyn Engine>,
        config: Config,
        pre_commit: PreCommit<A>,
        consistent_index: A,
    ) -> StoreConfig<A> {
        StoreConfig { engine, config, pre_commit, consistent_index, leases: Arc::new(()) }
    }
}
