//! `show`: shows a timeline in the terminal, as an SVG picture, as a picture of which request waits
//! for which, as an HTML page, or as a table of where the time went. The HTML page and the picture
//! of waits can show two timelines.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command, value_parser};
use clearlane_contention::wait_chain::{longest_wait, window_of_longest_wait};
use clearlane_simulator::show::{Recording, blame, chain, html, svg, terminal};
use clearlane_simulator::timeline::Span;

use crate::text::{file, print_line, read};

const LANES_MAX: usize = 60;
const NS_PER_MS: f64 = 1e6;

pub(crate) fn command() -> Command {
    let time = |name: &'static str| {
        Arg::new(name).long(name).value_name("MS").value_parser(value_parser!(f64))
    };
    Command::new("show")
        .about("Shows a timeline")
        .arg(file("file").help("A timeline of `run --timeline` or `clearlane --timeline`"))
        .arg(
            file("beside")
                .required(false)
                .value_name("FILE2")
                .help("A second timeline on the same time axis, with `--as html` or `--as chain`"),
        )
        .arg(
            Arg::new("as")
                .long("as")
                .value_name("FORM")
                .default_value("terminal")
                .value_parser(["terminal", "svg", "chain", "html", "blame"])
                .help(
                    "Text for this terminal, an SVG picture of all lanes, an SVG picture of which \
                     request waits for which, an HTML page, or a table of causes",
                ),
        )
        .arg(time("from").help(
            "Shows the timeline from this time on, by its own clock; without --from and --for, a \
             picture shows the longest wait of a request, and a page starts there",
        ))
        .arg(time("for").help("Length of the shown part"))
}

pub(crate) fn done(asked: &ArgMatches) -> Result<(), String> {
    let form: &String = asked.get_one("as").expect("it has a default");
    let files = ["file", "beside"].into_iter().filter_map(|name| asked.get_one::<PathBuf>(name));
    let recordings: Vec<Recording> = files.map(|path| recording(path)).collect::<Result<_, _>>()?;
    if recordings.len() > 1 && !["html", "chain"].contains(&form.as_str()) {
        return Err(format!(
            "`--as {form}` shows one timeline; use `--as html` or `--as chain` for two"
        ));
    }
    let recordings = cut(recordings, asked, form);
    let first = &recordings[0];
    match form.as_str() {
        "html" => print_line(&html::page(&recordings)),
        "chain" => print_line(&chain::draw(&recordings)),
        "svg" => print_line(&svg::draw(first)),
        "blame" => print_line(&blame::table(&first.timeline)),
        _ => {
            let width = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
            let width = usize::clamp(width.unwrap_or(120), 40, 1000) - 20;
            let has_colours = io::stdout().is_terminal();
            let style = terminal::Style { width, lanes_max: LANES_MAX, has_colours };
            print_line(&terminal::draw(first, style))
        }
    }
}

/// Cuts the recordings to the requested part.
///
/// If no part is requested, a page and the table of blame show everything. A picture shows a window
/// around the longest wait of a request in any recording. The other recordings are cut to the same
/// window. A recording that has no spans in this window must have a different clock. It is then cut
/// to the window at the same distance from its own start.
fn cut(recordings: Vec<Recording>, asked: &ArgMatches, form: &str) -> Vec<Recording> {
    let ns = |name: &str| asked.get_one::<f64>(name).map(|ms| (ms * NS_PER_MS).max(0.0) as u64);
    let begin_of =
        |recording: &Recording| recording.timeline.bounds().map_or(0, |(from_ns, _)| from_ns);
    if ns("from").is_some() || ns("for").is_some() {
        let part = |recording: &Recording| {
            let from_ns = ns("from").unwrap_or_else(|| begin_of(recording));
            let to_ns = ns("for").map_or(u64::MAX, |length_ns| from_ns.saturating_add(length_ns));
            recording.slice((from_ns, to_ns))
        };
        return recordings.iter().map(part).collect();
    }
    let wait = |recording: &Recording| longest_wait(&recording.timeline).map_or(0, Span::length_ns);
    let Some(longest) = recordings.iter().max_by_key(|recording| wait(recording)) else {
        return recordings;
    };
    let Some((from_ns, to_ns)) = window_of_longest_wait(&longest.timeline) else {
        return recordings;
    };
    if ["html", "blame"].contains(&form) {
        return recordings;
    }
    let its_begin_ns = begin_of(longest);
    let part = |recording: &Recording| {
        let is_one_clock = !recording.timeline.slice(from_ns, to_ns).spans.is_empty();
        let begin_ns = if is_one_clock { its_begin_ns } else { begin_of(recording) };
        let shifted = |ns: u64| (ns + begin_ns).saturating_sub(its_begin_ns);
        recording.slice((shifted(from_ns), shifted(to_ns)))
    };
    recordings.iter().map(part).collect()
}

fn recording(path: &Path) -> Result<Recording, String> {
    let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
    Recording::parse(&name, &read(path)?).map_err(|error| format!("{}: {error}", path.display()))
}
