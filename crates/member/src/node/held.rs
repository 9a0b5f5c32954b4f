//! Proposals that cannot go to a leader now: because nobody leads, because leadership is handed over at
//! this moment, or because the way to the leader is broken.
//!
//! If one got lost, a client would wait for seven seconds, and would not even know then what has become
//! of it. What this member still has in its hands is in nobody's log; so it can be kept, and proposed when
//! somebody leads.
//!
//! Only for as long as somebody waits for it. A put that its client has given up, and that came through much
//! later, could undo what others have written since.

use std::collections::HashMap;
use std::time::Duration;

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft_log::driver::Message;

use super::inbox::Place;
use super::pending::Pending;

/// So many are kept.
const COUNT_MAX: usize = 4096;
/// And so much of those that were messages already.
const BYTES_MAX: u64 = 64 << 20;
/// Whoever waits at another member waits no longer than this.
const OTHERS_WAIT: Duration = Duration::from_secs(7);

/// A proposal that waits.
pub(super) enum Proposal {
    /// Of a client here. It has no id yet.
    Own(Box<InternalRaftRequest>, Place),
    /// It was forwarded by another member to this one, or by this one to a leader who was not reached.
    Forwarded(Forwarded),
}

/// A proposal that is a message already.
pub(super) struct Forwarded {
    pub(super) message: Box<Message>,
    /// If it is this member's own: under which id somebody waits for it.
    pub(super) own: Option<u64>,
    /// If it is another one's: until when somebody may be waiting there.
    pub(super) until: Duration,
}

impl Forwarded {
    /// Whether somebody waits for it, as far as is known here.
    pub(super) fn is_wanted(&self, pending: &Pending, now: Duration) -> bool {
        match self.own {
            Some(id) => pending.waits(id),
            None => now < self.until,
        }
    }

    /// One that another member has sent.
    pub(super) fn of_another(message: Box<Message>, now: Duration) -> Forwarded {
        Forwarded { message, own: None, until: now + OTHERS_WAIT }
    }
}

/// All that wait, in the order of their arrival.
#[derive(Default)]
pub(super) struct Held {
    proposals: Vec<Proposal>,
    /// Of those that are messages.
    bytes: u64,
    /// Not before this time: the way is not mended sooner.
    not_before: Option<Duration>,
    /// Others' proposals that were passed on, by id, and until when somebody may be waiting for them: one that
    /// comes back again and again does not become younger by it.
    passed_on: HashMap<u64, Duration>,
}

impl Held {
    /// Gives back a request that has no room.
    pub(super) fn keep_own(
        &mut self,
        request: Box<InternalRaftRequest>,
        place: Place,
    ) -> Option<Box<InternalRaftRequest>> {
        if self.proposals.len() >= COUNT_MAX {
            return Some(request);
        }
        self.proposals.push(Proposal::Own(request, place));
        None
    }

    /// Keeps what is a message already; says whether there was room for it.
    pub(super) fn keep(&mut self, forwarded: Forwarded) -> bool {
        let has_room = self.proposals.len() < COUNT_MAX && self.bytes < BYTES_MAX;
        if has_room {
            self.bytes += forwarded.message.bytes();
            self.proposals.push(Proposal::Forwarded(forwarded));
        }
        has_room
    }

    /// There was no way: it makes no sense to try again before then. Who comes meanwhile changes nothing in
    /// that, or those who wait would never have their turn.
    pub(super) fn rest(&mut self, until: Duration) {
        self.not_before.get_or_insert(until);
    }

    /// Another member's proposal is passed on.
    pub(super) fn remember(&mut self, id: u64, until: Duration) {
        self.passed_on.entry(id).or_insert(until);
    }

    /// Until when somebody may be waiting for another member's proposal, if it was passed on before.
    pub(super) fn until(&self, id: u64, otherwise: Duration) -> Duration {
        self.passed_on.get(&id).copied().unwrap_or(otherwise)
    }

    /// Forgets for what nobody waits any more.
    pub(super) fn forget_old(&mut self, now: Duration) {
        self.passed_on.retain(|_, until| *until > now);
    }

    /// Nobody waits at this place any more.
    pub(super) fn give_up(&mut self, place: Place) {
        self.proposals.retain(|held| !matches!(held, Proposal::Own(_, of) if *of == place));
    }

    /// Nobody waits for this id any more.
    pub(super) fn forget(&mut self, id: u64) {
        let Held { proposals, bytes, .. } = self;
        proposals.retain(|held| match held {
            Proposal::Forwarded(forwarded) if forwarded.own == Some(id) => {
                *bytes -= forwarded.message.bytes();
                false
            }
            _ => true,
        });
    }

    /// Whether there is something to be proposed at this time, if somebody takes it.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        !self.proposals.is_empty() && self.not_before.is_none_or(|time| now >= time)
    }

    pub(super) fn take(&mut self) -> Vec<Proposal> {
        (self.bytes, self.not_before) = (0, None);
        std::mem::take(&mut self.proposals)
    }
}
