//! What an experiment has found, and the report of it: a page, the same as Markdown, and the
//! figures as JSON.

use serde_json::{Value, json};

use super::check::{Check, Verdict};
use super::machine::Machine;
use super::measurements::Measurements;
use crate::page::Section;

/// What is said of an experiment whatever it measures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Story {
    pub(super) title: &'static str,
    /// What one should see.
    pub(super) see: &'static str,
    pub(super) published: &'static str,
    /// Where that is published.
    pub(super) source: &'static str,
    /// Where figures of ours are others than those, and why.
    pub(super) differs: &'static str,
}

#[derive(Clone, Debug)]
pub struct Findings {
    pub(super) story: Story,
    /// What was done, a paragraph each.
    pub(super) setting: Vec<String>,
    /// Tables and figures; the first figure is shown on the page of all experiments.
    pub(super) shown: Vec<Section>,
    pub(super) checks: Vec<Check>,
    pub(super) measured: Measurements,
}

/// Of one experiment: it was made, or it cannot be.
#[derive(Clone, Debug)]
pub enum Outcome {
    Found(Box<Findings>),
    /// The reason.
    Skipped(String),
}

/// With which it was measured.
#[derive(Clone, Debug)]
pub(super) struct Conditions<'a> {
    pub(super) name: &'a str,
    pub(super) command: &'a str,
    pub(super) scale: &'a str,
    pub(super) rounds: u64,
    pub(super) seed: u64,
    pub(super) machine: &'a Machine,
    pub(super) withheld_percent: f64,
    pub(super) versions: &'a [(String, String)],
}

impl Findings {
    pub fn title(&self) -> &str {
        self.story.title
    }

    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.checks)
    }

    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    pub fn measured(&self) -> &Measurements {
        &self.measured
    }

    /// For the page of all experiments.
    pub(super) fn first_figure(&self) -> Option<&str> {
        self.shown.iter().find_map(|section| match section {
            Section::Figure { svg, .. } => Some(svg.as_str()),
            _ => None,
        })
    }

    /// For a terminal.
    pub(super) fn tables(&self) -> Vec<Section> {
        let tables = self.shown.iter().filter(|section| matches!(section, Section::Table { .. }));
        tables.cloned().collect()
    }

    pub(super) fn sections(&self, conditions: &Conditions<'_>) -> Vec<Section> {
        let heading = |text: &str| Section::Heading(text.to_owned());
        let text = |text: &str| Section::Text(text.to_owned());
        let Story { see, published, source, differs, .. } = self.story;
        let mut sections = vec![text(self.verdict().sentence())];
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
            vec![claim.clone(), measured.clone(), verdict.name().to_owned()]
        });
        let columns = ["what must be so", "measured", ""].map(str::to_owned).to_vec();
        sections.push(Section::Table { columns, rows: rows.collect() });
        sections
    }

    pub(super) fn json(&self, conditions: &Conditions<'_>) -> Value {
        json!({
            "experiment": conditions.name,
            "title": self.title(),
            "command": conditions.command,
            "scale": conditions.scale,
            "rounds": conditions.rounds,
            "seed": conditions.seed,
            "machine": conditions.machine.json(),
            "withheld_percent": conditions.withheld_percent,
            "versions": conditions.versions,
            "verdict": self.verdict().name(),
            "checks": self.checks.iter().map(Check::json).collect::<Vec<_>>(),
            "warnings": self.measured.warnings(),
            "figures": self.measured.json(),
        })
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
             processor time that was wanted."
        )
    }
}
