//! Both halves of a member, run one after the other in one thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clearlane_lease::Lessor;
use clearlane_member::alarms::Alarms;
use clearlane_member::copies::Received;
use clearlane_member::core::{
    Answer, Applier, ApplyOutputs, ChangeError, Core, Input, Outcome, Outputs, RequestId,
};
use clearlane_member::membership::Change;
use clearlane_member::{Progress, Result};
use clearlane_mvcc::Store;
use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft_log::driver::{self, Message};
use clearlane_raft_log::wal::group::Written;

/// A member without threads.
pub(crate) struct Both {
    pub(crate) raft: Core,
    pub(crate) apply: Applier,
    /// Requests so far.
    requests: u32,
    refused: BTreeMap<u64, Outcome>,
    has_begun: bool,
}

/// What a poll has brought.
#[derive(Default)]
pub(crate) struct Polled {
    pub(crate) raft: Outputs,
    pub(crate) apply: Vec<ApplyOutputs>,
    pub(crate) answers: Vec<(u64, Answer)>,
    pub(crate) reads: Vec<Reads>,
    /// How long the last reads waited for entries to be applied.
    pub(crate) applying: Option<Duration>,
    /// Outcomes of each step of the apply half.
    pub(crate) steps: Vec<usize>,
}

/// What has become of some readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    Go(Vec<u64>),
    Fail(clearlane_read_index::Error, Vec<u64>),
}

fn reader(name: u64) -> RequestId {
    RequestId { queue: 1, slot: name as u32, generation: 0 }
}

impl Both {
    pub(crate) fn new(raft: Core, apply: Applier) -> Both {
        Both { raft, apply, requests: 0, refused: BTreeMap::new(), has_begun: false }
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId { queue: 0, slot: self.requests, generation: 0 }
    }

    /// Proposes a request; its answer comes under the number that is returned.
    pub(crate) fn propose(&mut self, request: InternalRaftRequest) -> u64 {
        let of = self.request();
        self.raft.take(Input::Propose(Box::new(request), of)).unwrap();
        u64::from(of.slot)
    }

    pub(crate) fn change_members(&mut self, change: &Change) -> u64 {
        let of = self.request();
        self.raft.take(Input::ChangeMembers(change.clone(), of)).unwrap();
        u64::from(of.slot)
    }

    /// Why a request was refused, if it was.
    pub(crate) fn refused(&mut self, request: u64) -> Option<Outcome> {
        self.refused.remove(&request)
    }

    /// Why a change was refused.
    pub(crate) fn change_refused(&mut self, request: u64) -> ChangeError {
        match self.refused(request) {
            Some(Outcome::NotChanged(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn give_up(&mut self, request: u64) {
        let of = RequestId { queue: 0, slot: request as u32, generation: 0 };
        self.raft.take(Input::GiveUp(of)).unwrap();
    }

    pub(crate) fn read(&mut self, name: u64) {
        self.raft.take(Input::Read(reader(name))).unwrap();
    }

    pub(crate) fn cancel_read(&mut self, name: u64) {
        self.raft.take(Input::GiveUp(reader(name))).unwrap();
    }

    pub(crate) fn receive(&mut self, message: Message) -> driver::Result<()> {
        self.raft.receive(message)
    }

    pub(crate) fn copy_received(&mut self, copy: Received) {
        self.raft.take(Input::Copy(Box::new(copy))).unwrap();
    }

    pub(crate) fn copy_sent(&mut self, to: u64, arrived: bool) {
        self.raft.take(Input::CopySent { to, arrived }).unwrap();
    }

    pub(crate) fn written(&mut self, written: Written) -> Result<()> {
        self.raft.take(Input::Written(written))
    }

    pub(crate) fn store_committed(&mut self) -> Result<()> {
        let durable = Progress::read(&*self.apply.engine().snapshot().unwrap())?;
        self.raft.take(Input::Committed(durable))
    }

    pub(crate) fn tick(&mut self) {
        self.raft.tick();
    }

    /// Polls both until neither has something for the other.
    pub(crate) fn poll(&mut self, now: Duration) -> Result<Polled> {
        let mut polled = Polled::default();
        loop {
            let mut outputs = self.raft.poll(now)?;
            let work = std::mem::take(&mut outputs.apply);
            self.take_raft(outputs, &mut polled);
            work.into_iter().for_each(|work| self.apply.give(work));
            let begins = !std::mem::replace(&mut self.has_begun, true);
            if !begins && !self.apply.has_work() {
                return Ok(polled);
            }
            // The first step says what the start has found.
            let mut is_due = begins;
            while std::mem::take(&mut is_due) || self.apply.has_work() {
                let mut outputs = self.apply.step()?;
                let granted = std::mem::take(&mut outputs.granted);
                granted.into_iter().for_each(|lease| self.apply.leases().begin(lease, now));
                let applied = std::mem::take(&mut outputs.applied);
                self.raft.take(Input::Applied(Box::new(applied)))?;
                polled.steps.push(outputs.completions.len());
                self.sort(std::mem::take(&mut outputs.completions), &mut polled);
                polled.apply.push(outputs);
            }
        }
    }

    fn take_raft(&mut self, mut outputs: Outputs, polled: &mut Polled) {
        self.sort(std::mem::take(&mut outputs.completions), polled);
        let all = &mut polled.raft;
        all.send.extend(outputs.send);
        all.copies.extend(outputs.copies);
        all.write = all.write.take().or(outputs.write);
        all.purge = outputs.purge.or(all.purge);
        all.stops |= outputs.stops;
        all.commit_due |= outputs.commit_due;
    }

    fn sort(&mut self, completions: Vec<(RequestId, Outcome)>, polled: &mut Polled) {
        let mut gone = Vec::new();
        for (of, outcome) in completions {
            let name = u64::from(of.slot);
            match outcome {
                Outcome::Applied(answer) => polled.answers.push((name, answer)),
                Outcome::MayRead(applying) => {
                    gone.push(name);
                    polled.applying = Some(applying);
                }
                Outcome::MayNotRead(error) => polled.reads.push(Reads::Fail(error, vec![name])),
                refused => drop(self.refused.insert(name, refused)),
            }
        }
        if !gone.is_empty() {
            polled.reads.push(Reads::Go(gone));
        }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store<Progress>> {
        self.apply.store()
    }

    pub(crate) fn progress(&self) -> &Progress {
        self.apply.progress()
    }

    pub(crate) fn leases(&self) -> &Arc<Lessor> {
        self.apply.leases()
    }

    pub(crate) fn alarms(&self) -> &Arc<Alarms> {
        self.apply.alarms()
    }
}
