//! For the Perfetto UI, and chrome://tracing: the JSON format of trace events.
//!
//! A track for each lane, and one for each lock, which shows every task that has it. An arrow goes
//! from the task that stood in front to the one that waited, where the wait ends.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::words;
use crate::timeline::{Activity, Timeline};

/// The processes under which tracks are shown.
const LANES: u32 = 1;
const LOCKS: u32 = 2;

/// Writes it.
pub fn json(timeline: &Timeline) -> Value {
    let lanes: BTreeMap<&str, usize> =
        timeline.lanes().iter().enumerate().map(|(at, (lane, _))| (*lane, at + 1)).collect();
    let mut locks = BTreeMap::<&str, usize>::new();
    let mut events = vec![named(LANES, None, "requests and workers"), named(LOCKS, None, "locks")];
    for (lane, track) in &lanes {
        events.push(named(LANES, Some(*track), lane));
    }
    for (number, span) in timeline.spans.iter().enumerate() {
        let (from, took) = (us(span.from_ns), us(span.to_ns - span.from_ns));
        let track = lanes[span.lane.as_str()];
        if let Activity::Hold { resource: of } = &span.activity {
            let next = locks.len() + 1;
            let lock = *locks.entry(of).or_insert(next);
            // Readers hold it side by side, so these are no slices of one stack.
            for (phase, at) in [("b", span.from_ns), ("e", span.to_ns)] {
                events.push(json!({
                    "ph": phase, "cat": of, "id": number, "name": span.lane,
                    "pid": LOCKS, "tid": lock, "ts": us(at),
                }));
            }
            continue;
        }
        events.push(json!({
            "ph": "X", "cat": span.kind.name(), "name": words(span),
            "pid": LANES, "tid": track, "ts": from, "dur": took,
        }));
        if let Activity::Wait { blocker: Some(behind), .. } = &span.activity
            && let Some(front) = lanes.get(behind.as_str())
        {
            for (phase, track, at) in [("s", *front, span.from_ns), ("f", track, span.to_ns)] {
                events.push(json!({
                    "ph": phase, "bp": "e", "cat": "waits", "name": "waits behind", "id": number,
                    "pid": LANES, "tid": track, "ts": us(at),
                }));
            }
        }
    }
    for (lock, track) in locks {
        events.push(named(LOCKS, Some(track), lock));
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events })
}

/// Trace events are in microseconds.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn named(process: u32, track: Option<usize>, name: &str) -> Value {
    let args = json!({ "name": name });
    match track {
        None => json!({ "ph": "M", "name": "process_name", "pid": process, "args": args }),
        Some(track) => {
            json!({ "ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": args })
        }
    }
}
