//! `show`: a timeline as text, picture, chain of waits, page or table of blame; as a page or a
//! chain also two of them.

use std::io::{self, IsTerminal};
use std::iter;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command, value_parser};
use clearlane_simulator::show::{blame, chain, html, svg, terminal};
use clearlane_simulator::timeline::Timeline;

use crate::text::{file, print_line, read};

const LANES_MAX: usize = 60;
const NS_PER_MS: f64 = 1e6;

pub(crate) fn command() -> Command {
    let time = |name: &'static str| {
        Arg::new(name).long(name).value_name("MS").value_parser(value_parser!(f64))
    };
    Command::new("show")
        .about("Shows a timeline")
        .arg(file("file").help("As `run --timeline` writes it, or `clearlane --timeline`"))
        .arg(
            file("beside")
                .required(false)
                .value_name("FILE2")
                .help("A second one on the same axis of time, with `--as html` or `--as chain`"),
        )
        .arg(
            Arg::new("as")
                .long("as")
                .value_name("FORM")
                .default_value("terminal")
                .value_parser(["terminal", "svg", "chain", "html", "blame"])
                .help(
                    "For this terminal, as a picture of all lanes, as a picture of which request \
                     waits for which, as a page for a browser, or as a table of where the time went",
                ),
        )
        .arg(time("from").help("Shows what was from then on, by the timeline's clock"))
        .arg(time("for").help("Shows so much"))
}

pub(crate) fn done(asked: &ArgMatches) -> Result<(), String> {
    let ns = |name: &str| asked.get_one::<f64>(name).map(|ms| (ms * NS_PER_MS).max(0.0) as u64);
    let from_ns = ns("from");
    let length_ns = ns("for");
    let recorded = |path: &PathBuf| {
        let (title, timeline) = recorded(path)?;
        let begin_ns = from_ns.or(timeline.bounds().map(|(begin_ns, _)| begin_ns)).unwrap_or(0);
        let end_ns = length_ns.map_or(u64::MAX, |length_ns| begin_ns.saturating_add(length_ns));
        Ok::<_, String>((title, timeline.slice(begin_ns, end_ns)))
    };
    let (first, timeline) = recorded(asked.get_one("file").expect("it is required"))?;
    let beside = asked.get_one("beside").map(recorded).transpose()?;
    let form: &String = asked.get_one("as").expect("it has a default");
    let second = beside.as_ref().map(|(title, timeline)| (title.as_str(), timeline));
    let shown: Vec<_> = iter::once((first.as_str(), &timeline)).chain(second).collect();
    match form.as_str() {
        "html" => print_line(&html::page(&shown)),
        "chain" => print_line(&chain::draw(&shown)),
        _ if beside.is_some() => Err(format!(
            "`--as {form}` shows one timeline; two are shown with `--as html` and `--as chain`"
        )),
        "svg" => print_line(&svg::draw(&timeline)),
        "blame" => print_line(&blame::table(&timeline)),
        _ => {
            let width = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
            let width = usize::clamp(width.unwrap_or(120), 40, 1000) - 20;
            let has_colours = io::stdout().is_terminal();
            let style = terminal::Style { width, lanes_max: LANES_MAX, has_colours };
            print_line(&terminal::draw(&timeline, style))
        }
    }
}

/// A title and the timeline.
fn recorded(path: &Path) -> Result<(String, Timeline), String> {
    let timeline: Result<Timeline, _> = read(path)?.parse();
    let timeline = timeline.map_err(|error| format!("{}: {error}", path.display()))?;
    let title = path.file_stem().unwrap_or(path.as_os_str());
    Ok((title.to_string_lossy().into_owned(), timeline))
}
