//! The identity of a member without data, and the decision whether the member may use it.
//!
//! The rules for this decision are in [`NewMember`]. This file queries the other members until
//! there is a decision:
//!
//! ```text
//!   flags ─▶ peer port reports "new" ─▶ query all ─┬─▶ admitted: the log is created
//!                                       ▲          ├─▶ rejected: the process ends
//!                                       └──────────┴── too few responses: query again
//! ```
//!
//! No data of the member is written before the decision. So if a member is killed while it waits,
//! its next start begins with the queries again.

use std::time::{Duration, Instant};

use clearlane_net::listener::Listener;
use clearlane_peer::join;
use clearlane_peer::waiting::WaitingPort;
use clearlane_proto::peerpb::{MembersReply, MembersRequest};
use clearlane_replica::membership::{self, AdmittingLeader, FirstStart, Member, NewMember};
use clearlane_wal::Metadata;
use tokio::time::sleep;

use super::error::{Error, Result};
use super::{InitialClusterState, MemberConfig};
use crate::discovery::{self, Discovery};

/// The first and the longest pause between two rounds of queries. The pause doubles each time.
const ASK_INTERVALS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// The time before the first log line about waiting, and the time between two such lines.
const LOG_INTERVALS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// The identity with which a data directory is created.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(super) metadata: Metadata,
    /// The first members of a new cluster. Empty for a member that joins a cluster.
    pub(super) first: Vec<Member>,
    /// If true, the member joins as a learner, otherwise as a voter. `None` in a new cluster.
    pub(super) joins_as_learner: Option<bool>,
    /// The leader that has admitted this member. `None` if it was not admitted by a leader.
    pub(super) admitted_by: Option<AdmittingLeader>,
}

impl MemberConfig {
    /// Finds the first members of the cluster. Also replaces this member's peer addresses by the
    /// addresses that discovery found for its name.
    pub async fn discover(
        &mut self,
        discovery: &Discovery,
    ) -> std::result::Result<(), discovery::Error> {
        let id = membership::member_id(&self.peer_urls, &self.cluster_token, None);
        let (name, peer_urls) = (&self.name, &self.peer_urls);
        let cluster = discovery.find_cluster(discovery::NewMember { id, name, peer_urls }).await?;
        if let Some(urls) = cluster.urls_of(&self.name) {
            self.peer_urls = urls.to_vec();
        }
        self.initial_cluster = cluster;
        Ok(())
    }

    /// Queries the other members until this member may start. Returns `None` if this member has
    /// data, or if it starts with `--force-new-cluster`. While a first member of a new cluster
    /// waits, its peer port `listeners` reports that the member is new. The caller must drop the
    /// runtime afterwards, which ends the connections to this port.
    pub async fn ask_for_identity(&self, listeners: &[Listener]) -> Result<Option<Identity>> {
        if !self.may_be_first_start()? {
            return Ok(None);
        }
        match self.initial_cluster_state {
            InitialClusterState::New => self.ask_as_first_member(listeners).await.map(Some),
            InitialClusterState::Existing => self.ask_to_join().await.map(Some),
        }
    }

    /// Returns this member's identity. Returns `None` if the member has data, or for
    /// `--force-new-cluster`. A joining member queries the other members. In a new cluster, the
    /// other members are not asked whether this member has started before.
    pub(super) fn identity(&self) -> Result<Option<Identity>> {
        if !self.may_be_first_start()? {
            return Ok(None);
        }
        match self.initial_cluster_state {
            InitialClusterState::New => Ok(Some(self.first_member()?.1)),
            InitialClusterState::Existing => {
                join::block_on(|| self.ask_to_join()).map_err(Error::Network)?.map(Some)
            }
        }
    }

    fn may_be_first_start(&self) -> Result<bool> {
        Ok(!self.force_new_cluster && !self.has_data()?)
    }

    fn own_urls(&self) -> Result<Vec<String>> {
        membership::addresses(&self.peer_urls)
            .map_err(|_| Error::BadUrls { flag: "initial-advertise-peer-urls" })
    }

    /// Returns this member's identity as one of the first members, from the flags.
    fn first_member(&self) -> Result<(NewMember, Identity)> {
        let peer_urls = self.own_urls()?;
        let first = self.initial_cluster.first(&self.name, &peer_urls, &self.cluster_token)?;
        let ids: Vec<u64> = first.iter().map(|member| member.id).collect();
        let id = membership::member_id(&peer_urls, &self.cluster_token, None);
        let metadata = Metadata { node_id: id, cluster_id: membership::cluster_id(&ids) };
        let member = NewMember { id, cluster_id: metadata.cluster_id, peer_urls, first: ids };
        Ok((member, Identity { metadata, first, joins_as_learner: None, admitted_by: None }))
    }

    async fn ask_as_first_member(&self, listeners: &[Listener]) -> Result<Identity> {
        let (member, identity) = self.first_member()?;
        if self.initial_cluster.len() == 1 {
            return Ok(identity);
        }
        let Metadata { cluster_id, node_id } = identity.metadata;
        let port = WaitingPort::start(listeners, cluster_id, node_id, &member.first);
        let port = port.map_err(Error::Network)?;
        let mut rounds = Rounds::new(self, member.request());
        loop {
            let mut answers = rounds.ask().await;
            self.add_asking(&mut answers, port.replies_of_asking());
            match decision(&member, &answers)? {
                Some(admitted_by) => {
                    if admitted_by.is_none() {
                        warn_of_silent_members(&answers);
                    }
                    return Ok(Identity { admitted_by, ..identity });
                }
                None => rounds.wait(Some(&member), &answers).await,
            }
        }
    }

    /// A member that this member cannot reach may itself have sent a query to this member. Such a
    /// query shows that the other member is new. So the error in that member's answer is replaced
    /// by the information in the query.
    fn add_asking(&self, answers: &mut [Answer], asking: Vec<MembersReply>) {
        for answer in answers.iter_mut().filter(|answer| answer.reply.is_err()) {
            let urls = self.initial_cluster.urls_of(&answer.name).unwrap_or_default();
            let id = membership::member_id(urls, &self.cluster_token, None);
            if let Some(reply) = asking.iter().find(|reply| reply.from == id) {
                answer.reply = Ok(reply.clone());
            }
        }
    }

    async fn ask_to_join(&self) -> Result<Identity> {
        let own = self.own_urls()?;
        self.initial_cluster.check_own(&self.name, &own)?;
        let request = MembersRequest { peer_urls: own.clone(), ..MembersRequest::default() };
        let mut rounds = Rounds::new(self, request);
        loop {
            let answers = rounds.ask().await;
            let Some((member, joins_as_learner)) = self.find_own(&own, &answers)? else {
                rounds.wait(None, &answers).await;
                continue;
            };
            let metadata = Metadata { node_id: member.id, cluster_id: member.cluster_id };
            match decision(&member, &answers)? {
                Some(admitted_by) => {
                    let (first, joins_as_learner) = (Vec::new(), Some(joins_as_learner));
                    return Ok(Identity { metadata, first, joins_as_learner, admitted_by });
                }
                None => rounds.wait(Some(&member), &answers).await,
            }
        }
    }

    /// Returns this member as the cluster lists it, and whether it was added as a learner. Returns
    /// `None` if only members without data respond. Fails if no member responds, or if no member
    /// with data has a list that fits the flags.
    fn find_own(&self, own: &[String], answers: &[Answer]) -> Result<Option<(NewMember, bool)>> {
        if answers.is_empty() {
            return Err(Error::NoOtherMember);
        }
        if answers.iter().all(|answer| answer.reply.is_err()) {
            let why = answers.iter().filter_map(|answer| answer.reply.as_ref().err());
            let why: Vec<&str> = why.map(String::as_str).collect();
            return Err(Error::NoPeerAnswered(why.join("; ")));
        }
        let mut replies: Vec<&MembersReply> = with_data(answers).collect();
        // A lagging member may not have this member in its list yet. So the newest list is tried
        // first, and one list with this member is enough.
        replies.sort_by_key(|reply| std::cmp::Reverse((reply.leader_term, reply.applied)));
        let mut failed = None;
        for reply in replies {
            match self.initial_cluster.find_own(reply, own) {
                Ok(found) => {
                    let (id, cluster_id) = (found.id, reply.cluster_id);
                    let member =
                        NewMember { id, cluster_id, peer_urls: own.to_vec(), first: Vec::new() };
                    return Ok(Some((member, found.is_learner)));
                }
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(None), Err)
    }
}

/// Returns `None` if too few members have responded to make a decision. If this member may start,
/// returns the leader that has admitted it, or `Some(None)` if no leader had to admit it. Fails if
/// this member must not start.
fn decision(member: &NewMember, answers: &[Answer]) -> Result<Option<Option<AdmittingLeader>>> {
    let replies = answers.iter().filter_map(|answer| answer.reply.as_ref().ok());
    let replies: Vec<MembersReply> = replies.cloned().collect();
    match member.decide(&replies) {
        FirstStart::Admitted(by) => Ok(Some(by)),
        FirstStart::Bootstrapped(id) => Err(Error::AlreadyBootstrapped(id)),
        FirstStart::AddedAs(id) => Err(Error::AddedAs(id)),
        FirstStart::NotAdded => Err(Error::NotOfCluster),
        FirstStart::Removed => Err(Error::Member(clearlane_replica::Error::Removed)),
        FirstStart::Undecided => Ok(None),
    }
}

/// Warns about members that did not respond. They may have data that the new cluster will not have.
fn warn_of_silent_members(answers: &[Answer]) {
    let silent = answers.iter().filter(|answer| answer.reply.is_err());
    let silent: Vec<&str> = silent.map(|answer| answer.name.as_str()).collect();
    if !silent.is_empty() {
        tracing::warn!(
            ?silent,
            "this member starts as a new one, since a majority of the members is new; if a silent \
             member has data, stop this one and start that one first"
        );
    }
}

fn with_data(answers: &[Answer]) -> impl Iterator<Item = &MembersReply> {
    let replies = answers.iter().filter_map(|answer| answer.reply.as_ref().ok());
    replies.filter(|reply| !reply.members.is_empty())
}

/// The response of one member, or the reason why there is none.
struct Answer {
    /// The member's name in `--initial-cluster`, or its address if it is not listed there.
    name: String,
    reply: std::result::Result<MembersReply, String>,
}

impl Answer {
    fn describe(&self, asking: Option<&NewMember>) -> String {
        let what = match &self.reply {
            Err(why) => why.clone(),
            Ok(reply) if asking.is_some_and(|asking| asking.cluster_id != reply.cluster_id) => {
                format!("belongs to another cluster, {:x}", reply.cluster_id)
            }
            Ok(reply) if reply.is_new => "is new".to_owned(),
            Ok(_) => "has data, but no quorum confirms a leader".to_owned(),
        };
        format!("{}: {what}", self.name)
    }
}

/// Sends queries to all other members, round by round.
struct Rounds<'c> {
    config: &'c MemberConfig,
    request: MembersRequest,
    pause: Duration,
    next_log: Instant,
}

impl Rounds<'_> {
    fn new(config: &MemberConfig, request: MembersRequest) -> Rounds<'_> {
        let next_log = Instant::now() + LOG_INTERVALS.0;
        Rounds { config, request, pause: ASK_INTERVALS.0, next_log }
    }

    /// Queries all other members of `--initial-cluster`, and returns one answer for each. If no
    /// response is from a confirmed leader, also queries the members that a response lists and
    /// `--initial-cluster` does not, because one of them may be the leader.
    async fn ask(&self) -> Vec<Answer> {
        let listed = self.config.initial_cluster.others(&self.config.name);
        let mut answers = self.ask_all(&listed).await;
        if with_data(&answers).all(|reply| reply.leader_term == 0) {
            let members = with_data(&answers).flat_map(|reply| &reply.members);
            let unlisted: Vec<(String, String)> = members
                .flat_map(|member| &member.peer_urls)
                .filter(|url| !self.request.peer_urls.contains(url))
                .filter(|url| listed.iter().all(|(_, known)| known != *url))
                .map(|url| (url.clone(), url.clone()))
                .collect();
            answers.extend(self.ask_all(&unlisted).await);
        }
        let mut seen = Vec::new();
        answers.retain(|answer| {
            let from = answer.reply.as_ref().map_or(0, |reply| reply.from);
            let is_first = !seen.contains(&from);
            seen.extend((from != 0).then_some(from));
            is_first
        });
        answers
    }

    /// Returns one answer for each name: the first reply from the addresses of the member with this
    /// name, or the error of one address if none of them replies.
    async fn ask_all(&self, members: &[(String, String)]) -> Vec<Answer> {
        let urls: Vec<String> = members.iter().map(|(_, url)| url.clone()).collect();
        let replies = join::ask_all(&urls, &self.config.dialer, &self.request).await;
        let mut answers: Vec<Answer> = Vec::new();
        for ((name, _), reply) in members.iter().zip(replies) {
            match answers.iter_mut().find(|answer| answer.name == *name) {
                Some(answer) if answer.reply.is_err() => answer.reply = reply,
                Some(_) => {}
                None => answers.push(Answer { name: name.clone(), reply }),
            }
        }
        answers
    }

    /// Waits until the next round. Logs the reason of the wait after 1 s, and then every 5 s.
    async fn wait(&mut self, asking: Option<&NewMember>, answers: &[Answer]) {
        if Instant::now() >= self.next_log {
            self.next_log = Instant::now() + LOG_INTERVALS.1;
            let answers: Vec<String> =
                answers.iter().map(|answer| answer.describe(asking)).collect();
            tracing::warn!(
                ?answers,
                "this member has no data, and cannot know yet whether it has started before; it \
                 waits until a majority of the members is known to be new, or until their leader \
                 admits it"
            );
        }
        sleep(self.pause).await;
        self.pause = (2 * self.pause).min(ASK_INTERVALS.1);
    }
}
