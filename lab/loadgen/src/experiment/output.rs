//! Writes the reports into a directory, and a page with links to them.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use serde_json::Value;

use super::Experiment;
use super::check::Verdict;
use super::findings::{Conditions, Findings};
use crate::page::{self, Section};
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Output {
    dir: PathBuf,
    /// The skipped experiments with the reasons.
    skipped: Vec<(String, String)>,
}

const ABOUT: &str = "Others have published each experiment about etcd. Here it is repeated with \
                     each generation of etcd's read path, with this server's own read path, and \
                     with etcd itself if it was given.";

impl Output {
    /// Creates the directory. Call it before anything is measured, so that an error does not lose
    /// results.
    pub(super) fn new(dir: &Path) -> Result<Output> {
        fs::create_dir_all(dir).map_err(|error| of_file(dir, &error))?;
        Ok(Output { dir: dir.to_owned(), skipped: Vec::new() })
    }

    /// Writes a report. Returns the path of its page.
    pub(super) fn report(
        &self,
        findings: &Findings,
        conditions: &Conditions<'_>,
    ) -> Result<PathBuf> {
        let Experiment { name, title, .. } = conditions.experiment;
        let sections = findings.sections(conditions);
        self.write(&format!("{name}.md"), &page::markdown(title, &sections))?;
        self.write(&format!("{name}.svg"), findings.first_figure().unwrap_or_default())?;
        self.write(&format!("{name}.json"), &format!("{:#}\n", findings.json(conditions)))?;
        let path = self.write(&format!("{name}.html"), &page::html(title, &sections))?;
        self.write_index()?;
        Ok(path)
    }

    pub(super) fn add_skipped(&mut self, name: &str, reason: &str) -> Result<()> {
        self.skipped.push((name.to_owned(), reason.to_owned()));
        self.write_index()
    }

    /// Writes the page with all reports in the directory, including the reports of earlier runs. It
    /// is written after each experiment, so that it exists even after an interruption.
    fn write_index(&self) -> Result<()> {
        let mut index = vec![Section::Text(ABOUT.to_owned())];
        for Experiment { name, .. } in Experiment::all() {
            let skipped = self.skipped.iter().filter(|(skipped, _)| skipped == name);
            index.extend(skipped.map(|(_, reason)| Section::Text(format!("{name}: {reason}"))));
            index.extend(self.entry(name).into_iter().flatten());
        }
        self.write("index.html", &page::html("Experiments", &index)).map(drop)
    }

    /// Returns the entry of an experiment, or `None` if it has no report that can be read.
    fn entry(&self, name: &str) -> Option<Vec<Section>> {
        let read = |ending| fs::read_to_string(self.dir.join(format!("{name}.{ending}"))).ok();
        let report = serde_json::from_str::<Value>(&read("json")?).ok()?;
        let verdict = Verdict::deserialize(&report["verdict"]).ok()?;
        let verdict = verdict.sentence(report["complete_rounds"].as_u64()?);
        let scale = report["scale"].as_str()?;
        let svg = read("svg").filter(|svg| !svg.is_empty());
        let heading = Section::Heading(report["title"].as_str()?.to_owned());
        let mut entry = vec![heading, Section::Text(format!("{verdict} Scale {scale}."))];
        entry.extend(svg.map(|svg| Section::Figure { svg, caption: String::new() }));
        let (href, text) = (format!("{name}.html"), format!("the report of {name}"));
        entry.push(Section::Link { href, text });
        Some(entry)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        fs::write(&path, text).map_err(|error| of_file(&path, &error))?;
        Ok(path)
    }
}

fn of_file(path: &Path, error: &std::io::Error) -> Error {
    Error::Local(format!("--out: {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::check::{Bound, Check};
    use super::super::machine::Machine;
    use super::super::measurements::Measurements;
    use super::*;

    fn findings(title: &str, value: f64, rounds: u64) -> Findings {
        let mut measured = Measurements::default();
        (0..rounds).for_each(|_| measured.end_round());
        let figure = Section::Figure { svg: format!("<svg>{title}</svg>"), caption: String::new() };
        Findings {
            setting: Vec::new(),
            shown: vec![figure],
            checks: vec![Check::new("a", Some(value), Bound::AtLeast(1.0), false)],
            measured,
        }
    }

    #[test]
    fn reports_of_earlier_runs_stay_on_the_page_of_all() {
        let dir = tempfile::tempdir().expect("there is room");
        let machine = Machine::of_this_system();
        let report = |output: &Output, name: &str, scale: &str, (title, value): (&str, f64)| {
            let (name, title) = (name.to_owned(), title.to_owned());
            let conditions = Conditions {
                experiment: &Experiment { name, title: title.clone(), ..Experiment::default() },
                command: "",
                scale: scale.to_owned(),
                rounds: 5,
                seed: 1,
                machine: &machine,
                withheld_percent: 0.0,
                versions: &[],
            };
            let rounds = if scale == "full" { 5 } else { 1 };
            output.report(&findings(&title, value, rounds), &conditions).expect("it is written");
        };
        let first = Output::new(dir.path()).expect("it is there");
        report(&first, "members", "full", ("Some members", 0.0));
        report(&first, "failover", "full", ("Killed", 2.0));
        let mut second = Output::new(dir.path()).expect("it is there");
        report(&second, "failover", "small", ("Killed again", 2.0));
        second.add_skipped("redis", "skipped: there is none").expect("it is written");
        let page = fs::read_to_string(dir.path().join("index.html")).expect("it was written");
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
        let parts = [
            "Some members</a></h2>\n<p>NOT IN THE PUBLISHED DIRECTION, by the medians of 5 rounds. \
             Scale full.</p>",
            "<svg>Some members</svg>",
            "href=\"members.html\"",
            "Killed again</a></h2>\n<p>No verdict: the checks hold, but with 1 round chance may \
             decide.",
            "<svg>Killed again</svg>",
            "redis: skipped: there is none",
        ];
        assert!(parts.map(at).is_sorted(), "{page}");
        assert!(!page.contains("Killed</a>"), "{page}");
    }
}
