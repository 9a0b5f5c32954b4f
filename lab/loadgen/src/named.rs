//! Enums whose values are words on the command line. A subcommand lists the words, each with a
//! description.

use clap::ValueEnum;

/// An enum whose values a subcommand lists. The first line of a value's doc comment is its
/// description.
pub trait Named: ValueEnum + 'static {
    fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Returns the word for this value on the command line.
    fn name(&self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn about(&self) -> String {
        let help = self.to_possible_value().and_then(|value| value.get_help().cloned());
        help.unwrap_or_default().to_string()
    }

    /// Returns one line for each value: its word and its description.
    fn list() -> String {
        aligned(Self::all().iter().map(|value| (value.name(), value.about())))
    }
}

/// Returns one line for each name and its description.
pub(crate) fn aligned(named: impl Iterator<Item = (String, String)> + Clone) -> String {
    let widest = named.clone().map(|(name, _)| name.len()).max().unwrap_or(0);
    named.map(|(name, about)| format!("{name:widest$} {about}")).collect::<Vec<_>>().join("\n")
}

impl Named for crate::stall::Row {}
impl Named for crate::storm::StormKind {}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Named>() {
        let list = T::list();
        assert_eq!(list.lines().count(), T::all().len(), "{list}");
        for (value, line) in T::all().iter().zip(list.lines()) {
            assert_eq!(line.split_once(' ').map(|(name, _)| name), Some(&*value.name()));
            assert!(!value.about().is_empty() && line.ends_with(&value.about()), "{line}");
        }
    }

    #[test]
    fn each_value_is_listed_with_its_description() {
        check::<crate::stall::Row>();
        check::<crate::storm::StormKind>();
    }
}
