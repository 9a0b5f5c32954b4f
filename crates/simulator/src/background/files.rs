//! The file is sent to a client, or written anew.

use clearlane_contention::TaskLabel;

use crate::cluster::Cluster;
use crate::costs::times;
use crate::entries::LEADER;
use crate::era::{EraBackground as _, SimulatedEra as _};
use crate::sim_task::SimTask;

impl Cluster {
    /// For the client that asked for a snapshot. The backend commits first, with all that this
    /// stops. The copy is then made inside a read transaction of the engine, and stops no request.
    pub(super) async fn backs_up(self) {
        let member = self.member(LEADER);
        let mut trip = SimTask::new(self.world(), &member.cores, TaskLabel::named("backup"));
        member.build.era.commit(member, &mut trip).await;
        trip.run(times(self.bytes(), member.build.costs.sent_byte_ns)).await;
        let (took_ns, account) = trip.end();
        self.did("backup", took_ns, account);
    }

    pub(super) async fn defragments(self) {
        let member = self.member(LEADER);
        let mut trip = SimTask::new(self.world(), &member.cores, TaskLabel::named("defrag"));
        member.build.era.defragments(member, &mut trip, self.bytes()).await;
        let (took_ns, account) = trip.end();
        self.did("defrag", took_ns, account);
    }

    fn bytes(&self) -> u64 {
        self.keys() * self.record_bytes()
    }
}
