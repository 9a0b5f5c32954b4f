//! Records a timeline of a world, between two moments.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use clearlane_contention::TaskLabel;

use crate::timeline::{Activity, LaneKind, Span, Timeline};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane(u32);

#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Beginning and end.
    window: Cell<Option<(u64, u64)>>,
    lanes: RefCell<Vec<(String, LaneKind)>>,
    numbers: RefCell<BTreeMap<TaskLabel, u64>>,
    spans: RefCell<Vec<Span>>,
}

impl Recorder {
    pub(crate) fn begin(&self, from_ns: u64, to_ns: u64) {
        self.window.set(Some((from_ns, to_ns)));
    }

    /// `None` if nothing is recorded, or the window has ended.
    pub(crate) fn lane(&self, actor: TaskLabel, kind: LaneKind, now_ns: u64) -> Option<Lane> {
        let (_, to_ns) = self.window.get()?;
        if now_ns >= to_ns {
            return None;
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
        let Some((begin_ns, end_ns)) = self.window.get() else { return };
        let (from_ns, to_ns) = (from_ns.max(begin_ns), to_ns.min(end_ns));
        if from_ns < to_ns {
            let (lane, kind) = self.lanes.borrow()[lane.0 as usize].clone();
            self.spans.borrow_mut().push(Span { lane, kind, activity: what(), from_ns, to_ns });
        }
    }

    pub(crate) fn take(&self) -> Timeline {
        Timeline { spans: self.spans.take() }
    }
}
