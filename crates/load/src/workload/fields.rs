//! The fields of one table of a file: each is asked for by name, and says in one line what is wrong.

use std::ops::RangeInclusive;

use toml::{Table, Value};

use crate::keys::Sizes;
use crate::{Result, Trouble};

/// A table, and what it is called in complaints.
#[derive(Debug)]
pub struct Fields<'t> {
    place: String,
    table: &'t Table,
}

impl<'t> Fields<'t> {
    /// A table that may have these fields and no others.
    pub fn of(place: &str, table: &'t Table, allowed: &[&str]) -> Result<Fields<'t>> {
        let fields = Fields { place: place.to_owned(), table };
        match table.keys().find(|key| !allowed.contains(&key.as_str())) {
            Some(unknown) => {
                let allowed = allowed.join(", ");
                Err(fields.wrong(format!("unknown field `{unknown}`; there are {allowed}")))
            }
            None => Ok(fields),
        }
    }

    /// A complaint about this table.
    pub fn wrong(&self, what: impl std::fmt::Display) -> Trouble {
        Trouble::Workload(format!("{}: {what}", self.place))
    }

    /// A field that must be there.
    pub fn needed<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.wrong(format!("`{name}` is missing")))
    }

    /// A whole number within bounds.
    pub fn whole(&self, name: &str, bounds: RangeInclusive<u64>) -> Result<Option<u64>> {
        self.table.get(name).map(|value| self.within(name, value, &bounds)).transpose()
    }

    fn within(&self, name: &str, value: &Value, bounds: &RangeInclusive<u64>) -> Result<u64> {
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        number.filter(|number| bounds.contains(number)).ok_or_else(|| {
            let (from, to) = (bounds.start(), bounds.end());
            self.wrong(format!(
                "`{name}` is {value}; it must be a whole number from {from} to {to}"
            ))
        })
    }

    /// A number above 0 and up to `most`.
    pub fn rate(&self, name: &str, most: f64) -> Result<f64> {
        let value = self.needed(name, self.table.get(name))?;
        let number = value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64));
        // Nothing that is not a number is above 0.
        number.filter(|rate| *rate > 0.0 && *rate <= most).ok_or_else(|| {
            self.wrong(format!(
                "`{name}` is {value}; it must be a number above 0 and at most {most}"
            ))
        })
    }

    /// A text.
    pub fn text(&self, name: &str) -> Result<Option<&'t str>> {
        let text = |value: &'t Value| {
            let wrong = || self.wrong(format!("`{name}` is {value}; it must be a text"));
            value.as_str().ok_or_else(wrong)
        };
        self.table.get(name).map(text).transpose()
    }

    /// One of some words, and what it stands for.
    pub fn one_of<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<Option<T>> {
        let Some(found) = self.text(name)? else { return Ok(None) };
        let word = words.iter().find(|(word, _)| *word == found);
        let allowed = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
        let wrong = || self.wrong(format!("`{name}` is \"{found}\"; it must be {}", allowed()));
        word.map(|(_, meaning)| Some(*meaning)).ok_or_else(wrong)
    }

    /// One size, or a table of the smallest and the largest.
    pub fn sizes(&self, name: &str, bounds: RangeInclusive<u64>) -> Result<Option<Sizes>> {
        let Some(value) = self.table.get(name) else { return Ok(None) };
        let Some(table) = value.as_table() else {
            return Ok(Some(Sizes::constant(self.within(name, value, &bounds)?)));
        };
        let place = format!("{}: `{name}`", self.place);
        let inner = Fields::of(&place, table, &["min", "max"])?;
        let min = inner.needed("min", inner.whole("min", bounds.clone())?)?;
        let max = inner.needed("max", inner.whole("max", bounds)?)?;
        if min > max {
            return Err(inner.wrong(format!("`min` is {min}; it must be at most `max`, {max}")));
        }
        Ok(Some(Sizes { min, max }))
    }
}
