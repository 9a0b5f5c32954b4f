//! Questions to other members.

use std::sync::Arc;
use std::time::Instant;

use clearlane_member::corruption::Said;
use clearlane_member::membership::{Member, Refused};
use clearlane_member::node::{Asking, Others, Traffic};
use clearlane_member::{Handle, Trouble};
use clearlane_proto::etcdserverpb::{
    HashKvRequest, LeaseKeepAliveRequest, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use clearlane_proto::peerpb::PromoteRequest;
use clearlane_proto::peerpb::peer_client::PeerClient;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::badge::Badge;
use super::links::Table;
use super::{Context, MESSAGE_BYTES_MAX, hashes};
use crate::cluster::of_wire;

/// Asks over the urgent connections: questions are short.
#[derive(Debug)]
pub(super) struct Calls {
    table: Arc<Table>,
    /// But for whom it is for.
    badge: Badge,
}

impl Calls {
    pub(super) fn new(context: &Context) -> Calls {
        Calls { table: Arc::clone(&context.table), badge: context.badge(0) }
    }

    fn client(&self, id: u64) -> Result<PeerClient<Channel>, Trouble> {
        let link = self.table.get(id).filter(|link| !link.is_cut());
        let channel = link.and_then(|link| link.channel());
        let client = channel.map(PeerClient::new).ok_or(Trouble::NoLeader)?;
        // Many keys may hang on a lease.
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX))
    }

    fn dressed<T>(&self, to: u64, question: T) -> Request<T> {
        let mut request = Request::new(question);
        Badge { to, ..self.badge.clone() }.write(request.metadata_mut());
        request
    }
}

/// What another member's refusal means to a client of this one.
pub(super) fn trouble(status: &Status) -> Trouble {
    let not_leader = Trouble::NotLeader;
    match Refused::of_words(status.message()) {
        Some(refused) => Trouble::Members(refused),
        None if status.message() == not_leader.to_string() => not_leader,
        None => Trouble::NoLeader,
    }
}

impl Others for Calls {
    fn active_since(&self, id: u64) -> Option<Instant> {
        self.table.get(id)?.active_since()
    }

    fn traffic(&self) -> Vec<Traffic> {
        self.table.traffic()
    }

    fn promote(&self, leader: u64, learner: u64) -> Asking<'_, Vec<Member>> {
        Box::pin(async move {
            let mut client = self.client(leader)?;
            let request = self.dressed(leader, PromoteRequest { learner });
            let reply = client.promote(request).await.map_err(|status| trouble(&status))?;
            Ok(reply.into_inner().members.into_iter().map(of_wire).collect())
        })
    }

    fn renew(&self, leader: u64, lease: i64) -> Asking<'_, i64> {
        Box::pin(async move {
            let mut client = self.client(leader)?;
            let request = self.dressed(leader, LeaseKeepAliveRequest { id: lease });
            let reply = client.renew_lease(request).await.map_err(|status| trouble(&status))?;
            Ok(reply.into_inner().ttl)
        })
    }

    fn time_to_live(
        &self,
        leader: u64,
        request: LeaseTimeToLiveRequest,
    ) -> Asking<'_, LeaseTimeToLiveResponse> {
        Box::pin(async move {
            let mut client = self.client(leader)?;
            let request = self.dressed(leader, request);
            let reply = client.time_to_live(request).await.map_err(|status| trouble(&status))?;
            Ok(reply.into_inner())
        })
    }

    fn hash_kv(&self, member: u64, revision: i64) -> Asking<'_, Said> {
        Box::pin(async move {
            let mut client = self.client(member)?;
            let request = self.dressed(member, HashKvRequest { revision });
            let reply = client.hash_kv(request).await;
            Ok(hashes::said(reply.map_err(|status| hashes::trouble(&status))?.get_ref()))
        })
    }
}

/// Who leads, if it is another, and how to ask him.
pub(crate) fn leader(member: &Handle) -> Option<(&Arc<dyn Others>, u64)> {
    let leader = member.node().status().leader();
    let is_another = leader != 0 && leader != member.node().metadata().node_id;
    member.node().others().filter(|_| is_another).map(|others| (others, leader))
}
