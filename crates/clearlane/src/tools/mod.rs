//! The subcommands of the program. Without a subcommand, the program runs a member.
//!
//! | command | what it does |
//! |---|---|
//! | [`snapshot save`](save) | downloads the store of a member into a file |
//! | [`snapshot status`](status) | shows the contents of a saved file |
//! | [`snapshot restore`](restore) | creates a new member's data from a saved file |
//! | [`defrag`] | rewrites the store of a stopped member without deleted data |
//! | [`hashkv`](hash_kv) | prints the hash of a store's keys |
//! | [`migrate`] | sets the storage version of a stopped member |
//! | [`wal dump`](wal_dump) | prints a log |
//! | [`bolt ...`](bolt) | inspects a file of the engine `bolt`, of bbolt or of etcd |
//! | [`grpc-proxy start`](grpc_proxy) | runs a proxy in front of a cluster |
//! | `version`, [`completions`, `man`](manual) | print the version, completions, a manual page |
//!
//! `save` has the flags of etcdctl ([`call`]). Flags may follow other arguments, as in etcd's
//! tools.

mod bolt;
mod call;
mod defrag;
mod grpc_proxy;
mod hash_kv;
mod lock_wait;
mod manual;
mod migrate;
mod output;
mod restore;
mod save;
mod status;
mod wal_dump;

use std::fmt;
use std::io::Write;

use clap::{ArgMatches, Command};
use clearlane_rpc::maintenance;

use crate::config::arguments::{self, FlagReader, FlagValues};
use crate::config::table::Flag;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

struct Tool {
    /// The name of the tool: one or two words.
    name: &'static [&'static str],
    about: &'static str,
    positional: &'static [Flag],
    /// The description of the additional arguments after the positional ones (any number). `None`
    /// if the tool takes no such arguments.
    words: Option<&'static Flag>,
    flags: &'static [Flag],
    action: Action,
}

enum Action {
    /// Returns the text to print.
    Text(fn(&FlagReader) -> Result<String, BoxError>),
    /// Prints while it works, because the output may not fit into memory.
    Print(fn(&FlagReader, &[String], &mut dyn Write) -> Result<(), BoxError>),
}

/// The first words of tool names that have two words, and their descriptions in the help.
const GROUPS: [(&str, &str); 4] = [
    ("bolt", "Look into a file of the engine bolt, of bbolt or of etcd"),
    ("grpc-proxy", "Run a proxy in front of a cluster"),
    ("snapshot", "Save, inspect or restore a snapshot of the store"),
    ("wal", "Print the write-ahead log"),
];

const VERSION: Tool = Tool {
    name: &["version"],
    about: "Print the version",
    positional: &[],
    words: None,
    flags: &[],
    action: Action::Text(|_| Ok(version_text())),
};

const TOOLS: [&Tool; 14] = [
    &save::TOOL,
    &status::TOOL,
    &restore::TOOL,
    &defrag::TOOL,
    &hash_kv::TOOL,
    &migrate::TOOL,
    &wal_dump::TOOL,
    &bolt::pages::TOOL,
    &bolt::keys::TOOL,
    &bolt::check::TOOL,
    &grpc_proxy::TOOL,
    &VERSION,
    &manual::COMPLETIONS,
    &manual::MAN,
];

/// A tool and its arguments from the command line.
pub struct ToolCall {
    tool: &'static Tool,
    flags: FlagReader,
    words: Vec<String>,
}

impl fmt::Debug for ToolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tuple = f.debug_tuple("ToolCall");
        tuple.field(&self.tool.name).field(&self.flags.values);
        if !self.words.is_empty() {
            tuple.field(&self.words);
        }
        tuple.finish()
    }
}

/// Returns clap's commands for all tools.
pub(crate) fn commands() -> impl Iterator<Item = Command> {
    let members = |group| TOOLS.into_iter().filter(move |tool| tool.group() == group);
    let groups = GROUPS.into_iter().map(move |(name, about)| {
        let command = Command::new(name).about(about).subcommand_required(true);
        command.subcommands(members(Some(name)).map(Tool::command))
    });
    groups.chain(members(None).map(Tool::command))
}

/// Returns the tool that the command line names. `None` if it names none.
pub(crate) fn named(mut matches: &ArgMatches) -> Option<ToolCall> {
    let mut name = Vec::new();
    while let Some((word, inner)) = matches.subcommand() {
        name.push(word);
        matches = inner;
    }
    let tool = TOOLS.into_iter().find(|tool| tool.name == name)?;
    let words = tool.words.and_then(|words| matches.get_many::<String>(words.name));
    let words = words.into_iter().flatten().cloned().collect();
    Some(tool.call(arguments::given(matches, tool.arguments()), words))
}

pub(crate) fn version() -> ToolCall {
    VERSION.call(FlagValues::new(), Vec::new())
}

/// Returns the output of `version`. etcd's clients read the version of etcd from the first line.
fn version_text() -> String {
    format!(
        "etcd Version: {}\nGit SHA: clearlane-{}\nGo Version: none, this is Rust\n\
         Go OS/Arch: {}/{}\n",
        maintenance::ETCD_VERSION,
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
    )
}

impl Tool {
    fn group(&self) -> Option<&'static str> {
        if let [group, _] = self.name { Some(group) } else { None }
    }

    fn arguments(&self) -> impl Iterator<Item = &'static Flag> + use<> {
        self.positional.iter().chain(self.flags)
    }

    fn command(&self) -> Command {
        let name = self.name.last().expect("it has a name");
        Command::new(*name)
            .about(self.about)
            .next_line_help(true)
            .args(self.positional.iter().map(Flag::positional_arg))
            .args(self.words.map(Flag::words_arg))
            .args(self.flags.iter().map(Flag::arg))
    }

    fn call(&'static self, values: FlagValues, words: Vec<String>) -> ToolCall {
        let flags = FlagReader { values, flags: self.arguments().collect() };
        ToolCall { tool: self, flags, words }
    }
}

impl ToolCall {
    /// Runs the tool and prints to `out`. The tool may have printed a part of its output before an
    /// error.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), BoxError> {
        match self.tool.action {
            Action::Text(action) => Ok(out.write_all(action(&self.flags)?.as_bytes())?),
            Action::Print(action) => action(&self.flags, &self.words, out),
        }
    }
}
