//! Changes one field of a workload by its name, for example `seconds`, `keys.count` or
//! `cheap.rate`.
//!
//! A user can thus ask "what if" without a second file. The changed part of the workload is written
//! as a table and then read with the same checks as a file.

use toml::{Table, Value};

use super::fields::Fields;
use super::{Class, Operation, Workload, parse};
use crate::arrivals::Spacing;
use crate::keys::{KeySpace, Sizes};
use crate::{Error, Result};

impl Workload {
    /// Sets a field. `name` is a field of the file (`seconds`), of its keys (`keys.count`), or of a
    /// class (`cheap.rate`).
    pub fn set(&mut self, name: &str, value: Value) -> Result<()> {
        match name.split_once('.') {
            None if name == "seconds" => {
                let table = table([(name, value)]);
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
        let mut table = space_table(&self.space);
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

pub(super) fn whole(number: u64) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

pub(super) fn table<const N: usize>(fields: [(&str, Value); N]) -> Table {
    fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

fn text(word: &str) -> Value {
    Value::String(word.to_owned())
}

fn sizes(sizes: Sizes) -> Value {
    Value::Table(table([("min", whole(sizes.min)), ("max", whole(sizes.max))]))
}

fn space_table(space: &KeySpace) -> Table {
    table([
        ("prefix", text(&space.prefix)),
        ("count", whole(space.count)),
        ("size", whole(space.key_size)),
        ("value", sizes(space.value)),
    ])
}

fn class_table(class: &Class) -> Table {
    let arrivals = match class.spacing {
        Spacing::Constant => "constant",
        Spacing::Poisson => "poisson",
    };
    let mut fields = vec![
        ("name", text(&class.name)),
        ("operation", text(class.operation.name())),
        ("rate", Value::Float(class.rate)),
        ("arrivals", text(arrivals)),
        ("connections", whole(class.connections)),
    ];
    let consistency = |serializable| {
        let word = if serializable { "serializable" } else { "linearizable" };
        ("consistency", text(word))
    };
    let distribution = ("distribution", text(class.distribution.name()));
    match class.operation {
        Operation::Range { keys, limit, serializable } => {
            fields.extend([("keys", whole(keys)), consistency(serializable), distribution]);
            fields.extend(limit.map(|limit| ("limit", whole(limit))));
        }
        Operation::Count { keys, serializable } => {
            fields.extend([("keys", whole(keys)), consistency(serializable), distribution]);
        }
        Operation::Put { value } => fields.extend([("value", sizes(value)), distribution]),
        Operation::Delete { keys } => fields.extend([("keys", whole(keys)), distribution]),
        Operation::Txn { keys, value } => {
            fields.extend([("keys", whole(keys)), ("value", sizes(value)), distribution]);
        }
        Operation::Watch { events } => fields.push(("events", whole(events))),
        Operation::Lease { ttl } => fields.push(("ttl", whole(ttl))),
        Operation::Authenticate => {}
    }
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
