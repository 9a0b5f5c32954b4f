//! The table of members. It is loaded from three buckets and changed by entries of the log.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use clearlane_engine::Bucket;
use clearlane_mvcc::{ReadTxn, WriteTxn};
use clearlane_proto::membershippb::ClusterMemberAttrSetRequest;
use clearlane_wal::{ConfChange, ConfState};

use super::member::{from_record, member_key, parse_key, to_context};
use super::{Member, MemberChange, MembershipRejection};
use crate::applied_position::AppliedPosition;
use crate::error::{Error, Result, try_scan};

pub const LEARNERS_MAX: usize = 1;

type MembershipResult<T> = std::result::Result<T, MembershipRejection>;

/// Key of the cluster's version in bucket `cluster`. `STORAGE_VERSION_KEY` is the key of the same
/// version in bucket `meta`.
pub(crate) const CLUSTER_VERSION_KEY: &[u8] = b"clusterVersion";
const STORAGE_VERSION_KEY: &[u8] = b"storageVersion";

/// The value of each record in the bucket of removed members.
const REMOVED_VALUE: &[u8] = b"removed";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    members: BTreeMap<u64, Member>,
    removed: BTreeSet<u64>,
    version: Option<String>,
    learners_max: usize,
}

impl Members {
    /// Loads the table. `learners_max` must be the same at all members. Otherwise one member would
    /// accept a change that another rejects.
    pub fn load(state: &dyn ReadTxn, learners_max: usize) -> Result<Members> {
        let mut members = BTreeMap::new();
        try_scan(state, Bucket::Members, |key, text| {
            let member = from_record(key, text)?;
            members.insert(member.id, member);
            Ok(())
        })?;
        let mut removed = BTreeSet::new();
        try_scan(state, Bucket::MembersRemoved, |key, _| {
            let why = || format!("{} is not a member ID", key.escape_ascii());
            let id = parse_key(key);
            removed.insert(id.ok_or_else(|| Error::damaged("bucket members_removed", why()))?);
            Ok(())
        })?;
        let version = state.get(Bucket::Cluster, CLUSTER_VERSION_KEY)?;
        let version = version.map(|text| version_text(&text)).transpose()?;
        Ok(Members { members, removed, version, learners_max })
    }

    /// Iterates over the members in ascending order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    pub fn get(&self, id: u64) -> Option<&Member> {
        self.members.get(&id)
    }

    /// Returns whether the table has no members. This is true only for a new member, until it has
    /// applied its first change of members or installed a raft snapshot.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns whether the id was removed. A removed id cannot be added again.
    pub fn is_removed(&self, id: u64) -> bool {
        self.removed.contains(&id)
    }

    /// Returns the cluster's version, such as `3.7.0`; `None` until the first leader has set it.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    pub fn conf_state(&self) -> ConfState {
        let ids = |learners: bool| {
            let members = self.iter().filter(|member| member.is_learner == learners);
            members.map(|member| member.id).collect()
        };
        ConfState { voters: ids(false), learners: ids(true), ..ConfState::default() }
    }

    pub fn check(&self, change: &MemberChange) -> MembershipResult<()> {
        let id = change.id();
        match (change, self.get(id)) {
            _ if id == 0 => Err(MembershipRejection::Inconsistent),
            _ if self.is_removed(id) => Err(MembershipRejection::Removed),
            (MemberChange::Add(_), Some(_)) => Err(MembershipRejection::Exists),
            (MemberChange::Add(member), None) => {
                self.check_urls(id, &member.peer_urls)?;
                self.check_learners(member)
            }
            (_, None) => Err(MembershipRejection::NotFound),
            (MemberChange::Promote { .. }, Some(member)) if !member.is_learner => {
                Err(MembershipRejection::NotLearner)
            }
            (MemberChange::Promote { .. }, Some(_)) => Ok(()),
            (MemberChange::Remove { .. }, Some(member)) => self.check_voters_without(member),
            (MemberChange::Update { peer_urls, .. }, Some(_)) => self.check_urls(id, peer_urls),
        }
    }

    fn check_urls(&self, id: u64, peer_urls: &[String]) -> MembershipResult<()> {
        let mut others = self.iter().filter(|member| member.id != id);
        let taken = others.any(|member| member.peer_urls.iter().any(|url| peer_urls.contains(url)));
        if taken { Err(MembershipRejection::PeerUrlExists) } else { Ok(()) }
    }

    fn check_learners(&self, member: &Member) -> MembershipResult<()> {
        let learners = self.iter().filter(|member| member.is_learner).count();
        let full = member.is_learner && learners >= self.learners_max;
        if full { Err(MembershipRejection::TooManyLearners) } else { Ok(()) }
    }

    /// Fails if no voter would be left after the removal. A cluster without voters could not add a
    /// member, and raft also rejects such a removal.
    fn check_voters_without(&self, member: &Member) -> MembershipResult<()> {
        let mut others = self.iter().filter(|other| other.id != member.id);
        let left = member.is_learner || others.any(|other| !other.is_learner);
        if left { Ok(()) } else { Err(MembershipRejection::NotEnoughStarted) }
    }

    /// Writes a committed change into the buckets. Returns the change for
    /// [`apply_conf_change`](clearlane_raft::RaftNode::apply_conf_change), or the rejection.
    pub fn apply<'c>(
        &mut self,
        change: &'c ConfChange,
        txn: &mut dyn WriteTxn<AppliedPosition>,
    ) -> Result<MembershipResult<&'c ConfChange>> {
        let parsed = MemberChange::parse(change);
        let parsed = match parsed.and_then(|parsed| self.check(&parsed).map(|()| parsed)) {
            Ok(parsed) => parsed,
            Err(refused) => return Ok(Err(refused)),
        };
        match parsed {
            MemberChange::Add(member) => self.set_member(member, txn)?,
            MemberChange::Promote { id } => {
                self.update_member(id, txn, |member| member.is_learner = false)?
            }
            MemberChange::Update { id, peer_urls } => {
                self.update_member(id, txn, |member| member.peer_urls = peer_urls)?;
            }
            MemberChange::Remove { id } => {
                let key = member_key(id);
                txn.unset(Bucket::Members, key.as_bytes())?;
                txn.set(Bucket::MembersRemoved, key.as_bytes(), Bytes::from_static(REMOVED_VALUE))?;
                self.members.remove(&id);
                self.removed.insert(id);
            }
        }
        Ok(Ok(change))
    }

    /// Sets a member's name and client URLs. Does nothing if the member has been removed since the
    /// request was proposed.
    pub fn set_attributes(
        &mut self,
        request: &ClusterMemberAttrSetRequest,
        txn: &mut dyn WriteTxn<AppliedPosition>,
    ) -> Result<()> {
        let attributes = request.member_attributes.clone().unwrap_or_default();
        self.update_member(request.member_id, txn, |member| {
            member.name = attributes.name;
            member.client_urls = attributes.client_urls;
        })
    }

    /// Sets the version that the leader has determined, both as the cluster's version and as the
    /// store's format.
    pub fn set_version(
        &mut self,
        version: &str,
        txn: &mut dyn WriteTxn<AppliedPosition>,
    ) -> Result<()> {
        let text = || Bytes::copy_from_slice(version.as_bytes());
        txn.set(Bucket::Cluster, CLUSTER_VERSION_KEY, text())?;
        txn.set(Bucket::Meta, STORAGE_VERSION_KEY, text())?;
        self.version = Some(version.to_owned());
        Ok(())
    }

    fn update_member(
        &mut self,
        id: u64,
        txn: &mut dyn WriteTxn<AppliedPosition>,
        change: impl FnOnce(&mut Member),
    ) -> Result<()> {
        let Some(mut member) = self.get(id).cloned() else { return Ok(()) };
        change(&mut member);
        self.set_member(member, txn)
    }

    fn set_member(
        &mut self,
        member: Member,
        txn: &mut dyn WriteTxn<AppliedPosition>,
    ) -> Result<()> {
        let key = member_key(member.id);
        txn.set(Bucket::Members, key.as_bytes(), Bytes::from(to_context(&member).encode()))?;
        self.members.insert(member.id, member);
        Ok(())
    }
}

fn version_text(bytes: &[u8]) -> Result<String> {
    let text = std::str::from_utf8(bytes).map(str::to_owned);
    text.map_err(|_| Error::damaged("bucket cluster", "its version is not valid UTF-8"))
}

/// Checks that a learner has nine tenths of the leader's log; otherwise fails with
/// [`LearnerNotReady`](MembershipRejection::LearnerNotReady). `matched` has each member's progress:
/// [`match_indexes`](clearlane_raft::RaftNode::match_indexes) of the leader. If `matched` lacks the
/// learner or the leader, fails with [`NotFound`](MembershipRejection::NotFound).
pub fn check_learner_ready(
    learner: u64,
    leader: u64,
    matched: &[(u64, u64)],
) -> MembershipResult<()> {
    let of = |wanted: u64| matched.iter().find(|(id, _)| *id == wanted).map(|(_, index)| *index);
    let (Some(learner), Some(leader)) = (of(learner), of(leader)) else {
        return Err(MembershipRejection::NotFound);
    };
    let ready = u128::from(learner) * 10 >= u128::from(leader) * 9;
    if ready { Ok(()) } else { Err(MembershipRejection::LearnerNotReady) }
}
