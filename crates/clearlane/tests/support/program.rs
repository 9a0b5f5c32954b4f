//! The program as a process, and the lines of its log.

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

/// Nothing here takes nearly so long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Lets one test run at a time. A new process holds all file locks of its parent until it runs its
/// own program. If one test started a program while another opened a store, the store could be
/// locked.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn program(arguments: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_clearlane"));
    program.args(arguments).env_clear();
    program
}

/// A member at ports that the system chooses, unless `more` has the same flags.
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

/// The last line of what a program says that ends with status 1.
pub(crate) fn failure(program: &mut Command) -> String {
    let Output { status, stderr, .. } = program.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    said.lines().last().unwrap().to_owned()
}

/// Killed when it is dropped.
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
                // The test may have seen enough.
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

    /// The lines that were read so far.
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

    /// Its next address for clients.
    pub(crate) fn ready(&mut self) -> String {
        self.line("ready to serve client requests");
        self.address("serving client traffic")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id() as i32), signal).unwrap();
    }

    /// Waits until it has ended; returns all that it has said, too.
    pub(crate) fn end(mut self) -> (ExitStatus, Vec<String>) {
        let status = self.process.wait().unwrap();
        self.said.extend(self.lines.iter());
        (status, std::mem::take(&mut self.said))
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
