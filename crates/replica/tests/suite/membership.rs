//! Tests of the table of members: changes that it rejects, records that it writes, and loading
//! them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use clearlane_backend::{Config, Era};
use clearlane_engine::{Bucket, MemoryEngine};
use clearlane_mvcc::{Store, StoreConfig};
use clearlane_proto::membershippb::{Attributes, ClusterMemberAttrSetRequest};
use clearlane_replica::AppliedPosition;
use clearlane_replica::membership::{
    LEARNERS_MAX, Member, MemberChange, Members, MembershipRejection, check_learner_ready,
};
use clearlane_wal::{ConfChange, ConfChangeKind, ConfState, MemberContext};
use proptest::prelude::*;

/// A store, and the table of members that belongs to it.
struct MembersAndRaft {
    store: Box<dyn Store<AppliedPosition>>,
    members: Members,
    index: u64,
}

impl MembersAndRaft {
    fn new(learners_max: usize) -> MembersAndRaft {
        let engine = Arc::new(MemoryEngine::new());
        let ground = StoreConfig::new(
            engine,
            Config::default(),
            AppliedPosition::pre_commit(),
            AppliedPosition::default(),
        );
        let era = Era::Clearlane;
        let store = clearlane_mvcc::open(era, ground).unwrap().0;
        let members = Members::load(&*store.begin_read(), learners_max).unwrap();
        assert!(members.is_empty());
        MembersAndRaft { store, members, index: 0 }
    }

    /// Returns a store with voters 1 to 3, as a new cluster has them.
    fn of_three() -> MembersAndRaft {
        let mut cluster = MembersAndRaft::new(LEARNERS_MAX);
        for id in 1..=3 {
            let peer_urls = vec![format!("http://{id}:2380")];
            let member = Member { id, peer_urls, name: format!("m{id}"), ..Member::default() };
            cluster.apply(&MemberChange::initial_conf_change(&member)).unwrap();
        }
        cluster
    }

    /// Applies an entry. Asserts that `check` has predicted the outcome, that a rejected change has
    /// changed nothing, and that the records in the buckets equal the table.
    fn apply(&mut self, change: &ConfChange) -> Result<(), MembershipRejection> {
        let checked = MemberChange::parse(change).and_then(|parsed| self.members.check(&parsed));
        let before = (self.members.clone(), self.records());
        let mut txn = self.store.begin_write().unwrap();
        let outcome = self.members.apply(change, &mut *txn).unwrap();
        assert_eq!(outcome.map(drop), checked);
        assert_eq!(outcome.ok(), checked.is_ok().then_some(change));
        self.index += 1;
        txn.end(AppliedPosition { index: self.index, ..AppliedPosition::default() }).unwrap();
        if checked.is_err() {
            assert_eq!((self.members.clone(), self.records()), before);
        }
        self.check_load();
        checked
    }

    fn change(&mut self, change: MemberChange) -> Result<(), MembershipRejection> {
        self.apply(&change.to_conf_change(7))
    }

    fn publish(&mut self, id: u64, name: &str, client_url: &str) {
        let member_attributes =
            Some(Attributes { name: name.to_owned(), client_urls: vec![client_url.to_owned()] });
        let request = ClusterMemberAttrSetRequest { member_id: id, member_attributes };
        let mut txn = self.store.begin_write().unwrap();
        self.members.set_attributes(&request, &mut *txn).unwrap();
        txn.end(AppliedPosition::default()).unwrap();
        self.check_load();
    }

    fn check_load(&self) {
        let limit = LEARNERS_MAX.max(self.members.iter().count() + 5);
        let loaded = Members::load(&*self.store.begin_read(), limit).unwrap();
        assert!(loaded.iter().eq(self.members.iter()));
        assert_eq!(loaded.conf_state(), self.members.conf_state());
    }

    /// Returns the records of the buckets `members` and `members_removed`.
    fn records(&self) -> BTreeMap<String, String> {
        let mut records = BTreeMap::new();
        for bucket in [Bucket::Members, Bucket::MembersRemoved] {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let read = self.store.begin_read();
            let each = &mut |key: &[u8], value: clearlane_backend::Value<'_>| {
                records.insert(text(key), text(&value));
                ControlFlow::Continue(())
            };
            read.scan(bucket, each).unwrap();
        }
        records
    }
}

fn urls(url: &str) -> Vec<String> {
    vec![url.to_owned()]
}

fn add(id: u64, url: &str, is_learner: bool) -> MemberChange {
    MemberChange::Add(Member { id, peer_urls: urls(url), is_learner, ..Member::default() })
}

#[test]
fn records_are_etcds() {
    let mut cluster = MembersAndRaft::of_three();
    cluster.change(add(0xabc, "http://a?x=<&>:2380", true)).unwrap();
    cluster.change(MemberChange::Remove { id: 2 }).unwrap();
    cluster.publish(1, "one", "http://1:2379");
    let expected = [
        (
            "1",
            r#"{"id":1,"peerURLs":["http://1:2380"],"name":"one","clientURLs":["http://1:2379"]}"#,
        ),
        ("2", "removed"),
        ("3", r#"{"id":3,"peerURLs":["http://3:2380"],"name":"m3"}"#),
        (
            "abc",
            r#"{"id":2748,"peerURLs":["http://a?x=\u003c\u0026\u003e:2380"],"isLearner":true}"#,
        ),
    ];
    let expected = expected.map(|(key, text)| (key.to_owned(), text.to_owned()));
    assert_eq!(cluster.records(), BTreeMap::from(expected));
}

#[test]
fn contexts_are_etcds() {
    let text = |change: MemberChange| {
        let change = change.to_conf_change(9);
        assert_eq!(change.id, 9);
        (change.kind, String::from_utf8(change.context.to_vec()).unwrap())
    };
    let (learner, voter) = (add(7, "http://a", true), add(7, "http://a", false));
    let words = r#"{"id":7,"peerURLs":["http://a"],"isLearner":true,"isPromote":false}"#;
    assert_eq!(text(learner), (ConfChangeKind::AddLearnerNode, words.to_owned()));
    let words = r#"{"id":7,"peerURLs":["http://a"],"isPromote":false}"#;
    assert_eq!(text(voter), (ConfChangeKind::AddNode, words.to_owned()));
    let words = r#"{"id":7,"peerURLs":null,"isPromote":true}"#;
    assert_eq!(text(MemberChange::Promote { id: 7 }), (ConfChangeKind::AddNode, words.to_owned()));
    let words = r#"{"id":7,"peerURLs":["http://a"]}"#;
    let update = MemberChange::Update { id: 7, peer_urls: urls("http://a") };
    assert_eq!(text(update), (ConfChangeKind::UpdateNode, words.to_owned()));
    let removal = text(MemberChange::Remove { id: 7 });
    assert_eq!(removal, (ConfChangeKind::RemoveNode, String::new()));
    let first = MemberChange::initial_conf_change(&Member {
        id: 7,
        peer_urls: urls("http://a"),
        ..Member::default()
    });
    assert_eq!(first.context, r#"{"id":7,"peerURLs":["http://a"]}"#);
    assert_eq!((first.id, first.kind), (0, ConfChangeKind::AddNode));
}

#[test]
fn what_is_refused_and_with_which_words() {
    let mut cluster = MembersAndRaft::of_three();
    cluster.change(add(8, "http://8:2380", true)).unwrap();
    cluster.change(MemberChange::Remove { id: 3 }).unwrap();
    let update = |id, url| MemberChange::Update { id, peer_urls: urls(url) };
    let gone = "etcdserver: member not found";
    let taken = "etcdserver: Peer URLs already exists";
    for (change, refused, words) in [
        (
            add(1, "http://n", false),
            MembershipRejection::Exists,
            "etcdserver: member ID already exist",
        ),
        (add(3, "http://n", false), MembershipRejection::Removed, gone),
        (add(9, "http://8:2380", false), MembershipRejection::PeerUrlExists, taken),
        (
            add(9, "http://n", true),
            MembershipRejection::TooManyLearners,
            "etcdserver: too many learner members in cluster",
        ),
        (MemberChange::Remove { id: 9 }, MembershipRejection::NotFound, gone),
        (MemberChange::Remove { id: 3 }, MembershipRejection::Removed, gone),
        (update(9, "http://n"), MembershipRejection::NotFound, gone),
        (update(3, "http://n"), MembershipRejection::Removed, gone),
        (update(1, "http://2:2380"), MembershipRejection::PeerUrlExists, taken),
        (MemberChange::Promote { id: 9 }, MembershipRejection::NotFound, gone),
        (MemberChange::Promote { id: 3 }, MembershipRejection::Removed, gone),
        (
            MemberChange::Promote { id: 1 },
            MembershipRejection::NotLearner,
            "etcdserver: can only promote a learner member",
        ),
    ] {
        assert_eq!(cluster.change(change.clone()), Err(refused), "{change:?}");
        assert_eq!(refused.to_string(), words);
    }
    // The address of a removed member can be used again. A member may also be updated with the
    // address that it already has.
    cluster.change(update(1, "http://1:2380")).unwrap();
    cluster.change(add(9, "http://3:2380", false)).unwrap();
}

#[test]
fn a_promotion_changes_nothing_else() {
    let mut cluster = MembersAndRaft::of_three();
    cluster.change(add(8, "http://8:2380", true)).unwrap();
    cluster.publish(8, "eight", "http://8:2379");
    cluster.change(MemberChange::Update { id: 8, peer_urls: urls("http://other:2380") }).unwrap();
    assert!(cluster.members.get(8).unwrap().is_learner, "an update promotes no learner");
    cluster.change(MemberChange::Promote { id: 8 }).unwrap();
    let promoted = cluster.members.get(8).unwrap();
    let expected = Member {
        id: 8,
        peer_urls: urls("http://other:2380"),
        is_learner: false,
        name: "eight".to_owned(),
        client_urls: urls("http://8:2379"),
    };
    assert_eq!(promoted, &expected);
}

#[test]
fn the_last_voter_stays() {
    let mut cluster = MembersAndRaft::of_three();
    cluster.change(add(8, "http://8:2380", true)).unwrap();
    cluster.change(MemberChange::Remove { id: 1 }).unwrap();
    cluster.change(MemberChange::Remove { id: 2 }).unwrap();
    let refused = cluster.change(MemberChange::Remove { id: 3 });
    assert_eq!(refused, Err(MembershipRejection::NotEnoughStarted));
    cluster.change(MemberChange::Remove { id: 8 }).unwrap();
    assert_eq!(cluster.members.iter().count(), 1);
}

#[test]
fn changes_that_contradict_themselves_are_refused() {
    let mut cluster = MembersAndRaft::of_three();
    let context = |id, is_learner, is_promote| {
        let context = MemberContext {
            id,
            peer_urls: urls("http://n"),
            is_learner,
            is_promote,
            ..MemberContext::default()
        };
        context.encode().into_bytes()
    };
    use ConfChangeKind::{AddLearnerNode, AddNode, RemoveNode, UpdateNode};
    for (kind, node_id, context) in [
        (AddNode, 9, context(8, false, None)),
        (AddNode, 0, context(0, false, None)),
        (AddNode, 9, context(9, true, None)),
        (AddLearnerNode, 9, context(9, false, None)),
        (AddLearnerNode, 9, context(9, true, Some(true))),
        (AddNode, 9, b"no JSON".to_vec()),
        (AddNode, 9, Vec::new()),
        (UpdateNode, 1, Vec::new()),
        (UpdateNode, 1, context(2, false, None)),
        (RemoveNode, 0, Vec::new()),
    ] {
        let change = ConfChange { id: 1, kind, node_id, context: context.into() };
        assert_eq!(cluster.apply(&change), Err(MembershipRejection::Inconsistent), "{change:?}");
    }
}

#[test]
fn an_id_that_is_no_member_publishes_nothing() {
    let mut cluster = MembersAndRaft::of_three();
    cluster.change(MemberChange::Remove { id: 2 }).unwrap();
    let before = cluster.records();
    for id in [2, 9, 0] {
        cluster.publish(id, "late", "http://late");
    }
    assert_eq!(cluster.records(), before);
}

#[test]
fn a_learner_is_ready_at_nine_tenths() {
    let ready = |learner, leader| check_learner_ready(2, 1, &[(1, leader), (2, learner)]);
    for (learner, leader) in [(0, 0), (9, 10), (10, 10), (90, 100), (u64::MAX, u64::MAX)] {
        assert_eq!(ready(learner, leader), Ok(()), "{learner} of {leader}");
    }
    for (learner, leader) in [(0, 1), (8, 10), (89, 100), (u64::MAX / 10 * 9, u64::MAX)] {
        assert_eq!(
            ready(learner, leader),
            Err(MembershipRejection::LearnerNotReady),
            "{learner} of {leader}"
        );
    }
    assert_eq!(check_learner_ready(3, 1, &[(1, 5)]), Err(MembershipRejection::NotFound));
    let words = "etcdserver: can only promote a learner member which is in sync with leader";
    assert_eq!(MembershipRejection::LearnerNotReady.to_string(), words);
}

#[test]
fn damaged_records_are_told_with_their_names() {
    for (bucket, key, value) in [
        (Bucket::Members, "1", "no JSON"),
        (Bucket::Members, "1", r#"{"id":2}"#),
        (Bucket::Members, "01", r#"{"id":1}"#),
        (Bucket::Members, "AB", r#"{"id":171}"#),
        (Bucket::Members, "x", r#"{"id":1}"#),
        (Bucket::MembersRemoved, "+1", "removed"),
    ] {
        let cluster = MembersAndRaft::new(LEARNERS_MAX);
        let mut txn = cluster.store.begin_write().unwrap();
        txn.set(bucket, key.as_bytes(), value.into()).unwrap();
        txn.end(AppliedPosition::default()).unwrap();
        let message =
            Members::load(&*cluster.store.begin_read(), LEARNERS_MAX).unwrap_err().to_string();
        assert!(message.contains(bucket.name()) && message.contains(key), "{message}");
    }
}

#[test]
fn ids_of_added_members_depend_on_addresses_and_time() {
    let id = |url, seconds| MemberChange::add(&urls(url), false, seconds).unwrap().id();
    assert_eq!(id("http://a:2380", 5), id("http://a:2380", 5));
    assert_ne!(id("http://a:2380", 5), id("http://a:2380", 6));
    assert_ne!(id("http://a:2380", 5), id("http://b:2380", 5));
    let refused = [MemberChange::add(&urls("a"), false, 5), MemberChange::update(1, &[])];
    assert_eq!(refused, [Err(MembershipRejection::BadUrls), Err(MembershipRejection::BadUrls)]);
    assert_eq!(
        MembershipRejection::BadUrls.to_string(),
        "etcdserver: given member URLs are invalid"
    );
    let [a, b] = ["http://a:1", "http://b:1"].map(str::to_owned);
    let update = MemberChange::Update { id: 1, peer_urls: vec![a.clone(), b] };
    assert_eq!(MemberChange::update(1, &[" http://b:1 ".to_owned(), a.clone()]), Ok(update));
    let refused = MemberChange::update(1, &[a, "a".to_owned()]);
    assert_eq!(refused, Err(MembershipRejection::BadUrls));
}

fn any_change() -> impl Strategy<Value = MemberChange> {
    let url = (0..6u8).prop_map(|at| urls(&format!("http://{at}:2380")));
    let id = 1..6u64;
    prop_oneof![
        (id.clone(), url.clone(), any::<bool>()).prop_map(|(id, peer_urls, is_learner)| {
            MemberChange::Add(Member { id, peer_urls, is_learner, ..Member::default() })
        }),
        id.clone().prop_map(|id| MemberChange::Remove { id }),
        id.clone().prop_map(|id| MemberChange::Promote { id }),
        (id, url).prop_map(|(id, peer_urls)| MemberChange::Update { id, peer_urls }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// After each change, the table equals the configuration that raft would compute from the
    /// changes that were not rejected, and no two members share an address.
    #[test]
    fn raft_and_the_table_agree(changes in proptest::collection::vec(any_change(), 1..40)) {
        let mut cluster = MembersAndRaft::new(2);
        let (mut voters, mut learners) = (Vec::new(), Vec::new());
        for change in changes {
            let outcome = change.to_conf_change(1);
            if cluster.apply(&outcome).is_ok() && outcome.kind != ConfChangeKind::UpdateNode {
                voters.retain(|id| *id != outcome.node_id);
                learners.retain(|id| *id != outcome.node_id);
                match outcome.kind {
                    ConfChangeKind::AddNode => voters.push(outcome.node_id),
                    ConfChangeKind::AddLearnerNode => learners.push(outcome.node_id),
                    _ => {}
                }
            }
            voters.sort_unstable();
            learners.sort_unstable();
            let (voters, learners) = (voters.clone(), learners.clone());
            let raft = ConfState { voters, learners, ..ConfState::default() };
            prop_assert_eq!(cluster.members.conf_state(), raft);
            let mut seen = Vec::new();
            for url in cluster.members.iter().flat_map(|member| &member.peer_urls) {
                prop_assert!(!seen.contains(&url), "{url} twice");
                seen.push(url);
            }
        }
    }
}
