//! A hash of everything that the members do in the run of one seed: each sent message, appended
//! batch, applied entry and answered request, each with its member and its simulated time.
//!
//! The hash covers only bytes and numbers, no name, text or debug form of a type. So it does not
//! change when names or the [trace](crate::trace) change. `tests/golden/effects` contains the
//! hashes of the first 200 seeds.

use std::hash::{Hash, Hasher};
use std::mem::discriminant;

use clearlane_raft::Message;
use clearlane_replica::apply::AppliedResponse;
use clearlane_replica::{Completions, RequestOutcome};
use clearlane_wal::Entry;
use clearlane_wal::group_commit::Batch;

use crate::event_queue::Micros;
use crate::trace::Fnv;

#[derive(Clone, Debug, Default)]
pub struct EffectHash(Fnv);

impl EffectHash {
    pub fn finish(&self) -> u64 {
        self.0.finish()
    }

    pub fn on_send(&mut self, now: Micros, id: u64, message: &Message) {
        (b's', now, id, message.to(), message.encode()).hash(&mut self.0);
    }

    pub fn on_append(&mut self, now: Micros, id: u64, batch: &Batch) {
        (b'w', now, id, batch.appends().len()).hash(&mut self.0);
        for append in batch.appends() {
            append.snapshot.as_ref().map(|snapshot| snapshot.encode()).hash(&mut self.0);
            self.hash_entries(&append.entries);
            append.hard_state.map(|state| (state.term, state.vote, state.commit)).hash(&mut self.0);
        }
    }

    pub fn on_apply(&mut self, now: Micros, id: u64, entries: &[Entry]) {
        (b'a', now, id).hash(&mut self.0);
        self.hash_entries(entries);
    }

    pub fn on_complete(&mut self, now: Micros, id: u64, completions: &Completions) {
        for (request, outcome) in completions {
            (b'r', now, id, request, outcome_number(outcome)).hash(&mut self.0);
            match outcome {
                RequestOutcome::Applied(Ok(reply)) => encode_reply(reply).hash(&mut self.0),
                RequestOutcome::Applied(Err(refused)) => refused.hash(&mut self.0),
                RequestOutcome::MembersChanged(members) => {
                    let ids = members.as_ref().map(|all| all.iter().map(|member| member.id));
                    ids.map(Iterator::collect::<Vec<_>>).ok().hash(&mut self.0);
                }
                RequestOutcome::ReadReady(wait) => wait.hash(&mut self.0),
                _ => {}
            }
        }
    }

    fn hash_entries(&mut self, entries: &[Entry]) {
        for entry in entries {
            entry.encode().hash(&mut self.0);
        }
    }
}

/// Returns the number of an outcome. The recorded hashes depend on these numbers, so a new outcome
/// gets the next number.
fn outcome_number(outcome: &RequestOutcome) -> isize {
    match outcome {
        RequestOutcome::Applied(_)
        | RequestOutcome::AppliedInPart(_)
        | RequestOutcome::MembersChanged(_) => 0,
        RequestOutcome::NotProposed(_) => 1,
        RequestOutcome::ChangeRejected(_) => 2,
        RequestOutcome::ReadReady(_) => 3,
        RequestOutcome::ReadFailed(_) => 4,
        RequestOutcome::TimedOut => 5,
        RequestOutcome::DeadlineExceeded => 6,
    }
}

fn encode_reply(reply: &AppliedResponse) -> Vec<u8> {
    let mut number = Fnv(0);
    discriminant(reply).hash(&mut number);
    [&number.finish().to_le_bytes()[..], &reply.encode_to_vec()].concat()
}
