//! A user stops a calibration half-way: its server and its data are gone with it.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const SIMULATOR: &str = env!("CARGO_BIN_EXE_clearlane-sim");

/// Ends with this, whatever comes of the test.
struct Tool(Child);

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn who_is_interrupted_leaves_nothing_behind() {
    if !Path::new(SIMULATOR).with_file_name("clearlane").is_file() {
        // Past the harness, which shows what a test prints only if it fails.
        let words = b"SKIPPED: no program `clearlane` was built; nothing was interrupted\n";
        std::io::stderr().write_all(words).unwrap();
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let mut tool = Command::new(SIMULATOR);
    tool.args(["calibrate", "--era", "3.2", "--dir", dir]).stdout(Stdio::null());
    let mut tool = Tool(tool.spawn().unwrap());
    until("a server was started", || !serving(dir).is_empty());
    assert_eq!(tool.0.try_wait().unwrap(), None);
    // What a shell has built in.
    let kill = format!("kill -TERM {}", tool.0.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    until("the tool has ended", || tool.0.try_wait().unwrap().is_some());
    assert_eq!(tool.0.wait().unwrap().signal(), Some(15));
    assert_eq!(serving(dir), "", "a server runs on");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "its data is left");
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "within a minute: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The command line of a server whose data is in there.
fn serving(dir: &str) -> String {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    lines.filter(|line| line.contains(dir) && line.contains("--data-dir")).collect()
}
