//! The results of an experiment, and its report: a page, the same text as Markdown, and the
//! measured values as JSON.

use serde::Serialize;
use serde_json::{Value, json};

use super::check::{Check, Verdict};
use super::machine::Machine;
use super::measurements::Measurements;
use super::stories::Experiment;
use crate::page::Section;

#[derive(Clone, Debug)]
pub struct Findings {
    /// The description of the measurement. Each text is a paragraph.
    pub(super) setting: Vec<String>,
    /// Tables and pictures. The page of all experiments shows the first picture.
    pub(super) shown: Vec<Section>,
    pub(super) checks: Vec<Check>,
    pub(super) measured: Measurements,
}

/// The outcome of an experiment: it was measured, or it was skipped.
#[derive(Clone, Debug)]
pub enum Outcome {
    Found(Box<Findings>),
    /// The reason why it was skipped.
    Skipped(String),
}

/// The conditions of a measurement, for its report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Conditions<'a> {
    #[serde(skip)]
    pub(super) experiment: &'a Experiment,
    pub(super) command: &'a str,
    pub(super) scale: String,
    pub(super) rounds: u64,
    pub(super) seed: u64,
    pub(super) machine: &'a Machine,
    pub(super) withheld_percent: f64,
    pub(super) versions: &'a [(String, String)],
}

impl Findings {
    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.checks)
    }

    /// Returns the verdict in words, with the number of complete rounds.
    pub(super) fn verdict_sentence(&self) -> String {
        self.verdict().sentence(self.measured.complete_rounds())
    }

    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    pub fn measured(&self) -> &Measurements {
        &self.measured
    }

    /// Returns the picture for the page of all experiments.
    pub(super) fn first_figure(&self) -> Option<&str> {
        self.shown.iter().find_map(|section| match section {
            Section::Figure { svg, .. } => Some(svg.as_str()),
            _ => None,
        })
    }

    /// Returns the tables for a terminal.
    pub(super) fn tables(&self) -> Vec<Section> {
        let tables = self.shown.iter().filter(|section| matches!(section, Section::Table { .. }));
        tables.cloned().collect()
    }

    pub(super) fn sections(&self, conditions: &Conditions<'_>) -> Vec<Section> {
        let heading = |text: &str| Section::Heading(text.to_owned());
        let text = |text: &str| Section::Text(text.to_owned());
        let Experiment { see, published, source, differs, .. } = conditions.experiment;
        let mut sections = vec![text(&self.verdict_sentence())];
        sections.extend(self.measured.warnings().iter().map(|warning| text(warning)));
        sections.push(heading("Setting"));
        sections.extend(self.setting.iter().map(|paragraph| text(paragraph)));
        sections.push(text(&conditions.sentence()));
        sections.push(Section::Command(conditions.command.to_owned()));
        sections.push(text(&conditions.machine.sentence()));
        sections.push(heading("Measured"));
        sections.extend(self.shown.iter().cloned());
        sections.extend([heading("What to see"), text(see)]);
        sections.extend([heading("Published"), text(published)]);
        sections.push(text(&format!("Source: {source}.")));
        sections.extend([heading("Ours and the published figures"), text(differs)]);
        let rows = self.checks.iter().map(|Check { claim, measured, verdict }| {
            vec![claim.clone(), measured.clone(), verdict.name()]
        });
        let columns = ["requirement", "measured", ""].map(str::to_owned).to_vec();
        sections.push(Section::Table { columns, rows: rows.collect() });
        sections
    }

    pub(super) fn json(&self, conditions: &Conditions<'_>) -> Value {
        let mut report = json!(conditions);
        report["experiment"] = conditions.experiment.name.as_str().into();
        report["title"] = conditions.experiment.title.as_str().into();
        report["verdict"] = json!(self.verdict());
        report["complete_rounds"] = self.measured.complete_rounds().into();
        report["checks"] = json!(self.checks);
        report["warnings"] = self.measured.warnings().into();
        report["figures"] = self.measured.json();
        report
    }
}

impl Conditions<'_> {
    fn sentence(&self) -> String {
        let Conditions { scale, rounds, seed, versions, withheld_percent, .. } = self;
        let versions = versions.iter().map(|(name, version)| format!("{name}: {version}"));
        let versions = versions.collect::<Vec<_>>().join("; ");
        let rounds = if *rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds") };
        format!(
            "Scale {scale}, seed {seed}, {rounds}, in which the servers take turns; figures are \
             medians. Servers: {versions}. The host withheld {withheld_percent:.1} % of the \
             requested processor time."
        )
    }
}
