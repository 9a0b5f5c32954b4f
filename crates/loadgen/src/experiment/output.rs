//! Writes the reports into a directory, and the page that links them.

use std::fs;
use std::path::{Path, PathBuf};

use super::Experiment;
use super::findings::{Conditions, Findings};
use crate::page::{self, Section};
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Output {
    dir: PathBuf,
    /// Of the page that links the reports, so far.
    index: Vec<Section>,
}

impl Output {
    /// An error if the directory cannot be made: before anything is measured.
    pub(super) fn new(dir: &Path) -> Result<Output> {
        fs::create_dir_all(dir).map_err(|error| of_file(dir, &error))?;
        let about = "Each experiment was published by others about etcd; here it is repeated with \
                     each generation of etcd's read path, with this server's own, and with etcd \
                     itself if it is there.";
        Ok(Output { dir: dir.to_owned(), index: vec![Section::Text(about.to_owned())] })
    }

    /// Returns the page's path.
    pub(super) fn report(
        &self,
        findings: &Findings,
        conditions: &Conditions<'_>,
    ) -> Result<PathBuf> {
        let (name, title) = (conditions.name, findings.title());
        let sections = findings.sections(conditions);
        self.write(&format!("{name}.md"), &page::markdown(title, &sections))?;
        self.write(&format!("{name}.json"), &format!("{:#}\n", findings.json(conditions)))?;
        self.write(&format!("{name}.html"), &page::html(title, &sections))
    }

    /// The page of all is written anew each time: it is there after an interruption, too.
    pub(super) fn add_to_index(
        &mut self,
        experiment: Experiment,
        findings: &Findings,
    ) -> Result<()> {
        let name = experiment.name();
        let verdict = findings.verdict().sentence().to_owned();
        self.index.extend([Section::Heading(findings.title().to_owned()), Section::Text(verdict)]);
        self.index.extend(findings.first_figure().cloned());
        let text = format!("the report of {name}");
        self.index.push(Section::Link { href: format!("{name}.html"), text });
        self.write_index()
    }

    pub(super) fn add_skipped(&mut self, experiment: Experiment, reason: &str) -> Result<()> {
        let text = format!("{}: {reason}", experiment.name());
        self.index.push(Section::Text(text));
        self.write_index()
    }

    fn write_index(&self) -> Result<()> {
        self.write("index.html", &page::html("Experiments", &self.index)).map(drop)
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
