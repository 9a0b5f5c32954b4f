//! Everything that the connections of the proxy share.

use std::sync::Arc;

use tokio::sync::watch;

use crate::cache::Cache;
use crate::cluster::Members;
use crate::lease::KeepAlives;
use crate::login::CertificateUsers;
use crate::metrics::Metrics;
use crate::namespace::Namespace;
use crate::pages::ProfilePages;
use crate::trace::ProxyTrace;
use crate::upstream::Upstream;

#[derive(Debug)]
pub struct Services {
    pub upstream: Arc<Upstream>,
    pub cache: Arc<Cache>,
    pub keep_alives: Arc<KeepAlives>,
    pub members: Members,
    pub namespace: Option<Namespace>,
    pub certificate_users: CertificateUsers,
    pub profiles: Option<ProfilePages>,
    pub metrics: Metrics,
    pub trace: Arc<ProxyTrace>,
    /// Becomes true when the proxy stops. Streams then end.
    pub stopped: watch::Receiver<bool>,
    /// Maximum number of bytes of a request message.
    pub request_bytes_max: usize,
}

impl Services {
    /// Returns when the proxy stops.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopped = self.stopped.clone();
        async move { drop(stopped.wait_for(|stopped| *stopped).await) }
    }
}
