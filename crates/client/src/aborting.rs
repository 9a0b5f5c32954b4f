//! A task that ends when nobody wants its work any more.

use tokio::task::JoinHandle;

/// Ends its task when it is dropped.
#[derive(Debug)]
pub(crate) struct Aborting(JoinHandle<()>);

impl Aborting {
    pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Aborting {
        Aborting(tokio::spawn(work))
    }
}

impl Drop for Aborting {
    fn drop(&mut self) {
        self.0.abort();
    }
}
