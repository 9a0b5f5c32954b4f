//! A cluster of members in one process.

use clearlane::data::MemberConfig;
use clearlane_client::{Client, Options};
use tempfile::TempDir;

use crate::member::{Member, eventually};
use crate::{Error, Result};

/// Members in one process, each with its threads, its directory and its ports. Indexes are from 0.
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
    /// Dropped after the members, which have files in it.
    _directory: TempDir,
}

impl TestCluster {
    /// Returns when there is a leader.
    pub async fn start(members: usize) -> Result<TestCluster> {
        TestCluster::start_with(members, |_| {}).await
    }

    /// `tune` changes the configuration of each member.
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

    /// The client URLs of all members, running or not.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Member::endpoint).collect()
    }

    /// A client that knows all members.
    pub async fn client(&self) -> Result<Client> {
        Ok(Client::connect(self.endpoints(), Options::default()).await?)
    }

    pub fn is_running(&self, member: usize) -> bool {
        self.members.get(member).is_some_and(Member::is_running)
    }

    /// The index of the leader that all running members agree on. Waits until there is one.
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

    /// Abrupt, as a power failure: leadership is not transferred. The data stays.
    pub async fn stop(&mut self, member: usize) -> Result<()> {
        self.member_mut(member)?.stop().await
    }

    /// Starts a member with its data; a running one is stopped first. Waits for a leader only if a
    /// quorum runs.
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
