//! A cluster of members in one process.

use clearlane::data::MemberConfig;
use clearlane_client::{Client, Options};
use tempfile::TempDir;

use crate::member::{Member, eventually};
use crate::{Error, Result};

/// Members in one process, each with its own threads, directory and ports. Indexes start at 0.
///
/// ```
/// use clearlane_test_server::TestCluster;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> clearlane_test_server::Result<()> {
/// let mut cluster = TestCluster::start(3).await?;
/// let client = cluster.client().await?;
/// cluster.stop(cluster.leader().await?).await?;
/// cluster.leader().await?; // The other two have elected one of them.
/// client.put("still", "here").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TestCluster {
    members: Vec<Member>,
    /// The directory is dropped after the members, which have files in it.
    _directory: TempDir,
}

impl TestCluster {
    /// Starts a cluster. Returns when there is a leader.
    pub async fn start(members: usize) -> Result<TestCluster> {
        TestCluster::start_with(members, |_| {}).await
    }

    /// Starts a cluster. `tune` changes the configuration of each member before the start.
    pub async fn start_with(
        members: usize,
        tune: impl Fn(&mut MemberConfig),
    ) -> Result<TestCluster> {
        let directory = tempfile::tempdir()?;
        let named = (0..members).map(|number| Member::new(&format!("m{number}"), directory.path()));
        let mut members = named.collect::<std::io::Result<Vec<_>>>()?;
        let entries: Vec<String> = members.iter().map(Member::initial_cluster_entry).collect();
        for member in &mut members {
            member.start.initial_cluster = entries.join(",").parse()?;
            tune(&mut member.start);
            member.start_threads()?;
        }
        let cluster = TestCluster { members, _directory: directory };
        cluster.leader().await?;
        Ok(cluster)
    }

    /// Returns the client URLs of all members, including stopped ones.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Member::endpoint).collect()
    }

    /// Returns a client with the endpoints of all members.
    pub async fn client(&self) -> Result<Client> {
        Ok(Client::connect(self.endpoints(), Options::default()).await?)
    }

    /// Returns false if the member is stopped or does not exist.
    pub fn is_running(&self, member: usize) -> bool {
        self.members.get(member).is_some_and(Member::is_running)
    }

    /// Returns the index of the leader that all running members agree on. Waits until they agree.
    /// Fails with [`Error::NoLeader`] if they do not agree within a minute.
    pub async fn leader(&self) -> Result<usize> {
        let agreed = || {
            let mut leaders =
                self.members.iter().filter(|member| member.is_running()).map(Member::leader);
            let leader = leaders.next()??;
            let all = leaders.all(|other| other == Some(leader));
            let at = self.members.iter().position(|member| member.id() == Some(leader))?;
            all.then_some(at)
        };
        eventually(agreed).await
    }

    /// Stops a member. The member does not transfer its leadership, and does not wait for open
    /// requests. It first writes its log and commits its store. The data stays for
    /// [`TestCluster::restart`].
    pub async fn stop(&mut self, member: usize) -> Result<()> {
        self.member_mut(member)?.stop().await
    }

    /// Starts a member with its data. A running member is stopped first. Waits for a leader only if
    /// a quorum is running.
    pub async fn restart(&mut self, member: usize) -> Result<()> {
        let found = self.member_mut(member)?;
        found.stop().await?;
        found.start_threads()?;
        if 2 * self.members.iter().filter(|member| member.is_running()).count() > self.members.len()
        {
            self.leader().await?;
        }
        Ok(())
    }

    fn member_mut(&mut self, member: usize) -> Result<&mut Member> {
        self.members.get_mut(member).ok_or(Error::NoSuchMember(member))
    }
}
