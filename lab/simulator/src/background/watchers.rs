//! Unsynced watchers. They started at an old revision, or their client was too slow.
//!
//! etcd makes passes over up to 512 unsynced watchers, with pauses of 100 ms. A pass reads
//! *everything* since the oldest revision that one of these watchers waits for, and gives each
//! watcher up to 1,000 revisions. The next pass reads the rest again:
//!
//! ```text
//!   20,000 behind    reads 20,000, gives 1,000
//!                    reads 19,000, gives 1,000
//!                    ...                          210,000 read to give 20,000
//! ```
//!
//! During the read of a pass, etcd holds the lock that the end of each write needs. Clearlane reads
//! only the revisions that it delivers, without a lock.

use std::collections::VecDeque;
use std::rc::Rc;

use clearlane_contention::TaskLabel;

use crate::account::Account;
use crate::cluster::Cluster;
use crate::entries::LEADER;
use crate::era::background::read_missed;
use crate::requests::Missed;
use crate::sim_task::SimTask;

const PERIOD_NS: u64 = 100_000_000;
/// Maximum number of watchers served in one pass.
const AT_ONCE: u64 = 512;
/// Maximum number of revisions that one watcher gets in one pass.
const GIVEN_MAX: u64 = 1_000;

/// Watchers that started together. A group has at most [`AT_ONCE`] watchers.
#[derive(Clone, Debug)]
struct Group {
    count: u64,
    began_ns: u64,
    /// The account of the sync task when the group started.
    before: Account,
    /// The next revision to deliver.
    next: u64,
}

impl Group {
    fn given(&self, revision: u64) -> u64 {
        GIVEN_MAX.min(revision - self.next)
    }
}

impl Cluster {
    pub(super) async fn sync_watchers(self: Rc<Self>) {
        let (member, watchers) = (self.member(LEADER), self.model.watchers);
        let mut task = SimTask::new(&self.world, &member.cores, TaskLabel::named("watch sync"));
        let first_ns = if watchers.every_ns == 0 { 1_000_000_000 } else { watchers.every_ns };
        let mut next_ns = Some(first_ns);
        let mut behind = VecDeque::new();
        loop {
            let now_ns = self.world.now_ns();
            if let Some(ns) = next_ns.filter(|ns| *ns <= now_ns) {
                let before = task.time_account.account();
                for count in (0..watchers.lagging).step_by(AT_ONCE as usize) {
                    let count = AT_ONCE.min(watchers.lagging - count);
                    let next = self.revision() - watchers.behind;
                    behind.push_back(Group { count, began_ns: now_ns, before, next });
                }
                next_ns = (watchers.every_ns > 0).then_some(ns + watchers.every_ns);
            }
            if behind.is_empty() {
                let Some(ns) = next_ns.filter(|_| !self.is_over()) else { return };
                task.pause(ns - now_ns).await;
            } else {
                self.serve_watchers(&mut task, &mut behind).await;
                task.pause(PERIOD_NS).await;
            }
        }
    }

    /// Returns the store's present revision. It includes the revisions from before the run.
    fn revision(&self) -> u64 {
        self.model.watchers.behind + self.member(LEADER).revisions.get()
    }

    /// Makes one pass over the groups at the front of the queue. Groups that are still behind after
    /// the pass are queued again.
    async fn serve_watchers(&self, task: &mut SimTask, behind: &mut VecDeque<Group>) {
        let (member, revision) = (self.member(LEADER), self.revision());
        let mut room = AT_ONCE;
        let mut taken = Vec::new();
        while let Some(group) = behind.pop_front_if(|group| group.count <= room) {
            room -= group.count;
            taken.push(group);
        }
        let since_oldest = taken.iter().map(|group| revision - group.next).max().unwrap_or(0);
        let given = taken.iter().map(|group| group.given(revision)).max().unwrap_or(0);
        let missed = Missed { since_oldest, given, record_bytes: self.record_bytes };
        read_missed(member, task, missed).await;
        let told: u64 = taken.iter().map(|group| group.count * group.given(revision)).sum();
        task.run(told * member.build.costs.notify_ns).await;
        for mut group in taken {
            group.next += group.given(revision);
            if group.next < revision {
                behind.push_back(group);
                continue;
            }
            let took_ns = self.world.now_ns() - group.began_ns;
            self.record_job(
                "watch sync",
                took_ns,
                task.time_account.account().since(&group.before),
            );
        }
    }
}
