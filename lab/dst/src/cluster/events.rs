//! Events: functions of the cluster that are called at their planned time.
//!
//! An event *at* a member is deferred while the member's process is paused. A *step* of a member is
//! an event of one process: it is dropped if that process has ended. Each step writes a line of the
//! trace.

use std::fmt;

use super::Cluster;
use crate::checkers::CheckResult;
use crate::event_queue::{EventQueue, Micros};
use crate::machine::Machine;

pub(super) struct Event {
    /// The member at which the event happens, if any.
    member: Option<u64>,
    /// For a step: the incarnation of the process, and a description for the trace.
    step: Option<(u64, &'static str)>,
    action: Box<dyn FnOnce(&mut Cluster) -> CheckResult>,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { member, step, .. } = self;
        write!(f, "Event at {member:?}: {step:?}")
    }
}

/// The result of an action: nothing, or the result of a check.
pub(super) trait Outcome {
    fn verdict(self) -> CheckResult;
}

impl Outcome for () {
    fn verdict(self) -> CheckResult {
        Ok(())
    }
}

impl Outcome for CheckResult {
    fn verdict(self) -> CheckResult {
        self
    }
}

impl EventQueue<Event> {
    pub(super) fn plan<O: Outcome>(
        &mut self,
        wait: Micros,
        action: impl FnOnce(&mut Cluster) -> O + 'static,
    ) {
        self.plan_at(None, wait, action);
    }

    pub(super) fn plan_at<O: Outcome>(
        &mut self,
        member: Option<u64>,
        wait: Micros,
        action: impl FnOnce(&mut Cluster) -> O + 'static,
    ) {
        let action = Box::new(|cluster: &mut Cluster| action(cluster).verdict());
        self.schedule(wait, Event { member, step: None, action });
    }
}

impl Cluster {
    /// Plans a step of the member's present incarnation.
    pub(super) fn plan_step<O: Outcome>(
        &mut self,
        id: u64,
        wait: Micros,
        words: &'static str,
        step: impl FnOnce(&mut Cluster, u64) -> O + 'static,
    ) {
        let Some(machine) = self.machines.get(&id) else { return };
        let action = Box::new(move |cluster: &mut Cluster| step(cluster, id).verdict());
        let step = Some((machine.incarnation, words));
        self.events.schedule(wait, Event { member: Some(id), step, action });
    }

    pub(super) fn handle_event(&mut self, event: Event) -> CheckResult {
        let now = self.events.now();
        let machine = event.member.and_then(|id| self.machines.get(&id));
        if let Some(until) = machine.map(|it| it.paused_until).filter(|until| *until > now) {
            self.events.schedule(until - now, event);
            return Ok(());
        }
        if let Some((incarnation, words)) = event.step {
            let is_alive =
                |machine: &Machine| machine.incarnation == incarnation && machine.running.is_some();
            let Some(machine) = machine.filter(|it| is_alive(it)) else { return Ok(()) };
            self.trace.record(now, format_args!("{} {words}", machine.id));
        }
        (event.action)(self)
    }
}
