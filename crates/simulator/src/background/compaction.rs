//! Compactions: an entry of the log, and then a job.
//!
//! ```text
//!   applier   ├ begins ┤  put  put  put ...
//!   job                ├─ index ─┤├ batch ┤ pause ├ batch ┤ pause ├ batch ┤
//! ```
//!
//! The job walks the index to find what must stay, and then removes revisions in batches. etcd
//! scans all revisions, also those that stay; ours knows from the index which ones are removed.

use std::rc::Rc;

use clearlane_contention::TaskLabel;

use crate::cluster::Cluster;
use crate::entries::{LEADER, Work};
use crate::era::background::{compact_batch, compact_index, settings};
use crate::sim_task::SimTask;

impl Cluster {
    pub(super) async fn propose_compactions(self: Rc<Self>) {
        loop {
            self.world.sleep(self.model.compaction_every_ns).await;
            if self.is_over() {
                return;
            }
            let cores = &self.member(LEADER).cores;
            let mut task = SimTask::new(&self.world, cores, TaskLabel::named("compaction"));
            self.propose(LEADER, &mut task, Work::Compact).await;
        }
    }

    /// The job, at one member.
    pub(crate) async fn compact(self: Rc<Self>, place: usize) {
        let member = self.member(place);
        let mut task = SimTask::new(&self.world, &member.cores, TaskLabel::named("compaction"));
        let removed = member.revisions.get() - member.revisions_compacted.get();
        member.revisions_compacted.set(member.revisions.get());
        compact_index(member, &mut task, self.keys).await;
        let settings = settings(member.build.era);
        let all = removed + if settings.scans_all { self.keys } else { 0 };
        for begin in (0..all).step_by(settings.batch_revisions as usize) {
            let end = all.min(begin + settings.batch_revisions);
            // The removed revisions are spread evenly.
            let gone = removed * end / all - removed * begin / all;
            compact_batch(member, &mut task, end - begin, gone).await;
            if end < all {
                task.pause(settings.batch_pause_ns).await;
            }
        }
        let (took_ns, account) = task.end();
        self.record_job("compaction", took_ns, account);
    }
}
