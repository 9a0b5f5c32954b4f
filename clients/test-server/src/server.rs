//! A single-member cluster.

use clearlane::data::MemberConfig;
use clearlane_client::{Client, Options};

use crate::{Result, TestCluster};

/// A single member that stops, and whose data is deleted, when this is dropped.
///
/// ```
/// use clearlane_test_server::TestServer;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> clearlane_test_server::Result<()> {
/// let server = TestServer::start().await?;
/// let client = server.client().await?;
/// client.put("greeting", "hello").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TestServer {
    cluster: TestCluster,
}

impl TestServer {
    pub async fn start() -> Result<TestServer> {
        TestServer::start_with(|_| {}).await
    }

    /// `tune` changes the configuration: another engine, a quota, an era.
    ///
    /// ```
    /// use clearlane_test_server::TestServer;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> clearlane_test_server::Result<()> {
    /// let tiny = TestServer::start_with(|start| start.replica.quota_bytes = 1 << 16).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start_with(tune: impl Fn(&mut MemberConfig)) -> Result<TestServer> {
        Ok(TestServer { cluster: TestCluster::start_with(1, tune).await? })
    }

    /// `http://127.0.0.1:port`.
    pub fn endpoint(&self) -> String {
        self.cluster.endpoints().remove(0)
    }

    pub async fn client(&self) -> Result<Client> {
        Ok(Client::connect([self.endpoint()], Options::default()).await?)
    }

    /// Abrupt, as a power failure. The data stays for [`restart`](TestServer::restart).
    pub async fn stop(&mut self) -> Result<()> {
        self.cluster.stop(0).await
    }

    /// At the same address and with its data; a running server is stopped first.
    pub async fn restart(&mut self) -> Result<()> {
        self.cluster.restart(0).await
    }
}
