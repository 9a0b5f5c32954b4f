//! A cluster with a single member.

use clearlane::data::MemberConfig;
use clearlane_client::{Client, Options};

use crate::{Result, TestCluster};

/// A single member. When the value is dropped, the member stops and its data is deleted.
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
    /// Starts a server with the default configuration. Returns when it has a leader.
    pub async fn start() -> Result<TestServer> {
        TestServer::start_with(|_| {}).await
    }

    /// Starts a server. `tune` changes the configuration, for example the engine, the quota, or the
    /// era.
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

    /// Returns the client URL, `http://127.0.0.1:port`.
    pub fn endpoint(&self) -> String {
        self.cluster.endpoints().remove(0)
    }

    /// Returns a new client of this server.
    pub async fn client(&self) -> Result<Client> {
        Ok(Client::connect([self.endpoint()], Options::default()).await?)
    }

    /// Stops the server. The server does not wait for open requests, but writes its log and commits
    /// its store. The data stays for [`restart`](TestServer::restart).
    pub async fn stop(&mut self) -> Result<()> {
        self.cluster.stop(0).await
    }

    /// Starts the server with the same address and its data. A running server is stopped first.
    pub async fn restart(&mut self) -> Result<()> {
        self.cluster.restart(0).await
    }
}
