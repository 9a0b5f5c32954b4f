//! What can be done with a member's data, apart from running it.
//!
//! | command | what it does |
//! |---|---|
//! | `snapshot save` | asks a member for its store, as a file |
//! | `snapshot status` | says what is in such a file |
//! | `snapshot restore` | makes a new member's data of it |
//! | `defrag` | rewrites the store of a member that does not run, without what was deleted |
//! | `wal dump` | prints a log |
//! | `version` | says which version this is |

use std::process::ExitCode;

use crate::run;

/// Runs the tool that a command line names; nothing if it names none.
pub(crate) fn run(arguments: &[String]) -> Option<ExitCode> {
    match arguments.first()?.as_str() {
        "version" => Some(run::say(&run::version())),
        _ => None,
    }
}
