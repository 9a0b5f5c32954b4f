//! The scenarios that are included in the program, by name.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shipped {
    pub name: &'static str,
    pub text: &'static str,
}

macro_rules! shipped {
    ($folder:literal: $($name:literal)*) => {
        [$(Shipped { name: $name, text: include_str!(concat!($folder, $name, ".toml")) }),*]
    };
}

/// Scenarios that the load driver also runs, and scenarios for the simulator only. A test checks
/// that no file is missing.
const SHIPPED: &[&[Shipped]] = &[
    &shipped!(
        "../../loadgen/workloads/": "convoy" "head-of-line" "head-of-line-large"
            "head-of-line-often" "probes"
    ),
    &shipped!(
        "../scenarios/": "alibaba" "compaction" "lagging-watcher" "learner" "login-storm"
            "pr-10523" "pr-9384" "slow-disk"
    ),
];

impl Shipped {
    pub fn all() -> impl Iterator<Item = Shipped> {
        SHIPPED.iter().copied().flatten().copied()
    }

    pub fn find(name: &str) -> Option<Shipped> {
        Shipped::all().find(|shipped| shipped.name == name)
    }

    /// Returns the first paragraph of the file's head.
    pub fn about(self) -> String {
        let comment = self.text.lines().map_while(|line| line.strip_prefix('#'));
        let paragraph = comment.map(str::trim).take_while(|line| !line.is_empty());
        paragraph.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn all_files_are_there_and_can_be_read() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = Vec::new();
        for directory in ["scenarios", "../loadgen/workloads"] {
            let listed = fs::read_dir(here.join(directory)).into_iter().flatten();
            for path in listed.flatten().map(|entry| entry.path()) {
                let text = fs::read_to_string(&path).expect("a text");
                files.push((path.file_stem().expect("a name").to_owned(), text));
            }
        }
        assert!(files.len() >= 2);
        for (name, text) in &files {
            let shipped = Shipped::all().find(|shipped| *shipped.name == **name);
            assert_eq!(shipped.map(|shipped| shipped.text), Some(text.as_str()), "{name:?}");
        }
        for shipped in Shipped::all() {
            Scenario::parse(shipped.text)
                .unwrap_or_else(|error| panic!("{}: {error}", shipped.name));
            assert!(shipped.about().len() > 20, "{} begins without a comment", shipped.name);
        }
    }
}
