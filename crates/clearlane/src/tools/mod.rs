//! What can be done with a member's data, apart from running it.
//!
//! | command | what it does |
//! |---|---|
//! | [`snapshot save`](save) | asks a member for its store, as a file |
//! | [`snapshot status`](status) | shows what is in such a file |
//! | [`snapshot restore`](restore) | makes a new member's data of it |
//! | [`defrag`] | rewrites the store of a member that does not run, without what was deleted |
//! | [`wal dump`](wal_dump) | prints a log |
//! | `version` | prints the version |
//!
//! The one that calls a member has the flags of etcdctl: see [`call`]. Flags may also follow the
//! words that are none, as in etcd's tools.

mod call;
mod defrag;
mod restore;
mod save;
mod status;
mod wal_dump;

use std::fmt::Write as _;
use std::process::ExitCode;

use crate::config::arguments::{self, FlagReader, FlagValues};
use crate::config::table::Flag;
use crate::run;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

struct Tool {
    /// One word or two.
    name: &'static [&'static str],
    positional_names: &'static [&'static str],
    flags: &'static [Flag],
    /// Returns what is printed.
    action: fn(&ToolArguments) -> Result<String, BoxError>,
}

struct ToolArguments {
    positional: Vec<String>,
    flags: FlagReader,
}

const TOOLS: [Tool; 6] = [
    Tool { name: &["version"], positional_names: &[], flags: &[], action: |_| Ok(run::version()) },
    save::TOOL,
    status::TOOL,
    restore::TOOL,
    defrag::TOOL,
    wal_dump::TOOL,
];

/// `None` if the command line names no tool.
pub(crate) fn run(arguments: &[String]) -> Option<ExitCode> {
    let is_named = |tool: &&Tool| {
        arguments.len() >= tool.name.len() && tool.name.iter().zip(arguments).all(|(a, b)| a == b)
    };
    if let Some(tool) = TOOLS.iter().find(is_named) {
        return Some(tool.run(&arguments[tool.name.len()..]));
    }
    let first = arguments.first()?;
    TOOLS.iter().any(|tool| tool.name[0] == first).then(|| {
        let usages: String = TOOLS.iter().map(|tool| format!("  {}\n", tool.usage())).collect();
        run::print_error(&format!("there are these commands:\n{usages}"), 2)
    })
}

impl Tool {
    fn run(&self, arguments: &[String]) -> ExitCode {
        let asked = match self.parse(arguments) {
            Ok(Some(asked)) => asked,
            Ok(None) => return run::print(&self.help()),
            Err(words) => return run::print_error(&format!("{words}\n{}", self.help()), 2),
        };
        match (self.action)(&asked) {
            Ok(text) => run::print(&text),
            Err(failure) => run::print_error(&failure.to_string(), 1),
        }
    }

    /// `None` if help is wanted.
    fn parse(&self, arguments: &[String]) -> Result<Option<ToolArguments>, String> {
        let flags = FlagReader { values: FlagValues::new(), flags: self.flags.iter().collect() };
        let mut asked = ToolArguments { positional: Vec::new(), flags };
        let mut left = arguments.to_vec();
        let find = |name: &str| self.flags.iter().find(|flag| flag.name == name);
        while !left.is_empty() {
            let said = arguments::parse(&left, find).map_err(|refusal| refusal.to_string())?;
            if said.wants_help {
                return Ok(None);
            }
            asked.flags.values.extend(said.values);
            left = said.positional;
            if !left.is_empty() {
                asked.positional.push(left.remove(0));
            }
        }
        if asked.positional.len() == self.positional_names.len() {
            Ok(Some(asked))
        } else {
            Err(format!("{} takes {}", self.name.join(" "), self.positional_usage()))
        }
    }

    fn positional_usage(&self) -> String {
        match self.positional_names {
            [] => "no words".to_owned(),
            names => names.join(" "),
        }
    }

    fn usage(&self) -> String {
        let words = ["clearlane"].iter().chain(self.name).chain(self.positional_names).copied();
        let flags = if self.flags.is_empty() { "" } else { " [flags]" };
        words.collect::<Vec<_>>().join(" ") + flags
    }

    fn help(&self) -> String {
        let mut help = format!("Usage: {}\n", self.usage());
        for flag in self.flags {
            let (noun, default) = (flag.kind.noun(), flag.default);
            let _ = write!(
                help,
                "  --{}={noun} (default '{default}')\n        {}\n",
                flag.name, flag.help
            );
        }
        help
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tool: &Tool, words: &[&str]) -> Result<Option<ToolArguments>, String> {
        tool.parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn flags_may_stand_before_and_behind_words() {
        for words in [["--data-dir=a", "file"], ["file", "--data-dir=a"]] {
            let asked = read(&restore::TOOL, &words).unwrap().unwrap();
            assert_eq!(
                (&asked.positional[..], asked.flags.text("data-dir")),
                (&["file".to_owned()][..], "a")
            );
        }
        assert!(read(&restore::TOOL, &["file", "-h"]).unwrap().is_none());
        let told = |words: &[&str]| read(&restore::TOOL, words).err().unwrap();
        assert_eq!(told(&[]), "snapshot restore takes FILE");
        assert_eq!(told(&["a", "b"]), "snapshot restore takes FILE");
        assert_eq!(told(&["a", "--bogus"]), "flag provided but not defined: -bogus");
    }
}
