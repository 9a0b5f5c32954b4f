//! Tests of the program's command line: the man page, the completions, and errors.

use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use clearlane::config::table;

use crate::program::{RunningProgram, program};

fn printed(arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = program(arguments).output().unwrap();
    assert!(status.success() && stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// Runs a command that must print nothing to standard output. Returns the exit status and the
/// error.
fn refused(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(stdout.is_empty(), "{command:?}");
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn the_man_page_has_every_flag_in_its_group() {
    let page = printed(&["man"]);
    let text = page.replace('\\', "");
    for section in table::SECTIONS {
        assert!(text.contains(&section.title.to_uppercase()), "{}", section.title);
        for flag in section.flags {
            assert!(text.contains(&format!("--{}", flag.name)), "--{}", flag.name);
        }
    }
    for part in [".SH \"CLEARLANE SNAPSHOT RESTORE\"", "--bump-revision", "[OPTIONS]"] {
        assert!(text.contains(part), "{part}");
    }
    let groff = Command::new("groff")
        .args(["-man", "-Tutf8", "-ww"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut groff = match groff {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("groff is not installed: the page is not set");
            return;
        }
        groff => groff.unwrap(),
    };
    let mut input = groff.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(page.as_bytes()));
    let output = groff.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let warnings = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && warnings.is_empty(), "{warnings}");
}

/// Returns the completions that bash offers for the last word.
fn offered(script: &Path, words: &[&str]) -> String {
    let last = words.len() - 1;
    let complete = format!(
        "source {}; COMP_WORDS=({}); COMP_CWORD={last}; _clearlane clearlane '{}' '{}'; \
         echo \"${{COMPREPLY[@]}}\"",
        script.display(),
        words.iter().map(|word| format!("'{word}' ")).collect::<String>(),
        words[last],
        words[last - 1],
    );
    let output = Command::new("bash").args(["-c", &complete]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("clearlane.bash");
    fs::write(&script, printed(&["completions", "bash"])).unwrap();
    for (words, wanted) in [
        (&["clearlane", "sn"][..], "snapshot"),
        (&["clearlane", "--initial-cluster-s"], "--initial-cluster-state"),
        (&["clearlane", "--initial-cluster-state", ""], "new existing"),
        (&["clearlane", "--era", "3.4"], "3.4"),
        (&["clearlane", "snapshot", "restore", "--bump"], "--bump-revision"),
        (&["clearlane", "completions", "f"], "fish"),
    ] {
        assert_eq!(offered(&script, words), wanted, "{words:?}");
    }
}

#[test]
fn other_shells_have_scripts_too() {
    for (shell, part) in [
        ("zsh", "#compdef clearlane"),
        ("fish", "complete -c clearlane"),
        ("elvish", "edit:completion:arg-completer[clearlane]"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let script = printed(&["completions", shell]);
        assert!(script.contains(part) && script.contains("max-learners"), "{shell}");
    }
    let (status, expected) = refused(&mut program(&["completions", "fsih"]));
    assert_eq!(status, Some(2));
    assert!(expected.contains("did you mean fish?"), "{expected}");
}

#[test]
fn what_is_not_utf8_is_refused() {
    for (argument, expected) in [
        (&b"--name=\xff"[..], "invalid value \"\u{fffd}\" for flag -name: it must be UTF-8"),
        (b"-nam\xff", "flag provided but not defined: -nam\u{fffd}; did you mean --name?"),
        (b"\xff", "\"\u{fffd}\" is not a valid flag or command"),
    ] {
        let (status, error) = refused(program(&[]).arg(OsStr::from_bytes(argument)));
        assert!(status.is_some_and(|status| [1, 2].contains(&status)), "{status:?}");
        assert!(error.contains(expected), "{error}");
    }
    let (status, error) = refused(program(&[]).env("ETCD_NAME", OsStr::from_bytes(b"\xff")));
    assert_eq!(status, Some(2));
    assert!(error.contains("for environment variable ETCD_NAME: it must be UTF-8"), "{error}");
}

#[test]
fn a_config_file_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("binary");
    fs::write(&binary, b"name: \xff").unwrap();
    for (path, expected) in [
        (dir.path(), "Is a directory"),
        (&dir.path().join("nowhere"), "No such file"),
        (&binary, "valid UTF-8"),
    ] {
        let (status, error) = refused(program(&["--config-file"]).arg(path));
        assert_eq!(status, Some(1));
        let start = format!("clearlane: config file {}: ", path.display());
        assert!(error.starts_with(&start) && error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

/// Starts a member with a config file that contains an unknown key. The log must contain a warning.
#[test]
fn a_misspelt_key_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("etcd.yml");
    let data = dir.path().join("data");
    let text = format!(
        "listen-client-urls: http://127.0.0.1:0\nadvertise-client-urls: http://127.0.0.1:1\n\
         listen-peer-urls: http://127.0.0.1:0\nmax-learnes: 3\ndata-dir: {}\n",
        data.display()
    );
    fs::write(&file, text).unwrap();
    let mut running = RunningProgram::start(program(&["--config-file"]).arg(&file));
    let line = running.json("unknown key");
    let message =
        format!("{}:4: unknown key max-learnes; did you mean max-learners?", file.display());
    assert_eq!((line["level"].as_str(), line["msg"].as_str()), (Some("warn"), Some(&*message)));
    running.ready();
}
