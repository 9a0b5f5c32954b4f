//! Everything that the connections of the proxy share.

use std::sync::Arc;

use crate::cache::Cache;
use crate::cluster::Members;
use crate::lease::KeepAlives;
use crate::metrics::Metrics;
use crate::namespace::Namespace;
use crate::upstream::Upstream;

#[derive(Debug)]
pub struct Services {
    pub upstream: Arc<Upstream>,
    pub cache: Arc<Cache>,
    pub keep_alives: Arc<KeepAlives>,
    pub members: Members,
    pub namespace: Option<Namespace>,
    pub metrics: Metrics,
    /// Maximum number of bytes of a request message.
    pub request_bytes_max: usize,
}
