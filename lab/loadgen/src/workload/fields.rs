//! Typed access to the fields of one TOML table, with errors of one line.

use std::ops::RangeInclusive;

use toml::{Table, Value};

use crate::keys::Sizes;
use crate::{Error, Result};

/// `place` is the table's name in errors.
#[derive(Debug)]
pub struct Fields<'t> {
    context: String,
    table: &'t Table,
}

impl<'t> Fields<'t> {
    /// An error if the table has a field that is not in `allowed`.
    pub fn new(place: &str, table: &'t Table, allowed: &[&str]) -> Result<Fields<'t>> {
        let fields = Fields { context: place.to_owned(), table };
        match table.keys().find(|key| !allowed.contains(&key.as_str())) {
            Some(unknown) => {
                let allowed = allowed.join(", ");
                Err(fields.error(format!("unknown field `{unknown}`; there are {allowed}")))
            }
            None => Ok(fields),
        }
    }

    pub fn error(&self, what: impl std::fmt::Display) -> Error {
        Error::Workload(format!("{}: {what}", self.context))
    }

    pub fn required<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.error(format!("`{name}` is missing")))
    }

    pub fn integer(&self, name: &str, bounds: RangeInclusive<u64>) -> Result<Option<u64>> {
        self.table.get(name).map(|value| self.within(name, value, &bounds)).transpose()
    }

    fn within(&self, name: &str, value: &Value, bounds: &RangeInclusive<u64>) -> Result<u64> {
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        number.filter(|number| bounds.contains(number)).ok_or_else(|| {
            let (from, to) = (bounds.start(), bounds.end());
            self.error(format!(
                "`{name}` is {value}; it must be a whole number from {from} to {to}"
            ))
        })
    }

    /// A number above 0 and up to `most`.
    pub fn rate(&self, name: &str, most: f64) -> Result<f64> {
        let value = self.required(name, self.table.get(name))?;
        let number = value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64));
        // NaN is not above 0.
        number.filter(|rate| *rate > 0.0 && *rate <= most).ok_or_else(|| {
            self.error(format!(
                "`{name}` is {value}; it must be a number above 0 and at most {most}"
            ))
        })
    }

    pub fn text(&self, name: &str) -> Result<Option<&'t str>> {
        let text = |value: &'t Value| {
            let wrong = || self.error(format!("`{name}` is {value}; it must be a text"));
            value.as_str().ok_or_else(wrong)
        };
        self.table.get(name).map(text).transpose()
    }

    /// The value of the word that the field has.
    pub fn one_of<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<Option<T>> {
        let Some(found) = self.text(name)? else { return Ok(None) };
        let word = words.iter().find(|(word, _)| *word == found);
        let allowed = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
        let wrong = || self.error(format!("`{name}` is \"{found}\"; it must be {}", allowed()));
        word.map(|(_, meaning)| Some(*meaning)).ok_or_else(wrong)
    }

    /// A size, or a table of `min` and `max`.
    pub fn sizes(&self, name: &str, bounds: RangeInclusive<u64>) -> Result<Option<Sizes>> {
        let Some(value) = self.table.get(name) else { return Ok(None) };
        let Some(table) = value.as_table() else {
            return Ok(Some(Sizes::constant(self.within(name, value, &bounds)?)));
        };
        let place = format!("{}: `{name}`", self.context);
        let inner = Fields::new(&place, table, &["min", "max"])?;
        let min = inner.required("min", inner.integer("min", bounds.clone())?)?;
        let max = inner.required("max", inner.integer("max", bounds)?)?;
        if min > max {
            return Err(inner.error(format!("`min` is {min}; it must be at most `max`, {max}")));
        }
        Ok(Some(Sizes { min, max }))
    }
}
