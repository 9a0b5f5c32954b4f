//! Records a timeline of a world in a window of time. Or finds the longest wait of a request, so
//! that a second run can record the window around it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use clearlane_contention::TaskLabel;

use crate::timeline::{Activity, LaneKind, Span, Timeline};

/// Selects the recorded data of a run. The same seed gives the same run, so a second run can record
/// the window that the first run has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recorded {
    #[default]
    Nothing,
    /// Finds the longest wait of a request, and records no timeline.
    LongestWait,
    /// Records from the first time to the second, in nanoseconds.
    Window(u64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane(u32);

#[derive(Debug, Default)]
pub(crate) struct Recorder {
    recorded: Cell<Recorded>,
    longest_wait: Cell<Option<(u64, u64)>>,
    lanes: RefCell<Vec<(String, LaneKind)>>,
    numbers: RefCell<BTreeMap<TaskLabel, u64>>,
    spans: RefCell<Vec<Span>>,
}

impl Recorder {
    pub(crate) fn begin(&self, recorded: Recorded) {
        self.recorded.set(recorded);
    }

    /// Returns a new lane, or `None` if nothing is recorded or the window has ended.
    pub(crate) fn lane(&self, actor: TaskLabel, kind: LaneKind, now_ns: u64) -> Option<Lane> {
        match self.recorded.get() {
            Recorded::Nothing => return None,
            Recorded::Window(_, to_ns) if now_ns >= to_ns => return None,
            Recorded::Window(..) | Recorded::LongestWait => {}
        }
        let mut numbers = self.numbers.borrow_mut();
        let number = numbers.entry(actor).or_default();
        *number += 1;
        let mut lanes = self.lanes.borrow_mut();
        lanes.push((format!("{} #{number}", actor.name()), kind));
        Some(Lane(lanes.len() as u32 - 1))
    }

    pub(crate) fn name(&self, lane: Lane) -> String {
        self.lanes.borrow()[lane.0 as usize].0.clone()
    }

    pub(crate) fn add(
        &self,
        lane: Lane,
        what: impl FnOnce() -> Activity,
        from_ns: u64,
        to_ns: u64,
    ) {
        match self.recorded.get() {
            Recorded::Nothing => {}
            Recorded::LongestWait => self.compare(lane, what, from_ns, to_ns),
            Recorded::Window(begin_ns, end_ns) => {
                let (from_ns, to_ns) = (from_ns.max(begin_ns), to_ns.min(end_ns));
                if from_ns < to_ns {
                    let (lane, kind) = self.lanes.borrow()[lane.0 as usize].clone();
                    let span = Span { lane, kind, activity: what(), from_ns, to_ns };
                    self.spans.borrow_mut().push(span);
                }
            }
        }
    }

    /// Keeps this span as the longest wait if a request waits for another task in it, and if it is
    /// longer than every wait so far.
    fn compare(&self, lane: Lane, what: impl FnOnce() -> Activity, from_ns: u64, to_ns: u64) {
        let longest = self.longest_wait.get().map_or(0, |(from_ns, to_ns)| to_ns - from_ns);
        if to_ns - from_ns <= longest || self.lanes.borrow()[lane.0 as usize].1 == LaneKind::Work {
            return;
        }
        if matches!(what(), Activity::Wait { blocker: Some(_), .. }) {
            self.longest_wait.set(Some((from_ns, to_ns)));
        }
    }

    pub(crate) fn longest_wait(&self) -> Option<(u64, u64)> {
        self.longest_wait.get()
    }

    pub(crate) fn take(&self) -> Timeline {
        Timeline { spans: self.spans.take() }
    }
}
