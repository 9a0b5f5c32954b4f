//! The experiments, as data in `stories.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::named::aligned;

/// An experiment: its name, and the texts that do not depend on its measurements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    pub name: String,
    /// The line in the list of experiments.
    pub about: String,
    pub(super) title: String,
    /// What the reader should notice in the figures.
    pub(super) see: String,
    pub(super) published: String,
    /// The source of the published results.
    pub(super) source: String,
    /// The differences between our figures and the published figures, and the reasons.
    pub(super) differs: String,
}

#[derive(Deserialize)]
struct Stories {
    experiment: Vec<Experiment>,
}

static ALL: LazyLock<Vec<Experiment>> = LazyLock::new(|| {
    let stories = toml::from_str::<Stories>(include_str!("stories.toml"));
    stories.expect("a test reads the same text").experiment
});

impl Experiment {
    /// Returns all experiments in the order of their list.
    pub fn all() -> &'static [Experiment] {
        &ALL
    }

    /// Returns the experiment with this name, or `None` if there is no such experiment.
    pub fn named(name: &str) -> Option<&'static Experiment> {
        ALL.iter().find(|experiment| experiment.name == name)
    }

    pub(super) fn list() -> String {
        aligned(ALL.iter().map(|experiment| (experiment.name.clone(), experiment.about.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_experiment_has_all_texts() {
        assert_eq!(Experiment::list().lines().count(), 20);
        for Experiment { name, about, title, see, published, source, differs } in Experiment::all()
        {
            let texts = [about, title, see, published, source, differs];
            assert!(texts.iter().all(|text| !text.is_empty()), "{name}");
        }
    }
}
