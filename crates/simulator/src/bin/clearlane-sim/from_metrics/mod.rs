//! `from-metrics`: what a server that runs is asked for, as a scenario.

mod fetch;
mod tls;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Arg, ArgMatches, Command, value_parser};
use clearlane_simulator::metrics::scenario_file::scenario_toml;
use clearlane_simulator::metrics::{MetricsDelta, Page};
use clearlane_simulator::scenario::Scenario;

use self::fetch::{Address, fetch};
use self::tls::Files;
use crate::progress::Progress;
use crate::text::{print_line, write};

pub(crate) fn command() -> Command {
    let path = |name: &'static str| {
        Arg::new(name).long(name).value_name("FILE").value_parser(value_parser!(PathBuf))
    };
    Command::new("from-metrics")
        .about("Reads the metrics of a server twice, and writes the scenario of its load")
        .arg(
            Arg::new("url")
                .value_name("URL")
                .required(true)
                .value_parser(|text: &str| text.parse::<Address>())
                .help("Of etcd from 3.3 on, or of Clearlane: http://127.0.0.1:2379"),
        )
        .arg(
            Arg::new("seconds")
                .long("seconds")
                .value_name("N")
                .default_value("10")
                .value_parser(value_parser!(u64).range(1..=3600))
                .help("Between the two readings"),
        )
        .args([
            path("out").help("Where the scenario goes; to standard output, if left out"),
            path("cacert").help(
                "Certificates trusted behind https; if left out, those that the system trusts",
            ),
            path("cert").requires("key").help("Our certificate, if the server wants one"),
            path("key").requires("cert").help("Its key"),
        ])
}

pub(crate) fn done(matches: &ArgMatches) -> Result<(), String> {
    let address: &Address = matches.get_one("url").expect("it is required");
    let seconds = *matches.get_one::<u64>("seconds").expect("it has a default");
    let file = |name| matches.get_one::<PathBuf>(name).cloned();
    let files = Files { trusted: file("cacert"), own: file("cert").zip(file("key")) };
    let of = |error: String| format!("{address}: {error}");
    let reading = read_twice(address, &files, seconds).map_err(of)?;
    let text = scenario_toml(&reading, &address.to_string());
    Scenario::parse(&text)
        .map_err(|error| of(format!("no scenario could be made of it: {error}")))?;
    match file("out") {
        Some(out) => write(&out, &text),
        None => print_line(&text),
    }
}

fn read_twice(address: &Address, files: &Files, seconds: u64) -> Result<MetricsDelta, String> {
    let page = || -> Result<(Page, Instant), String> {
        let text = fetch(address, files)?;
        Ok((Page::parse(&text).map_err(|error| error.to_string())?, Instant::now()))
    };
    let (first, at_first) = page()?;
    wait(seconds);
    let (second, at_second) = page()?;
    let between = (at_second - at_first).as_secs_f64();
    MetricsDelta::between(&first, &second, between).map_err(|error| error.to_string())
}

fn wait(seconds: u64) {
    let mut progress = Progress::of("reading metrics");
    let (start, whole) = (Instant::now(), Duration::from_secs(seconds));
    while let Some(left) = whole.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left.min(Duration::from_millis(200)));
        progress.say(start.elapsed().as_secs_f64() / whole.as_secs_f64());
    }
}
