//! A small store and a series of changes, with a copy of its file after each commit. The pages are
//! the same in each run.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use clearlane_engine::{Bucket, Engine, EngineKind, KeyRange, Options, Snapshot};

use crate::look::Look;

/// The revisions of the records in the first commit.
pub(crate) const RECORDS: std::ops::RangeInclusive<u64> = 2..=13;
/// The revision of the record that does not fit into a page.
pub(crate) const LARGE: u64 = 3;
const VALUE_BYTES: usize = 370;
const LARGE_VALUE_BYTES: usize = 6_000;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// The role of a page in the newest state, and in the states that may still be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// The newest commit has written the page.
    Written,
    Unchanged,
    /// Only the state of the open snapshot uses the page.
    Kept,
    /// Only the previous state uses the page, and no snapshot does.
    Before,
    Free,
}

/// The file after a commit.
pub(crate) struct Moment {
    pub(crate) what: &'static str,
    pub(crate) look: Look,
    /// The txid of the state that the open snapshot shows. `None` if no snapshot is open.
    pub(crate) reader: Option<u64>,
    /// The role of each page below the high-water mark, by its id.
    pub(crate) uses: Vec<Use>,
}

impl Moment {
    pub(crate) fn txid(&self) -> u64 {
        self.look.newest().txid
    }
}

pub(crate) struct Story {
    /// The empty store, and then (`before`) the store after the put of the twelve records.
    pub(crate) empty: Moment,
    pub(crate) before: Moment,
    /// The store after the put of 14_0.
    pub(crate) after: Moment,
    /// The store after the put of 15_0, after the put of 16_0, and after the put of 17_0. A
    /// snapshot is open during the first two puts.
    pub(crate) later: [Moment; 3],
    /// The store after the records up to 13_0 are deleted.
    pub(crate) compacted: Moment,
    pub(crate) defragmented: Look,
}

/// Returns the key of a record in etcd's form: the revision `main`, with sub revision 0.
pub(crate) fn revision_key(main: u64) -> Vec<u8> {
    [&main.to_be_bytes()[..], b"_", &0u64.to_be_bytes()].concat()
}

/// Returns the text of the revision, repeated. etcd's values here would be encoded messages.
fn value(main: u64) -> Vec<u8> {
    let bytes = if main == LARGE { LARGE_VALUE_BYTES } else { VALUE_BYTES };
    format!("{main}_0 ").into_bytes().into_iter().cycle().take(bytes).collect()
}

/// Commits puts, and stores the index of the last one like etcd.
fn commit(engine: &dyn Engine, revisions: impl IntoIterator<Item = u64>) -> Outcome<()> {
    let mut txn = engine.begin_write()?;
    let mut last = 0;
    for main in revisions {
        txn.put(Bucket::Key, &revision_key(main), &value(main))?;
        last = main;
    }
    // The stored index is the index that etcd would store if each revision were one entry of the
    // log.
    txn.put(Bucket::Meta, b"consistent_index", &last.to_be_bytes())?;
    Ok(txn.commit()?)
}

pub(crate) fn open(dir: &Path) -> Outcome<std::sync::Arc<dyn Engine>> {
    Ok(clearlane_engine::open(EngineKind::Bolt, dir, Options::default())?)
}

/// Runs the example in the empty directory `dir`: makes each commit, and records what the file
/// contains after it.
pub(crate) fn tell(dir: &Path) -> Outcome<Story> {
    let store = dir.join("store");
    let engine = open(&store)?;
    let look = || Look::at(&store);
    let empty = moment("the empty store", look()?, None, &[]);
    commit(&*engine, RECORDS)?;
    let before = moment("twelve records are put", look()?, None, &[&empty]);
    let snapshot = engine.snapshot()?;
    commit(&*engine, [14])?;
    let reader = Some(before.txid());
    let after = moment("14_0 is put, beside a reader", look()?, reader, &[&empty, &before]);
    commit(&*engine, [15])?;
    let states = [&empty, &before, &after];
    let second = moment("15_0 is put, beside it", look()?, reader, &states);
    commit(&*engine, [16])?;
    let third = moment("16_0 is put, beside it", look()?, reader, &[&before, &after, &second]);
    assert_eq!(records(&*snapshot)?, RECORDS.count(), "the snapshot shows what it did");
    drop(snapshot);
    commit(&*engine, [17])?;
    let fourth = moment("17_0 is put, after it", look()?, None, &[&third]);
    let mut txn = engine.begin_write()?;
    RECORDS.into_iter().try_for_each(|main| txn.delete(Bucket::Key, &revision_key(main)))?;
    txn.commit()?;
    let compacted = moment("2_0 to 13_0 are deleted", look()?, None, &[&fourth]);
    let mut copy = engine.begin_defragment()?;
    while !copy.step(100)? {}
    copy.finish()?;
    let defragmented = look()?;
    Ok(Story { empty, before, after, later: [second, third, fourth], compacted, defragmented })
}

fn records(snapshot: &dyn Snapshot) -> Outcome<usize> {
    let mut count = 0;
    snapshot.scan(Bucket::Key, KeyRange::ALL, &mut |_, _| {
        count += 1;
        ControlFlow::Continue(())
    })?;
    Ok(count)
}

/// Returns the moment after a commit. `states` are earlier moments, and the newest of them is last.
fn moment(what: &'static str, look: Look, reader: Option<u64>, states: &[&Moment]) -> Moment {
    let shown = states.iter().find(|state| Some(state.txid()) == reader);
    let last = states.last();
    let leads = |state: Option<&&Moment>, id| state.is_some_and(|state| state.look.is_in_tree(id));
    // Equal bytes are not enough: a commit may have written a free page again with the same bytes.
    // So the page must also have been in use before.
    let is_as_before = |last: &Moment, id| {
        last.look.is_used(id) && last.look.page_bytes(id) == look.page_bytes(id)
    };
    let is_written = |id| last.is_none_or(|last| !is_as_before(last, id));
    let use_of = |id: u64| match look.is_used(id) {
        true if is_written(id) => Use::Written,
        true => Use::Unchanged,
        false if leads(shown, id) => Use::Kept,
        false if leads(last, id) => Use::Before,
        false => Use::Free,
    };
    let uses = (0..look.newest().high_water).map(use_of).collect();
    Moment { what, look, reader, uses }
}
