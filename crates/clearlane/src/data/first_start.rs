//! The identity of a member without data, and whether it may take it.
//!
//! The rules are in [`NewMember`]. This file asks the other members until there is a decision:
//!
//! ```text
//!   flags ─▶ peer port answers "new" ─▶ ask all ─┬─▶ admitted: the log is created
//!                                       ▲        ├─▶ refused: the process ends
//!                                       └────────┴── too few answers: ask again
//! ```
//!
//! Nothing is on disk before the decision, so a member that is killed while it waits asks again.

use std::time::{Duration, Instant};

use clearlane_net::listener::Listener;
use clearlane_peer::join;
use clearlane_peer::waiting::WaitingPort;
use clearlane_proto::peerpb::{MembersReply, MembersRequest};
use clearlane_server::membership::{self, AdmittingLeader, FirstStart, Member, NewMember};
use clearlane_wal::Metadata;
use tokio::time::sleep;

use super::error::{Error, Result};
use super::{InitialClusterState, MemberConfig};

/// The first and the longest pause between two rounds of questions; doubled each time.
const ASK_INTERVALS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// Wait before the first line in the log, and between two lines.
const LOG_INTERVALS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// As which member a data directory is created.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(super) metadata: Metadata,
    /// The first members of a new cluster.
    pub(super) first: Vec<Member>,
    /// Whether a member that joins is a learner.
    pub(super) joins_as_learner: Option<bool>,
    /// The leader that has admitted this member.
    pub(super) admitted_by: Option<AdmittingLeader>,
}

impl MemberConfig {
    /// Queries the other members until this member may start. Returns `None` if this member has
    /// data. While it waits, it reports on `listeners`, its peer port, that it is new. The caller
    /// must drop the runtime afterwards.
    pub async fn ask_for_identity(&self, listeners: &[Listener]) -> Result<Option<Identity>> {
        if !self.may_be_first_start()? {
            return Ok(None);
        }
        match self.initial_cluster_state {
            InitialClusterState::New => self.ask_as_first_member(listeners).await.map(Some),
            InitialClusterState::Existing => self.ask_to_join().await.map(Some),
        }
    }

    /// The identity without a check whether this member has started before, if it is in a new
    /// cluster.
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

    /// One of the first members, as the flags say.
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
        let _port = WaitingPort::start(listeners, cluster_id, node_id).map_err(Error::Network)?;
        let mut rounds = Rounds::new(self, member.request());
        loop {
            let answers = rounds.ask().await;
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

    async fn ask_to_join(&self) -> Result<Identity> {
        let own = self.own_urls()?;
        self.initial_cluster.check_own(&self.name, &own)?;
        let request = MembersRequest { member: 0, peer_urls: own.clone() };
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

    /// As which member this one was added, and whether as a learner. `None` if only members without
    /// data answer.
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
        // A member that lags may not know this one yet: one that does is enough.
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

/// `None` if too few members have answered.
fn decision(member: &NewMember, answers: &[Answer]) -> Result<Option<Option<AdmittingLeader>>> {
    let replies = answers.iter().filter_map(|answer| answer.reply.as_ref().ok());
    let replies: Vec<MembersReply> = replies.cloned().collect();
    match member.decide(&replies) {
        FirstStart::Admitted(by) => Ok(Some(by)),
        FirstStart::Bootstrapped(id) => Err(Error::AlreadyBootstrapped(id)),
        FirstStart::AddedAs(id) => Err(Error::AddedAs(id)),
        FirstStart::NotAdded => Err(Error::NotOfCluster),
        FirstStart::Removed => Err(Error::Member(clearlane_server::Error::Removed)),
        FirstStart::Undecided => Ok(None),
    }
}

/// Members that did not answer may have data that this cluster will not have.
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

/// The answer of one member.
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
                format!("is of another cluster, {:x}", reply.cluster_id)
            }
            Ok(reply) if reply.is_new => "is new".to_owned(),
            Ok(_) => "has data, and no quorum confirms a leader".to_owned(),
        };
        format!("{}: {what}", self.name)
    }
}

/// Rounds of questions to all other members.
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

    /// One answer for each member. The leader may be a member that the flags do not list.
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

    /// For each name the first reply, or an error.
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

    /// Waits until the next round, and logs now and then why the member waits.
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
