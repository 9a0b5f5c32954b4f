//! Changes one field of a workload by its name, for example `seconds`, `keys.count` or
//! `cheap.rate`.
//!
//! A user can thus ask "what if" without a second file. The changed part of the workload is written
//! as a table and then read with the same checks as a file.

use toml::{Table, Value};

use super::fields::Fields;
use super::{Class, Workload, parse};
use crate::{Error, Result};

impl Workload {
    /// Sets a field. `name` is a field of the file (`seconds`), of its keys (`keys.count`), or of a
    /// class (`cheap.rate`).
    pub fn set(&mut self, name: &str, value: Value) -> Result<()> {
        match name.split_once('.') {
            None if name == "seconds" => {
                let table = Table::from_iter([(name.to_owned(), value)]);
                let fields = Fields::new("workload", &table, &[name])?;
                let seconds = fields.integer(name, 1..=parse::SECONDS_MAX)?;
                self.seconds = fields.required(name, seconds)?;
                Ok(())
            }
            Some(("keys", field)) => self.set_space(field, value),
            Some((class, field)) if self.has_class(class) && field != "name" => {
                self.set_class(class, field, value)
            }
            _ => Err(self.unknown_field(name)),
        }
    }

    fn has_class(&self, class: &str) -> bool {
        self.classes.iter().any(|known| known.name == class)
    }

    fn unknown_field(&self, name: &str) -> Error {
        let classes = self.classes.iter().map(|class| class.name.as_str());
        let classes = classes.collect::<Vec<_>>().join(", ");
        Error::Workload(format!(
            "unknown field `{name}`; known are seconds, keys.FIELD, and CLASS.FIELD, where CLASS \
             is one of {classes}"
        ))
    }

    fn set_space(&mut self, field: &str, value: Value) -> Result<()> {
        let mut table = Table::try_from(&self.space).expect("a key space is a table");
        table.insert(field.to_owned(), value);
        let space = parse::space(&table)?;
        // If the key space is smaller now, a class may need more keys than the key space has. So
        // all classes are checked again.
        let classes = self.classes.iter();
        let classes = classes.map(|class| parse::class(class.index, &class_table(class), &space));
        self.classes = classes.collect::<Result<_>>()?;
        self.space = space;
        Ok(())
    }

    fn set_class(&mut self, name: &str, field: &str, value: Value) -> Result<()> {
        for class in self.classes.iter_mut().filter(|class| class.name == name) {
            let mut table = class_table(class);
            table.insert(field.to_owned(), value.clone());
            *class = parse::class(class.index, &table, &self.space)?;
        }
        Ok(())
    }
}

/// Returns the table of a class in the format of a file.
fn class_table(class: &Class) -> Table {
    let mut table = Table::try_from(class).expect("a class is a table");
    let allowed = parse::class_fields(class.operation.name()).unwrap_or_default();
    table.retain(|field, _| allowed.contains(&field));
    table
}
