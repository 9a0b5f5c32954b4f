//! A server of its own for a test.

use clearlane::data::MemberConfig;
use clearlane_client::{Client, Options};

use crate::{Result, TestCluster};

/// A server that stops, and whose data goes, when this does.
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
    /// A cluster of one.
    cluster: TestCluster,
}

impl TestServer {
    /// Starts one that is empty.
    pub async fn start() -> Result<TestServer> {
        TestServer::start_with(|_| {}).await
    }

    /// The same, made somewhat differently: another engine, a quota, an era.
    ///
    /// ```
    /// use clearlane_test_server::TestServer;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> clearlane_test_server::Result<()> {
    /// let tiny = TestServer::start_with(|start| start.quota_bytes = 1 << 16).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start_with(tune: impl Fn(&mut MemberConfig)) -> Result<TestServer> {
        Ok(TestServer { cluster: TestCluster::start_with(1, tune).await? })
    }

    /// Where it listens, `http://127.0.0.1:port`, for any client of etcd's API.
    pub fn endpoint(&self) -> String {
        self.cluster.endpoints().remove(0)
    }

    /// A client that is connected to it.
    pub async fn client(&self) -> Result<Client> {
        Ok(Client::connect([self.endpoint()], Options::default()).await?)
    }

    /// Stops it, as if the power had failed. Its data stays for [`restart`](TestServer::restart).
    pub async fn stop(&mut self) -> Result<()> {
        self.cluster.stop(0).await
    }

    /// Starts it again, at the same address and with its data, and stops it before if it runs.
    pub async fn restart(&mut self) -> Result<()> {
        self.cluster.restart(0).await
    }
}
