//! The program in a separate process, and the lines of its log.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test file uses another part of it")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Time limit of an operation. It is much longer than any operation in these tests takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Lets one test run at a time. A new process holds all file locks of its parent until it runs its
/// own program. So a store that one test opens could seem to be locked while another test starts a
/// program.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn program(arguments: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_clearlane"));
    program.args(arguments).env_clear();
    program
}

/// Returns the command of a member with ports that the system chooses, unless `more` sets the same
/// flags.
pub(crate) fn member(data_dir: &Path, more: &[&str]) -> Command {
    let mut program = program(&[
        "--listen-client-urls=http://127.0.0.1:0",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:0",
        "--initial-cluster-token=new",
    ]);
    program.arg(format!("--data-dir={}", data_dir.display())).args(more);
    program
}

/// Runs a program that must end with status 1. Returns the last line of its standard error.
pub(crate) fn failure(program: &mut Command) -> String {
    let Output { status, stderr, .. } = program.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    said.lines().last().unwrap().to_owned()
}

/// A running program. It is killed when it is dropped.
pub(crate) struct RunningProgram {
    process: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl RunningProgram {
    pub(crate) fn start(program: &mut Command) -> RunningProgram {
        let mut process = program.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stderr.lines() {
                // The test may have stopped reading, so an error is ignored.
                let _ = sender.send(line.unwrap());
            }
        });
        RunningProgram { process, lines, said: Vec::new() }
    }

    pub(crate) fn line(&mut self, words: &str) -> String {
        let end = Instant::now() + TIMEOUT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("no {words} in {:#?}", self.said));
            self.said.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Returns the lines that were read so far.
    pub(crate) fn said(&self) -> &[String] {
        &self.said
    }

    pub(crate) fn json(&mut self, words: &str) -> Value {
        serde_json::from_str(&self.line(words)).unwrap()
    }

    pub(crate) fn address(&mut self, words: &str) -> String {
        self.json(words)["address"].as_str().unwrap().to_owned()
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the program serves clients. Returns the next client address in its log.
    pub(crate) fn ready(&mut self) -> String {
        self.line("ready to serve client requests");
        self.address("serving client traffic")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id() as i32), signal).unwrap();
    }

    /// Waits until the process has ended. Returns its status and all lines of its log.
    pub(crate) fn end(mut self) -> (ExitStatus, Vec<String>) {
        let status = self.process.wait().unwrap();
        self.said.extend(self.lines.iter());
        (status, std::mem::take(&mut self.said))
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // The process may have ended already, so the result is ignored.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
