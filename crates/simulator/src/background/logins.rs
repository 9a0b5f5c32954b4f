//! Password checks, which are slow on purpose. A request that holds a lock meanwhile delays all
//! others as long.

use clearlane_contention::TaskLabel;
use clearlane_loadgen::arrivals::{Schedule, Spacing};

use crate::cluster::Cluster;
use crate::entries::{LEADER, Work};
use crate::era::background::{checks_password, checks_passwords_inside};
use crate::sim_task::SimTask;

/// Seed of the times of logins, apart from those of classes.
const SEED: u64 = 1 << 19;

impl Cluster {
    pub(super) async fn lets_users_in(self) {
        let rate = self.model().auth.logins_per_s;
        for due in Schedule::new(Spacing::Poisson, rate, SEED + self.seed()) {
            self.world().sleep_until(due.as_nanos() as u64).await;
            if self.is_over() {
                return;
            }
            self.world().spawn(self.clone().login());
        }
    }

    async fn login(self) {
        let member = self.member(LEADER);
        let mut trip = SimTask::new(self.world(), &member.cores, TaskLabel::named("login"));
        self.receive(LEADER, &mut trip).await;
        let by_era = checks_passwords_inside(member.build.era);
        let inside = self.model().auth.inside_lock.unwrap_or(by_era);
        checks_password(member, &mut trip, self.model().auth.bcrypt_ns, inside).await;
        self.proposes(LEADER, &mut trip, Work::Token).await;
        self.send_response(&mut trip).await;
        let (took_ns, account) = trip.end();
        self.did("login", took_ns, account);
    }
}
