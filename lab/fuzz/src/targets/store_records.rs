//! Arbitrary records in a store, as from a damaged file or a restored snapshot. A member's start on
//! this store may fail, but must not panic.
//!
//! ```text
//!   bucket (1) │ key (2 + n) │ value (2 + n) │ bucket │ ...
//! ```

use std::sync::Arc;
use std::time::Duration;

use clearlane_auth::{AuthConfig, AuthInfo, AuthStore};
use clearlane_backend::{Config, Era};
use clearlane_contention::Registry;
use clearlane_engine::{Bucket, Engine, MemoryEngine};
use clearlane_lease::{Config as LeaseConfig, Lessor};
use clearlane_mvcc::{ReadTxn, StoreConfig};
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_replica::alarms::Alarms;
use clearlane_replica::membership::{LEARNERS_MAX, Members};
use clearlane_replica::{AppliedPosition, apply};

use crate::input::Input;

/// Number of records in each step of a compaction that was interrupted and continues after the
/// start.
const COMPACT_RECORDS: usize = 100;

pub fn target(data: &[u8]) {
    start(filled(Input::new(data)));
}

/// Returns a store with the records of the input.
pub(super) fn filled(mut input: Input<'_>) -> Arc<dyn Engine> {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let mut txn = engine.begin_write().expect("memory can be written");
    while !input.is_empty() {
        let bucket = Bucket::ALL[input.choice(Bucket::ALL.len())];
        txn.put(bucket, input.string(), input.string()).expect("memory can be written");
    }
    txn.commit().expect("memory can be written");
    engine
}

/// Takes the steps of a starting member that concern the store, and then reads and writes. There
/// are no further steps if the applied position cannot be read or the store cannot be opened. All
/// other errors are ignored.
pub(super) fn start(engine: Arc<dyn Engine>) {
    let snapshot = engine.snapshot().expect("memory can be read");
    let Ok(position) = AppliedPosition::read(&*snapshot) else { return };
    let pre_commit = AppliedPosition::pre_commit();
    let config = StoreConfig::new(engine, Config::default(), pre_commit, position.clone());
    let Ok((store, recovery)) = clearlane_mvcc::open(Era::Clearlane, config) else { return };
    let read = store.begin_read();
    let _ = read_buckets(&*read);
    let lessor = Lessor::new(LeaseConfig::new(Duration::from_secs(1)), &Registry::new());
    if lessor.restore(&*read, &recovery.leases).is_ok() {
        lessor.promote(Duration::ZERO);
        for id in lessor.list() {
            let _ = (lessor.time_to_live(id, Duration::from_secs(1)), lessor.keys(id));
            let _ = lessor.renew(id, Duration::from_secs(1));
        }
        let _ = lessor.due(Duration::from_secs(3600));
    }
    drop(read);
    if let Some(mut job) = recovery.compaction {
        while let Ok(false) = store.compact_step(&mut job, COMPACT_RECORDS) {}
    }
    let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() };
    let _ = apply::range(&*store.begin_read(), &all);
    let Ok(mut txn) = store.begin_write() else { return };
    let _ = txn.put(b"key", b"value", 0);
    let _ = txn.end(AppliedPosition { index: position.index.saturating_add(1), ..position });
}

fn read_buckets(read: &(dyn ReadTxn + '_)) -> clearlane_replica::Result<()> {
    Members::load(read, LEARNERS_MAX)?;
    Alarms::load(read)?;
    let auth = AuthStore::new(AuthConfig::default(), &Registry::new());
    if auth.restore(read).is_ok() {
        let state = auth.state();
        for user in state.user_names() {
            let user = AuthInfo { username: user.as_str().into(), revision: state.revision };
            let _ = state.checker(Some(&user)).read(b"key", b"kez");
            let _ = state.checker(Some(&user)).admin();
        }
        for role in state.role_names() {
            let _ = state.permissions_of(&role);
        }
    }
    Ok(())
}
