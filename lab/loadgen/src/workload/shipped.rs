//! The workloads that ship with the program, by name.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShippedWorkload {
    pub name: &'static str,
    /// The contents of the file.
    pub text: &'static str,
}

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        [$(ShippedWorkload {
            name: $name,
            text: include_str!(concat!("../../workloads/", $name, ".toml")),
        }),*]
    };
}

pub const SHIPPED: [ShippedWorkload; 5] =
    shipped!["head-of-line", "head-of-line-often", "head-of-line-large", "convoy", "probes"];

impl ShippedWorkload {
    pub fn named(name: &str) -> Option<ShippedWorkload> {
        SHIPPED.into_iter().find(|shipped| shipped.name == name)
    }

    /// Returns the first line of the file, which is a comment.
    pub fn about(&self) -> &'static str {
        self.text.lines().next().unwrap_or_default().trim_start_matches(['#', ' '])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn each_is_a_workload_and_says_what_it_is_about() {
        for shipped in SHIPPED {
            assert!(Workload::parse(shipped.text).is_ok(), "{}", shipped.name);
            assert!(shipped.about().len() > 20, "{}", shipped.name);
            assert_eq!(ShippedWorkload::named(shipped.name), Some(shipped));
        }
    }
}
