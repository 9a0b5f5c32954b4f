//! The work of a member in addition to requests.
//!
//! ```text
//!   work         when                                 what
//!   watchers     while one is behind, in passes       reads the missed revisions
//!   compaction   when its entry is applied            removes overwritten revisions, in batches
//!   logins       when users log in                    checks passwords, which is slow on purpose
//! ```
//!
//! This module defines when work is done and how much. The [eras](crate::era) define the locks that
//! are held during it.

mod watchers;

use std::rc::Rc;

use clearlane_contention::TaskLabel;
use clearlane_loadgen::arrivals::{Schedule, Spacing};

use crate::cluster::Cluster;
use crate::entries::{LEADER, Work};
use crate::era::background::{check_password, compact_batch, compact_index, settings};
use crate::sim_task::SimTask;

/// Part of the seed for the times of logins. The classes of requests have other seeds.
const LOGINS_SEED: u64 = 1 << 19;

impl Cluster {
    pub(crate) fn start_background(self: &Rc<Self>) {
        let Cluster { world, model, .. } = &**self;
        let own = || Rc::clone(self);
        if model.watchers.lagging > 0 {
            world.spawn(own().sync_watchers());
        }
        if model.compaction_every_ns > 0 {
            world.spawn(own().propose_compactions());
        }
        if model.auth.logins_per_s > 0.0 {
            world.spawn(own().log_users_in());
        }
    }

    async fn propose_compactions(self: Rc<Self>) {
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

    /// The compaction job at one member. It walks the index to find the revisions that must stay,
    /// and then removes the others in batches. etcd scans all revisions, including the revisions
    /// that stay. Clearlane knows from the index which revisions to remove, and scans only them.
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
            // The removed revisions are spread evenly over the scanned revisions.
            let gone = removed * end / all - removed * begin / all;
            compact_batch(member, &mut task, end - begin, gone).await;
            if end < all {
                task.pause(settings.batch_pause_ns).await;
            }
        }
        let (took_ns, account) = task.end();
        self.record_job("compaction", took_ns, account);
    }

    async fn log_users_in(self: Rc<Self>) {
        let rate = self.model.auth.logins_per_s;
        for due in Schedule::new(Spacing::Poisson, rate, LOGINS_SEED + self.seed) {
            self.world.sleep_until(due.as_nanos() as u64).await;
            if self.is_over() {
                return;
            }
            self.world.spawn(Rc::clone(&self).login());
        }
    }

    async fn login(self: Rc<Self>) {
        let member = self.member(LEADER);
        let mut task = SimTask::new(&self.world, &member.cores, TaskLabel::named("login"));
        self.receive(LEADER, &mut task).await;
        self.confirm_read(LEADER, &mut task).await;
        let by_era = settings(member.build.era).checks_passwords_inside;
        let inside = self.model.auth.inside_lock.unwrap_or(by_era);
        check_password(member, &mut task, self.model.auth.bcrypt_ns, inside).await;
        self.propose(LEADER, &mut task, Work::Token).await;
        self.send_response(&mut task).await;
        let (took_ns, account) = task.end();
        self.record_job("login", took_ns, account);
    }
}
