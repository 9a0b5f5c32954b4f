//! `completions` and `man`: the command line in the formats of shells and of `man`.

use clap::ValueEnum as _;
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Action, BoxError, TOOLS, Tool};
use crate::command_line::command;
use crate::config::arguments::FlagReader;
use crate::config::table::flag;
use crate::config::value::ValueKind::OneOf;

pub(super) const COMPLETIONS: Tool = Tool {
    name: &["completions"],
    about: "Print a script that completes commands, flags and values in a shell",
    positional: &[flag("SHELL", OneOf(&["bash", "elvish", "fish", "powershell", "zsh"]), "")
        .help("Shell that reads the script.")],
    words: None,
    flags: &[],
    action: Action::Text(completions),
};

pub(super) const MAN: Tool = Tool {
    name: &["man"],
    about: "Print the manual page (roff), for `man -l -`",
    positional: &[],
    words: None,
    flags: &[],
    action: Action::Text(man),
};

fn completions(flags: &FlagReader) -> Result<String, BoxError> {
    let shell = Shell::from_str(flags.text("SHELL"), false)?;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "clearlane", &mut script);
    Ok(String::from_utf8(script)?)
}

/// Prints one manual page, with a section for each tool.
fn man(_: &FlagReader) -> Result<String, BoxError> {
    let mut command = command();
    command.build();
    let man = Man::new(command.clone()).manual("Clearlane");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_extra_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut page = String::from_utf8(page)?.replace(".SH EXTRA\n", ".SH NOTES\n");
    for tool in TOOLS {
        let inner = tool.name.iter().try_fold(&command, |outer, word| outer.find_subcommand(word));
        let mut options = Vec::new();
        Man::new(inner.expect("a command for each tool").clone())
            .render_options_section(&mut options)?;
        let name = tool.name.join(" ").to_uppercase();
        page += &format!(".SH \"CLEARLANE {name}\"\n{}.\n", tool.about);
        page += &String::from_utf8(options)?.replace(".SH OPTIONS\n", ".SS Options\n");
    }
    Ok(page)
}
