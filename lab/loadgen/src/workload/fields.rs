//! Typed access to the fields of one TOML table. Each error is one line.

use std::ops::RangeInclusive;

use toml::{Table, Value};

use crate::keys::Sizes;
use crate::{Error, Result};

/// The fields of a table. `context` is the table's name in errors.
#[derive(Debug)]
pub struct Fields<'t> {
    context: String,
    table: &'t Table,
}

impl<'t> Fields<'t> {
    /// Returns the fields of a table. Fails if the table has a field that is not in `allowed`.
    /// `place` is the table's name in errors.
    pub fn new(place: &str, table: &'t Table, allowed: &[&str]) -> Result<Fields<'t>> {
        let fields = Fields { context: place.to_owned(), table };
        match table.keys().find(|key| !allowed.contains(&key.as_str())) {
            Some(unknown) => {
                let allowed = allowed.join(", ");
                Err(fields.error(format!("unknown field `{unknown}`; known are {allowed}")))
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

    /// Reads a number that is above 0 and at most `most`.
    pub fn rate(&self, name: &str, most: f64) -> Result<f64> {
        let value = self.required(name, self.table.get(name))?;
        let number = value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64));
        // NaN is also rejected here, because it is not above 0.
        number.filter(|rate| *rate > 0.0 && *rate <= most).ok_or_else(|| {
            self.error(format!(
                "`{name}` is {value}; it must be a number above 0 and at most {most}"
            ))
        })
    }

    pub fn text(&self, name: &str) -> Result<Option<&'t str>> {
        let text = |value: &'t Value| {
            let wrong = || self.error(format!("`{name}` is {value}; it must be a string"));
            value.as_str().ok_or_else(wrong)
        };
        self.table.get(name).map(text).transpose()
    }

    /// Reads a field that must be one of `words`, and returns the value that belongs to the word.
    /// Returns `None` if the field is missing.
    pub fn one_of<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<Option<T>> {
        let Some(found) = self.text(name)? else { return Ok(None) };
        let word = words.iter().find(|(word, _)| *word == found);
        let allowed = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
        let wrong = || self.error(format!("`{name}` is \"{found}\"; it must be {}", allowed()));
        word.map(|(_, meaning)| Some(*meaning)).ok_or_else(wrong)
    }

    /// Reads a field that is one size, or a table with `min` and `max`. Returns `None` if the field
    /// is missing.
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
