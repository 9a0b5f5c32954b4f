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
//! | [`gateway start`](gateway) | forwards TCP connections to a cluster |
//! | `version`, [`completions`, `man`](manual) | print the version, completions, a manual page |
//!
//! `save` has the flags of etcdctl ([`call`]). Flags may follow other arguments, as in etcd's
//! tools.

mod bolt;
mod call;
mod defrag;
mod endpoints;
mod gateway;
mod grpc_proxy;
mod hash_kv;
mod lock_wait;
mod manual;
mod migrate;
mod output;
mod restore;
mod save;
mod srv_endpoints;
mod status;
mod wal_dump;

use std::ffi::OsString;
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
    /// The description of further arguments. Any number of further arguments may follow the
    /// positional ones. `None` if the tool takes no such arguments.
    words: Option<&'static Flag>,
    flags: &'static [Flag],
    action: Action,
}

enum Action {
    /// A function that returns the text to print.
    Text(fn(&FlagReader) -> Result<String, BoxError>),
    /// A function that prints while it works, because its output may not fit into memory.
    Print(fn(&FlagReader, &[String], &mut dyn Write) -> Result<(), BoxError>),
}

/// The first word of tool names that have two words.
struct Group {
    name: &'static str,
    /// The description in the help.
    about: &'static str,
    /// If true, the command line follows etcd's proxies: flags may precede the second word, the
    /// first word by itself prints the help, and wrong words end with status 1.
    is_proxy: bool,
}

const GROUPS: [Group; 5] = [
    Group {
        name: "bolt",
        about: "Look into a file of the engine bolt, of bbolt or of etcd",
        is_proxy: false,
    },
    Group { name: "gateway", about: "Forward TCP connections to a cluster", is_proxy: true },
    Group { name: "grpc-proxy", about: "Run a proxy in front of a cluster", is_proxy: true },
    Group {
        name: "snapshot",
        about: "Save, inspect or restore a snapshot of the store",
        is_proxy: false,
    },
    Group { name: "wal", about: "Print the write-ahead log", is_proxy: false },
];

const VERSION: Tool = Tool {
    name: &["version"],
    about: "Print the version",
    positional: &[],
    words: None,
    flags: &[],
    action: Action::Text(|_| Ok(version_text())),
};

const TOOLS: [&Tool; 15] = [
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
    &gateway::TOOL,
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
    let groups = GROUPS.into_iter().map(move |Group { name, about, is_proxy }| {
        let command = Command::new(name).about(about).subcommand_required(true);
        let command = command.arg_required_else_help(is_proxy);
        command.subcommands(members(Some(name)).map(Tool::command))
    });
    groups.chain(members(None).map(Tool::command))
}

/// Returns whether the command line starts a proxy of etcd, `grpc-proxy` or `gateway`.
pub(crate) fn is_proxy(arguments: &[OsString]) -> bool {
    let is_first = |group: &&Group| arguments.first().is_some_and(|word| word == group.name);
    GROUPS.iter().find(is_first).is_some_and(|group| group.is_proxy)
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
