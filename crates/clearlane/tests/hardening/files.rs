//! Tests of the modes of files and directories, and of whether a crash leaves a core file.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::program::{RunningProgram, member, program};

/// Returns a directory and everything in it.
fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(walk(&path)),
            false => found.push(path),
        }
    }
    found
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

fn check_private(dir: &Path) -> usize {
    let found = walk(dir);
    for path in &found {
        // Pipes and sockets have the same mode as files.
        let wanted = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(path) & !wanted, 0, "{}: {:o}", path.display(), mode(path));
    }
    found.len()
}

/// Returns a shell command that runs `command` with the umask 0, which removes no permission.
fn with_open_umask(command: &std::process::Command) -> std::process::Command {
    let mut shell = std::process::Command::new("sh");
    shell.env_clear().args(["-c", "umask 0; exec \"$0\" \"$@\""]).arg(command.get_program());
    shell.args(command.get_args());
    shell
}

#[test]
fn files_of_a_member_are_for_its_user_alone() {
    for engine in ["bolt", "sled"] {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let timeline = dir.path().join("timeline");
        let socket = dir.path().join("socket");
        let listen = format!("--listen-client-urls=http://127.0.0.1:0,unix://{}", socket.display());
        let timeline_flag = format!("--timeline={}", timeline.display());
        let engine = format!("--engine={engine}");
        let flags = [&listen[..], &timeline_flag, &engine, "--auto-tls", "--snapshot-count=10"];
        let command = with_open_umask(&member(&data, &flags));
        let mut running = RunningProgram::start(&mut { command });
        let address = running.ready();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let done = |arguments: &[&str]| {
            let done = with_open_umask(&program(arguments)).output().unwrap();
            assert!(done.status.success(), "{arguments:?}: {done:?}");
        };
        let (saved, restored) = (dir.path().join("saved"), dir.path().join("restored"));
        done(&["snapshot", "save", &address, &text(&saved)]);
        assert!(check_private(&data) > 6);
        assert!(fs::symlink_metadata(&socket).unwrap().file_type().is_socket());
        assert_eq!(mode(&socket) & 0o077, 0);
        running.signal(Signal::SIGTERM);
        running.end();
        check_private(&data);
        for file in [&saved, &timeline] {
            assert_eq!(mode(file), 0o600, "{}", file.display());
        }
        done(&["snapshot", "restore", &text(&saved), &format!("--data-dir={}", text(&restored))]);
        assert!(check_private(&restored) > 6);
    }
}

#[test]
fn a_directory_that_others_may_read_is_used_and_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    let mut running = RunningProgram::start(&mut member(&data, &[]));
    let line = running.json("check file permission");
    assert_eq!((&line["level"], &line["mode"]), (&"warn".into(), &"755".into()));
    running.ready();
    assert_eq!(mode(&data), 0o755);
    check_private(&data.join("member"));
}

#[test]
fn a_crash_leaves_a_core_file_only_if_that_is_wanted() {
    let limit = |running: &RunningProgram| {
        let limits = fs::read_to_string(format!("/proc/{}/limits", running.id())).ok()?;
        let line = limits.lines().find(|line| line.starts_with("Max core file size"))?.to_owned();
        Some(line["Max core file size".len()..].split_whitespace().next()?.to_owned())
    };
    let dir = tempfile::tempdir().unwrap();
    let mut running = RunningProgram::start(&mut member(&dir.path().join("a"), &[]));
    running.ready();
    if let Some(limit) = limit(&running) {
        assert!(["0", "1"].contains(&&limit[..]), "{limit}");
    }
    running.signal(Signal::SIGABRT);
    assert!(!running.end().0.core_dumped());
    let own = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let mut running = RunningProgram::start(&mut member(&dir.path().join("b"), &["--core-files"]));
    running.ready();
    if let Some(limit) = limit(&running) {
        let own = own.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert!(own.contains(&limit), "{limit} in {own}");
    }
}
