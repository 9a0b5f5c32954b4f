//! A cluster of members, modelled only as far as reads need it: which member follows which leader,
//! a log that consists only of a commit index, and the way in which raft 0.7 answers ReadIndex
//! requests. The network delays messages on the links that a test blocks.
//!
//! Each member has a real ReadIndex queue. Only raft is a model:
//!
//! * A leader keeps ReadIndex requests in the order of their arrival, each with the commit index at
//!   its arrival. For each request it sends heartbeats that carry the request's context. It ignores
//!   a second request with the context of a waiting request.
//! * A member acknowledges a heartbeat of its own term. When a quorum has acknowledged a context,
//!   the leader answers the request with this context *and all earlier requests*.
//! * A follower sends its request to the member that it believes to be the leader. The response is
//!   sent back to the follower.
//!
//! A member that is cut off keeps its old term. A deposed leader also keeps its old term, because
//! it does not know that it was deposed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use clearlane_raft::read_index::{
    ReadIndexAction, ReadIndexConfig, ReadIndexError, ReadIndexQueue, ReadMode, ReadNeed,
    RequestIdGenerator,
};

/// The sender and the receiver. The first member is 1.
pub(crate) type Link = (u64, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    Question { context: u64 },
    Heartbeat { term: u64, context: u64 },
    Acknowledged { term: u64, context: u64 },
    Answer { context: u64, index: u64 },
}

/// Bugs that a test plants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlantedBug {
    Nothing,
    /// A retry reuses the id of the first attempt of its ReadIndex request, as in etcd before issue
    /// 20418 was fixed.
    RetriesReuseIds,
    /// A leader answers a ReadIndex request without waiting for a quorum.
    NoHeartbeats,
}

pub(crate) struct Cluster {
    mode: ReadMode,
    planted: PlantedBug,
    pub(crate) now: Duration,
    pub(crate) members: BTreeMap<u64, Member>,
    messages: VecDeque<(Link, Message)>,
    /// Messages on these links wait until the link is removed from the set.
    pub(crate) blocked_links: BTreeSet<Link>,
}

pub(crate) struct Member {
    pub(crate) barrier: ReadIndexQueue<u64>,
    pub(crate) ids: RequestIdGenerator,
    term: u64,
    leader: Option<u64>,
    commit: u64,
    questions: Vec<Question>,
    /// The id of the first attempt of the ReadIndex request in flight.
    first_context: u64,
    /// Readers that were released, with the index, and readers that failed.
    pub(crate) finished: Vec<(u64, Result<u64, ReadIndexError>)>,
}

impl Member {
    fn report_state(&mut self) {
        let (leader, term, index) = (self.leader, self.term, self.commit);
        self.barrier.on_leader(leader, term);
        self.barrier.on_committed(index);
        self.barrier.on_applied(index);
    }
}

struct Question {
    context: u64,
    index: u64,
    from: u64,
    acknowledged: BTreeSet<u64>,
}

impl Cluster {
    /// Creates a cluster in which member 1 leads in term 1, and all members have applied entry 1.
    pub(crate) fn new(members: u64, mode: ReadMode, planted: PlantedBug) -> Cluster {
        let member = |number| Member {
            barrier: ReadIndexQueue::new(mode, ReadIndexConfig::new(number)),
            ids: RequestIdGenerator::new(number, 0),
            term: 1,
            leader: Some(1),
            commit: 1,
            questions: Vec::new(),
            first_context: 0,
            finished: Vec::new(),
        };
        let mut members: BTreeMap<u64, Member> =
            (1..=members).map(|number| (number, member(number))).collect();
        members.values_mut().for_each(Member::report_state);
        let (messages, held) = (VecDeque::new(), BTreeSet::new());
        Cluster { mode, planted, now: Duration::ZERO, members, messages, blocked_links: held }
    }

    /// Restarts a member with a new generator of ids. Its waiting readers are lost. If the member
    /// led, it no longer leads and knows no leader.
    pub(crate) fn restart(&mut self, number: u64, ids: RequestIdGenerator) {
        let barrier = ReadIndexQueue::new(self.mode, ReadIndexConfig::new(number));
        let member = self.member(number);
        (member.barrier, member.ids) = (barrier, ids);
        member.leader = member.leader.filter(|leader| *leader != number);
        member.questions.clear();
        member.finished.clear();
        member.report_state();
    }

    pub(crate) fn member(&mut self, number: u64) -> &mut Member {
        self.members.get_mut(&number).expect("the member exists")
    }

    pub(crate) fn read(&mut self, member: u64, reader: u64) {
        self.member(member).barrier.enqueue(reader, ReadNeed::Applied).expect("the queue takes it");
        self.poll(member);
    }

    /// Returns the reader's outcome, or `None` while the reader waits.
    pub(crate) fn outcome(
        &mut self,
        member: u64,
        reader: u64,
    ) -> Option<Result<u64, ReadIndexError>> {
        let gone = &self.member(member).finished;
        gone.iter().find(|(name, _)| *name == reader).map(|(_, outcome)| *outcome)
    }

    /// Makes `voters` elect `leader`, which is one of them, and commit an entry. The other members
    /// learn nothing about the election and the entry. A client has an acknowledgement of the
    /// entry, so every read that starts after this call must see the entry. Returns the index of
    /// the entry.
    pub(crate) fn elect_and_write(&mut self, leader: u64, voters: &[u64]) -> u64 {
        assert!(voters.len() > self.members.len() / 2 && voters.contains(&leader), "a quorum");
        let newest = self.members.values().map(|member| (member.term, member.commit)).max();
        let (term, commit) = newest.map(|(term, commit)| (term + 1, commit + 1)).expect("members");
        for number in voters {
            let member = self.member(*number);
            (member.term, member.leader, member.commit) = (term, Some(leader), commit);
            member.questions.clear();
            member.report_state();
            member.barrier.on_first_commit();
            self.poll(*number);
        }
        commit
    }

    /// Delivers messages until only messages on blocked links are left.
    pub(crate) fn deliver_all(&mut self) {
        while let Some(at) =
            self.messages.iter().position(|(link, _)| !self.blocked_links.contains(link))
        {
            let ((from, to), message) = self.messages.remove(at).expect("it is there");
            self.deliver(from, to, message);
        }
    }

    /// Blocks all links between the members in `one` and the members in `other`, both ways.
    pub(crate) fn cut(&mut self, one: &[u64], other: &[u64]) {
        for a in one {
            self.blocked_links.extend(other.iter().flat_map(|b| [(*a, *b), (*b, *a)]));
        }
    }

    pub(crate) fn poll(&mut self, number: u64) {
        let now = self.now;
        let member = self.member(number);
        let actions = member.barrier.poll(now, &mut member.ids);
        for action in actions {
            self.act(number, action);
        }
    }

    fn act(&mut self, number: u64, action: ReadIndexAction<u64>) {
        let reuses = self.planted == PlantedBug::RetriesReuseIds;
        let member = self.member(number);
        match action {
            ReadIndexAction::Release { index, readers } => {
                member.finished.extend(readers.iter().map(|reader| (*reader, Ok(index))));
            }
            ReadIndexAction::Fail { error, readers } => {
                member.finished.extend(readers.iter().map(|reader| (*reader, Err(error))));
            }
            ReadIndexAction::RequestReadIndex { context, attempt } => {
                if attempt == 1 {
                    member.first_context = context;
                }
                let context = if reuses { member.first_context } else { context };
                match member.leader {
                    Some(leader) if leader == number => self.ask(number, number, context),
                    Some(leader) => {
                        let question = Message::Question { context };
                        self.messages.push_back(((number, leader), question));
                    }
                    // The request is dropped without a response.
                    None => {}
                }
            }
            ReadIndexAction::Propose { .. } => panic!("a mode without a log"),
        }
    }

    /// Processes a request that arrives at a leader, or at a deposed leader that does not know it
    /// was deposed. Any other member drops the request.
    fn ask(&mut self, leader: u64, from: u64, context: u64) {
        let others: Vec<u64> =
            self.members.keys().copied().filter(|other| *other != leader).collect();
        let member = self.member(leader);
        if member.leader != Some(leader) || member.questions.iter().any(|q| q.context == context) {
            return;
        }
        let acknowledged = BTreeSet::from([leader]);
        let (term, index) = (member.term, member.commit);
        member.questions.push(Question { context, index, from, acknowledged });
        for other in others {
            let heartbeat = Message::Heartbeat { term, context };
            self.messages.push_back(((leader, other), heartbeat));
        }
        if self.planted == PlantedBug::NoHeartbeats {
            self.answer_up_to(leader, context);
        }
    }

    fn deliver(&mut self, from: u64, to: u64, message: Message) {
        let quorum = self.members.len() / 2 + 1;
        let member = self.member(to);
        match message {
            Message::Question { context } => self.ask(to, from, context),
            Message::Heartbeat { term, context } => {
                if member.term == term {
                    let acknowledged = Message::Acknowledged { term, context };
                    self.messages.push_back(((to, from), acknowledged));
                }
            }
            Message::Acknowledged { term, context } => {
                let found = member.questions.iter_mut().find(|q| q.context == context);
                if let Some(question) = found.filter(|_| member.term == term) {
                    question.acknowledged.insert(from);
                    if question.acknowledged.len() >= quorum {
                        self.answer_up_to(to, context);
                    }
                }
            }
            Message::Answer { context, index } => {
                member.barrier.on_answer(context, index);
                self.poll(to);
            }
        }
    }

    fn answer_up_to(&mut self, leader: u64, context: u64) {
        let questions = &mut self.member(leader).questions;
        let last = questions.iter().position(|q| q.context == context).expect("it is waiting");
        let answered: Vec<Question> = questions.drain(..=last).collect();
        for Question { context, index, from, .. } in answered {
            let answer = Message::Answer { context, index };
            self.messages.push_back(((leader, from), answer));
        }
    }
}
