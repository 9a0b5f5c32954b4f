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

use std::rc::Rc;

use crate::cluster::Cluster;

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
}
