//! What a member does beside requests.
//!
//! ```text
//!   watchers     every 100 ms, while one is behind    reads what was missed
//!   compaction   an entry of the log, and then a job  removes what was overwritten, in batches
//!   logins       as users come                        checks passwords, slow on purpose
//! ```
//!
//! When something is done, and how much of it, is here; the locks held meanwhile are in the
//! [eras](crate::era).

mod compaction;
mod logins;
mod watchers;

use crate::cluster::Cluster;

impl Cluster {
    pub(crate) fn works_in_the_background(&self) {
        let (world, model) = (self.world(), self.model());
        let own = || self.clone();
        if model.watchers.lagging > 0 {
            world.spawn(own().syncs_watchers());
        }
        if model.compaction_every_ns > 0 {
            world.spawn(own().asks_for_compactions());
        }
        if model.auth.logins_per_s > 0.0 {
            world.spawn(own().lets_users_in());
        }
    }
}
