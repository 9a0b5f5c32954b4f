//! A command line and an environment. The program rejects them with a message, or they select a
//! configuration, a tool, or the help text.
//!
//! ```text
//!   number of arguments (1) │ argument (2 + n) │ ... │ variable (2 + n) │ its value │ ...
//! ```

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use clearlane::command_line;

use crate::input::Input;

const VARIABLES_MAX: usize = 8;

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let arguments: Vec<OsString> = (0..input.choice(16)).map(|_| text(&mut input)).collect();
    let mut environment = Vec::new();
    while !input.is_empty() && environment.len() < VARIABLES_MAX {
        let mut name = OsString::from("ETCD_");
        name.push(text(&mut input));
        environment.push((name, text(&mut input)));
    }
    let open = |_: &Path| Err(io::ErrorKind::NotFound.into());
    if let Err(error) = command_line::read(&arguments, &environment, &open) {
        assert!(!error.to_string().is_empty());
    }
}

fn text(input: &mut Input<'_>) -> OsString {
    OsString::from_vec(input.string().to_vec())
}
