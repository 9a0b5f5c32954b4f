//! `record`: runs the real server under a scenario's load, and records a timeline of the longest
//! wait.
//!
//! ```text
//!   start ─ fill ─ stop ─ start, recording ─ load ─ stop ─ the file, cut to the window
//! ```
//!
//! Requests are due at the same times in all eras. So all recordings are cut to the same window,
//! counted from the first request. The window is around the longest wait of a request in any era.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Command};
use clearlane_contention::wait_chain::{longest_wait, window_of_longest_wait};
use clearlane_simulator::era::Era;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::show::Recording;
use clearlane_simulator::timeline::{LaneKind, Span, Timeline};

use crate::real::{Program, Server, arguments};
use crate::scenario_arguments::{ScenarioArguments, with_scenario};
use crate::text::{print_line, print_progress};
use crate::timeline_files;
use crate::validate::on_this_machine;

/// Length of the first part of a run, which is not shown. In this part, long responses of a new
/// server take longer than later ones. At most a third of the load is omitted.
const START_NS: u64 = 2_000_000_000;

const ERAS: [Era; 2] = [Era::V3_2, Era::Clearlane];

pub(crate) fn command() -> Command {
    let about = "Records the real server under a scenario's load, around the longest wait";
    with_scenario(Command::new("record").about(about), &ERAS)
        .args(arguments())
        .arg(timeline_files::argument().required(true))
        .mut_arg("costs", |argument| argument.hide(true))
        .mut_arg("cores", |argument| argument.hide(true))
        .mut_arg("json", |argument| argument.hide(true))
}

pub(crate) fn done(matches: &ArgMatches) -> Result<(), String> {
    let program = Program::of(matches)?;
    let mut asked = ScenarioArguments::of(matches)?;
    asked.scenario = on_this_machine(&asked.scenario).map_err(|error| asked.wrong(error))?;
    let mut timelines = Vec::new();
    for era in &asked.eras {
        let seconds = asked.scenario.workload.seconds;
        print_progress(&format!("{}: era {era}, {seconds} s on the real server", asked.name));
        let recorded = record(&program, *era, &asked.scenario);
        let recorded = recorded.map_err(|error| asked.wrong_in(*era, error))?;
        timelines.push(since_the_first_request(&recorded));
    }
    let window = window(&timelines, asked.scenario.workload.seconds);
    let recordings = asked.eras.iter().zip(timelines).map(|(era, timeline)| {
        let timeline = window.map_or(timeline.clone(), |(from, to)| timeline.slice(from, to));
        let header = asked.timeline_header("the real server", *era);
        (*era, Recording { name: asked.title(), header, timeline })
    });
    let recordings: Vec<(Era, Recording)> = recordings.collect();
    let file: &PathBuf = matches.get_one("timeline").expect("it is required");
    print_line(&timeline_files::write_each(file, &recordings)?)
}

fn record(program: &Program, era: Era, scenario: &Scenario) -> Result<Timeline, String> {
    let mut server = Server::start(program, era, &scenario.workload.space)?;
    server.restart_with_recording()?;
    server.load(&scenario.workload, scenario.seed, Duration::ZERO)?;
    server.stop_and_read()
}

/// Returns the timeline with times that count from the start of the first request. Omits spans that
/// end before this time.
fn since_the_first_request(timeline: &Timeline) -> Timeline {
    let requests = timeline.spans.iter().filter(|span| span.kind != LaneKind::Work);
    let zero_ns = requests.map(|span| span.from_ns).min().unwrap_or(0);
    let shifted = |span: &Span| {
        let [from_ns, to_ns] = [span.from_ns, span.to_ns].map(|ns| ns.saturating_sub(zero_ns));
        (from_ns < to_ns).then(|| Span { from_ns, to_ns, ..span.clone() })
    };
    Timeline { spans: timeline.spans.iter().filter_map(shifted).collect() }
}

/// Returns the window around the longest wait of a request in any timeline. Ignores the first part
/// of the run ([`START_NS`]). Returns `None` if no request waits after this part.
fn window(timelines: &[Timeline], seconds: u64) -> Option<(u64, u64)> {
    let start_ns = START_NS.min(seconds * 1_000_000_000 / 3);
    let counted = timelines.iter().map(|timeline| timeline.slice(start_ns, u64::MAX));
    let counted: Vec<Timeline> = counted.collect();
    let wait_ns = |timeline: &&Timeline| longest_wait(timeline).map_or(0, Span::length_ns);
    window_of_longest_wait(counted.iter().max_by_key(wait_ns)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(lines: &[(&str, &str, u64, u64)]) -> Timeline {
        let line = |(lane, kind, from, to): &(&str, &str, u64, u64)| {
            let wait = r#""what":"wait","of":"readTx","behind":"list #1""#;
            format!(r#"{{"lane":"{lane}","kind":"{kind}",{wait},"from":{from},"to":{to}}}"#)
        };
        lines.iter().map(line).collect::<Vec<_>>().join("\n").parse().unwrap()
    }

    #[test]
    fn the_window_is_that_of_the_longest_wait_of_all_after_the_start() {
        const MS: u64 = 1_000_000;
        let one = timeline(&[
            ("applier", "work", 0, 900 * MS),
            ("put #1", "write", 500 * MS, 900 * MS),
            ("put #2", "write", 3_500 * MS, 3_600 * MS),
        ]);
        let other = timeline(&[("put #2", "write", 3_100 * MS, 3_101 * MS)]);
        let one = since_the_first_request(&one);
        let ends: Vec<_> =
            one.spans.iter().map(|span| (span.from_ns / MS, span.to_ns / MS)).collect();
        assert_eq!(ends, [(0, 400), (0, 400), (3_000, 3_100)]);
        let timelines = [one, since_the_first_request(&other)];
        assert_eq!(window(&timelines, 6), Some((2_985 * MS, 3_115 * MS)));
        assert_eq!(window(&[Timeline::default()], 6), None);
    }
}
