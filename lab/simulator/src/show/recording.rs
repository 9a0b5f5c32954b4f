//! A timeline together with the facts that are known about it.

use clearlane_contention::era_colours::{ColourPair, era_colour};
use clearlane_contention::wait_chain::{self, WaitChains};

use crate::timeline::{
    Activity, LaneKind, Span, Timeline, TimelineError, TimelineHeader, lane_class,
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// The name of the file.
    pub name: String,
    pub header: TimelineHeader,
    pub timeline: Timeline,
}

impl Recording {
    pub fn parse(name: &str, text: &str) -> Result<Recording, TimelineError> {
        let header = TimelineHeader::of(text)?.unwrap_or_default();
        Ok(Recording { name: name.to_owned(), header, timeline: text.parse()? })
    }

    /// Returns the part of the recording between two times.
    pub fn slice(&self, (from_ns, to_ns): (u64, u64)) -> Recording {
        let (name, header) = (self.name.clone(), self.header.clone());
        Recording { name, header, timeline: self.timeline.slice(from_ns, to_ns) }
    }

    /// Returns the era, or the name if the era is not known.
    pub fn title(&self) -> String {
        match &self.header.era {
            Some(era) => format!("era {era}"),
            None => self.name.replace('-', " "),
        }
    }

    /// Returns the known facts about the recording.
    pub fn about(&self) -> String {
        let TimelineHeader { recorded, scenario, details, .. } = &self.header;
        let scenario = scenario.as_ref().map(|name| format!("scenario {name}"));
        let recorded = (!recorded.is_empty()).then(|| recorded.clone());
        let all = [scenario, recorded, details.clone()];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    pub fn colours(&self) -> Option<ColourPair> {
        era_colour(self.header.era.as_deref()?)
    }

    /// Returns the longest wait of a request and its causes. The result is empty if no request
    /// waits for a known blocker.
    pub fn longest_chain(&self) -> Vec<&Span> {
        let wait = wait_chain::longest_wait(&self.timeline);
        wait.map_or(Vec::new(), |wait| WaitChains::new(&self.timeline).chain(wait))
    }

    /// Returns the lanes of a chain, and then the other lanes in the order of their first spans.
    pub(super) fn lanes(&self, chain: &[&Span]) -> Vec<(&str, LaneKind)> {
        let mut lanes = self.timeline.lanes();
        let place = |lane: &str| chain.iter().position(|span| span.lane == lane);
        lanes.sort_by_key(|(lane, _)| place(lane).unwrap_or(usize::MAX));
        lanes
    }
}

/// Returns one description for all recordings. If they differ, it describes each recording.
pub(super) fn about_all(recordings: &[Recording]) -> String {
    let mut all: Vec<String> = recordings.iter().map(Recording::about).collect();
    all.dedup();
    all.join("; ")
}

/// Describes a chain: `put #2 waits 51.0 ms for readTx, behind list #1, which has readTx for 90.0
/// ms`.
///
/// A cause may have started long before the wait, or take only a part of it. So the time of a cause
/// is the time during which all spans of the chain so far overlap, and the words `of it` follow.
/// Only a hold that covers this time has its whole length.
pub fn sentence(chain: &[&Span]) -> String {
    let Some((wait, causes)) = chain.split_first() else {
        return "no request waits for another".to_owned();
    };
    let mut words = format!("{} {}", wait.lane, doing(wait, &super::time(wait.length_ns())));
    let mut last = wait;
    let mut interval = (wait.from_ns, wait.to_ns);
    for cause in causes {
        match cause.lane == last.lane {
            true => words += " and ",
            false => words += &format!(", behind {}, which ", cause.lane),
        }
        let whole_ns = interval.1 - interval.0;
        interval = (interval.0.max(cause.from_ns), interval.1.min(cause.to_ns));
        let part_ns = interval.1.saturating_sub(interval.0);
        let is_hold = matches!(cause.activity, Activity::Hold { .. });
        words += &match is_hold && part_ns == whole_ns {
            true => doing(cause, &super::time(cause.length_ns())),
            false => doing(cause, &format!("{} of it", super::time(part_ns))),
        };
        last = cause;
    }
    // If the last span is a wait, no cause of it follows in the chain. So its blocker is only
    // named.
    if let Activity::Wait { blocker: Some(blocker), .. } = &last.activity {
        words += &format!(", behind {blocker}");
    }
    words
}

/// Compares the longest waits of several recordings, in one line: `In short: era 3.2: a put waited
/// 51.0 ms (a long range had readTx); era clearlane: a put waited 0.8 ms (for the disk)`.
pub fn conclusion<'a>(recordings: impl Iterator<Item = &'a Recording>) -> String {
    let of = |recording: &Recording| {
        let chain = recording.longest_chain();
        let words = match chain.first() {
            Some(wait) => {
                let class = with_article(wait);
                let ms = wait.length_ns() as f64 / 1e6;
                format!("{class} waited {ms:.1} ms{}", reason(&chain))
            }
            None => "no request waited for another".to_owned(),
        };
        format!("{}: {words}", recording.title())
    };
    format!("In short: {}", recordings.map(of).collect::<Vec<_>>().join("; "))
}

/// Describes the last span of a chain, in parentheses.
fn reason(chain: &[&Span]) -> String {
    let Some(last) = chain.last() else { return String::new() };
    let words = match &last.activity {
        Activity::Hold { resource } => format!("{} had {resource}", with_article(last)),
        Activity::Disk => "for the disk".to_owned(),
        Activity::Network => "for a message".to_owned(),
        Activity::Core => "for a core".to_owned(),
        Activity::Run => format!("{} ran", with_article(last)),
        Activity::Wait { resource, .. } => format!("for {resource}"),
    };
    format!(" ({words})")
}

/// Returns the class of the span's lane with an article: `a put`, `the applier`.
fn with_article(span: &Span) -> String {
    let class = lane_class(&span.lane);
    let article = match span.kind {
        LaneKind::Work => "the",
        _ if class.starts_with(['a', 'e', 'i', 'o', 'u']) => "an",
        _ => "a",
    };
    format!("{article} {class}")
}

fn doing(span: &Span, time: &str) -> String {
    match &span.activity {
        Activity::Run => format!("runs for {time}"),
        Activity::Core => format!("waits {time} for a core"),
        Activity::Wait { resource, .. } => format!("waits {time} for {resource}"),
        Activity::Disk => format!("waits {time} for the disk"),
        Activity::Network => format!("waits {time} for its message"),
        Activity::Hold { resource } => format!("has {resource} for {time}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{hold, span, wait};
    use super::*;

    fn recording(spans: Vec<Span>) -> Recording {
        Recording { timeline: Timeline { spans }, ..Recording::default() }
    }

    #[test]
    fn the_chain_of_the_longest_wait_is_a_sentence_and_has_the_first_lanes() {
        let recording = recording(vec![
            span("log", Activity::Disk, 0, 90_000_000),
            span("list #1", hold("readTx"), 0, 40_000_000),
            span("commit", hold("batchTx"), 2_000_000, 41_000_000),
            span("commit", wait("readTx", "list #1"), 3_000_000, 40_000_000),
            span("get #2", wait("batchTx", "commit"), 5_000_000, 41_000_000),
        ]);
        let chain = recording.longest_chain();
        assert_eq!(
            sentence(&chain),
            "get #2 waits 36.0 ms for batchTx, behind commit, which has batchTx for 39.0 ms and \
             waits 35.0 ms of it for readTx, behind list #1, which has readTx for 40.0 ms"
        );
        let lanes: Vec<_> = recording.lanes(&chain).into_iter().map(|(lane, _)| lane).collect();
        assert_eq!(lanes, ["get #2", "commit", "list #1", "log"]);
    }

    /// The apply loop was idle for long before the put, and the log also writes another batch.
    #[test]
    fn the_times_of_causes_are_those_within_the_wait() {
        let recording = recording(vec![
            span("put #1", wait("the applier", "applier"), 60_000_000, 60_800_000),
            span("applier", wait("the raft", "raft"), 0, 60_700_000),
            span("raft", wait("the log", "log"), 60_100_000, 60_700_000),
            span("log", Activity::Disk, 60_050_000, 60_600_000),
        ]);
        assert_eq!(
            sentence(&recording.longest_chain()),
            "put #1 waits 800.0 µs for the applier, behind applier, which waits 700.0 µs of it for \
             the raft, behind raft, which waits 600.0 µs of it for the log, behind log, which \
             waits 500.0 µs of it for the disk"
        );
    }

    #[test]
    fn a_hold_of_a_part_of_the_wait_has_the_time_of_this_part() {
        let recording = recording(vec![
            span("get #2", wait("readTx", "put #1"), 10_000_000, 50_000_000),
            span("put #1", hold("readTx"), 0, 45_000_000),
        ]);
        let words =
            "get #2 waits 40.0 ms for readTx, behind put #1, which has readTx for 35.0 ms of it";
        assert_eq!(sentence(&recording.longest_chain()), words);
    }

    #[test]
    fn what_is_not_recorded_is_not_told() {
        let alone = recording(vec![span("get #2", wait("batchTx", "commit"), 0, 5_000)]);
        let words = "get #2 waits 5000 ns for batchTx, behind commit";
        assert_eq!(sentence(&alone.longest_chain()), words);
        let calm = recording(vec![span("get #2", Activity::Run, 0, 5_000)]);
        assert_eq!(sentence(&calm.longest_chain()), "no request waits for another");
        assert_eq!((calm.title().as_str(), calm.about().as_str()), ("", ""));
    }

    #[test]
    fn a_conclusion_compares_the_longest_waits() {
        let of_era = |era: &str, spans: Vec<Span>| {
            let header = TimelineHeader { era: Some(era.to_owned()), ..TimelineHeader::default() };
            Recording { header, ..recording(spans) }
        };
        let all = [
            of_era(
                "3.2",
                vec![
                    span("list #1", hold("readTx"), 0, 40_000_000),
                    span("applier", wait("readTx", "list #1"), 3_000_000, 40_000_000),
                    span("put #2", wait("the applier", "applier"), 13_000_000, 40_000_000),
                ],
            ),
            of_era(
                "clearlane",
                vec![
                    span("log", Activity::Disk, 0, 800_000),
                    span("put #2", wait("the log", "log"), 0, 800_000),
                ],
            ),
            of_era("3.4", vec![span("put #2", Activity::Run, 0, 5)]),
        ];
        assert_eq!(
            conclusion(all.iter()),
            "In short: era 3.2: a put waited 27.0 ms (a list had readTx); era clearlane: a put \
             waited 0.8 ms (for the disk); era 3.4: no request waited for another"
        );
    }

    #[test]
    fn a_title_has_the_era_and_what_was_recorded() {
        let line =
            r#"{"recorded":"the model","scenario":"convoy","era":"3.2","details":"2 cores"}"#;
        let recording = Recording::parse("a-b", line).expect("a header");
        assert_eq!(recording.title(), "era 3.2");
        assert_eq!(recording.about(), "scenario convoy, the model, 2 cores");
        assert_eq!(recording.colours(), era_colour("3.2"));
        assert_eq!(Recording::parse("a-b", "").expect("nothing").title(), "a b");
    }
}
