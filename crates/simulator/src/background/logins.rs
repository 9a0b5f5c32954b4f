//! Password checks, which are slow on purpose. A request that holds a lock meanwhile delays all
//! others as long.

use std::rc::Rc;

use clearlane_contention::TaskLabel;
use clearlane_loadgen::arrivals::{Schedule, Spacing};

use crate::cluster::Cluster;
use crate::entries::{LEADER, Work};
use crate::era::background::{check_password, settings};
use crate::sim_task::SimTask;

/// Seed of the times of logins, apart from those of classes.
const SEED: u64 = 1 << 19;

impl Cluster {
    pub(super) async fn log_users_in(self: Rc<Self>) {
        let rate = self.model.auth.logins_per_s;
        for due in Schedule::new(Spacing::Poisson, rate, SEED + self.seed) {
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
        let by_era = settings(member.build.era).checks_passwords_inside;
        let inside = self.model.auth.inside_lock.unwrap_or(by_era);
        check_password(member, &mut task, self.model.auth.bcrypt_ns, inside).await;
        self.propose(LEADER, &mut task, Work::Token).await;
        self.send_response(&mut task).await;
        let (took_ns, account) = task.end();
        self.record_job("login", took_ns, account);
    }
}
