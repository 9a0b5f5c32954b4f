//! `list`: prints scenarios, eras and knobs.

use clap::{Arg, ArgAction, ArgMatches, Command};
use clearlane_simulator::era::Era;
use clearlane_simulator::knobs::KNOBS;
use clearlane_simulator::shipped::Shipped;
use serde_json::json;

use crate::text::print_line;

pub(crate) fn command() -> Command {
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Prints JSON");
    Command::new("list")
        .about("Lists eras, the scenarios that ship with the program, and their fields")
        .arg(json)
}

pub(crate) fn done(matches: &ArgMatches) -> Result<(), String> {
    let eras = Era::ALL.map(|era| (era.name().to_owned(), about(era).to_owned()));
    let scenarios = Shipped::all().map(|shipped| (shipped.name.to_owned(), shipped.about()));
    let knobs = KNOBS.map(|(name, about)| (format!("model.{name}"), about.to_owned()));
    let others = OTHERS.map(|(name, about)| (name.to_owned(), about.to_owned()));
    let parts = [
        ("eras", eras.to_vec()),
        ("scenarios", scenarios.collect()),
        ("knobs", others.into_iter().chain(knobs).collect::<Vec<_>>()),
    ];
    if matches.get_flag("json") {
        let part = |(title, rows): (&str, Vec<(String, String)>)| {
            let rows =
                rows.into_iter().map(|(name, about)| json!({ "name": name, "about": about }));
            (title.to_owned(), rows.collect())
        };
        let parts: serde_json::Map<_, _> = parts.into_iter().map(part).collect();
        return print_line(&format!("{:#}\n", serde_json::Value::Object(parts)));
    }
    let titles = ["Eras (--era)", "Scenarios (run NAME)", "Fields (--set NAME=VALUE)"];
    let parts = titles.iter().zip(parts).map(|(title, (_, rows))| part(title, &rows));
    print_line(&parts.collect::<Vec<_>>().join("\n"))
}

/// Knobs outside of `[model]`.
const OTHERS: [(&str, &str); 4] = [
    ("seconds", "the length of the run"),
    ("seed", "the seed for times and sizes"),
    ("keys.FIELD", "a field of the key space: count, size, value"),
    ("CLASS.FIELD", "a field of a class: rate, arrivals, keys, limit, consistency, value"),
];

fn about(era: Era) -> &'static str {
    match era {
        Era::V3_0 => "all requests share one mutex, and linearizable reads go through the log",
        Era::V3_1 => "all requests share one mutex",
        Era::V3_2 => "3.2 and 3.3: reads share a lock until they end",
        Era::V3_4 => "each read copies the pending writes, and holds the lock only for the copy",
        Era::V3_5 => "3.5 and later: reads share a copy of the pending writes",
        Era::Clearlane => "a read takes a pointer to a snapshot, and no lock",
    }
}

fn part(title: &str, rows: &[(String, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let rows = rows.iter().map(|(name, about)| format!("  {name:width$}  {about}\n"));
    format!("{title}\n{}", rows.collect::<String>())
}
