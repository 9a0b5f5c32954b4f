//! A small store and what happens to it, with a copy of its file after every commit. The pages are
//! the same at each run.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use clearlane_engine::{Bucket, Engine, EngineKind, KeyRange, Options, Snapshot};

use crate::look::Look;

/// Of the records that the first commit puts.
pub(crate) const RECORDS: std::ops::RangeInclusive<u64> = 2..=13;
/// The record that does not fit into a page.
pub(crate) const LARGE: u64 = 3;
const VALUE_BYTES: usize = 370;
const LARGE_VALUE_BYTES: usize = 6_000;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// What a page is to the newest state, and to the states that may still be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// The newest commit has written it.
    Written,
    Unchanged,
    /// Only the state leads here that an open snapshot shows.
    Kept,
    /// Only the state before the newest leads here, and no snapshot shows it.
    Before,
    Free,
}

/// The file after a commit.
pub(crate) struct Moment {
    pub(crate) what: &'static str,
    pub(crate) look: Look,
    /// The txid of the state that the open snapshot shows.
    pub(crate) reader: Option<u64>,
    /// By page, below the high-water mark.
    pub(crate) uses: Vec<Use>,
}

impl Moment {
    pub(crate) fn txid(&self) -> u64 {
        self.look.newest().txid
    }
}

pub(crate) struct Story {
    /// The twelve records, and before them the empty store.
    pub(crate) empty: Moment,
    pub(crate) before: Moment,
    /// The put of 14_0.
    pub(crate) after: Moment,
    /// The puts of 15_0 and 16_0 beside the snapshot, and of 17_0 without it.
    pub(crate) later: [Moment; 3],
    /// The records up to 13_0 are deleted.
    pub(crate) compacted: Moment,
    pub(crate) defragmented: Look,
}

/// `main` and `sub`, as etcd's records have them.
pub(crate) fn revision_key(main: u64) -> Vec<u8> {
    [&main.to_be_bytes()[..], b"_", &0u64.to_be_bytes()].concat()
}

/// The revision as text, again and again. etcd has a message here.
fn value(main: u64) -> Vec<u8> {
    let bytes = if main == LARGE { LARGE_VALUE_BYTES } else { VALUE_BYTES };
    format!("{main}_0 ").into_bytes().into_iter().cycle().take(bytes).collect()
}

/// One commit of puts, which notes its number as etcd does.
fn commit(engine: &dyn Engine, revisions: impl IntoIterator<Item = u64>) -> Outcome<()> {
    let mut txn = engine.begin_write()?;
    let mut last = 0;
    for main in revisions {
        txn.put(Bucket::Key, &revision_key(main), &value(main))?;
        last = main;
    }
    // As if each revision had been one entry of the log.
    txn.put(Bucket::Meta, b"consistent_index", &last.to_be_bytes())?;
    Ok(txn.commit()?)
}

pub(crate) fn open(dir: &Path) -> Outcome<std::sync::Arc<dyn Engine>> {
    Ok(clearlane_engine::open(EngineKind::Bolt, dir, Options::default())?)
}

/// In the empty directory `dir`.
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

/// `states` are those before, the newest last.
fn moment(what: &'static str, look: Look, reader: Option<u64>, states: &[&Moment]) -> Moment {
    let shown = states.iter().find(|state| Some(state.txid()) == reader);
    let last = states.last();
    let leads = |state: Option<&&Moment>, id| state.is_some_and(|state| state.look.is_in_tree(id));
    // A page that was free may get the bytes that it had.
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
