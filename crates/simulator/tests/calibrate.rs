//! Costs of the real server, alive, and what they predict of it.
//!
//! How near predictions are is not tested here: on a machine that does other things at the same
//! time they cannot be. What is tested is that all of it works, and that what comes out is
//! possible.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use clearlane_simulator::calibration::Calibration;
use clearlane_simulator::costs::Costs;
use clearlane_simulator::era::Era;
use serde_json::Value;

const SIMULATOR: &str = env!("CARGO_BIN_EXE_clearlane-sim");

fn tool(arguments: &[&str]) -> Output {
    Command::new(SIMULATOR).args(arguments).output().unwrap()
}

/// What it complains of.
fn told(arguments: &[&str]) -> String {
    let output = tool(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "", "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The server, which belongs to another package: it is there if that was built.
fn server() -> Option<PathBuf> {
    let path = Path::new(SIMULATOR).with_file_name("clearlane");
    if !path.is_file() {
        // Past the harness, which shows what a test prints only if it fails.
        let words = b"SKIPPED: no program `clearlane` was built; nothing was calibrated\n";
        std::io::stderr().write_all(words).unwrap();
        return None;
    }
    Some(path)
}

#[test]
fn what_is_measured_here_can_be_used() {
    if server().is_none() || !cfg!(target_os = "linux") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("costs.toml");
    let costs = file.to_str().unwrap();
    let done = tool(&[
        "calibrate",
        "--era",
        "3.2,clearlane",
        "--seconds",
        "1",
        "--turns",
        "1",
        "--patience",
        "0",
        "--out",
        costs,
    ]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = fs::read_to_string(&file).unwrap();
    for load in ["one-key", "ten-keys-seldom", "long", "puts", "beside-puts"] {
        let line = text.lines().find(|line| line.starts_with(&format!("# {load} "))).unwrap();
        // Two percentiles of each era.
        assert_eq!(line.split_whitespace().count(), 2 + 2 * 2, "{line}");
    }
    let calibration = Calibration::parse(&text).unwrap();
    assert_eq!(calibration.eras.keys().copied().collect::<Vec<_>>(), [Era::V3_2, Era::Clearlane]);
    assert!(calibration.machine.contains(" cores, "), "{}", calibration.machine);
    let Costs { request_ns, client_ns, record_ns, .. } = calibration.costs(Era::V3_2);
    assert!(request_ns + client_ns + record_ns > 1_000, "{calibration}");
    let (ours, by_hand) = (calibration.costs(Era::Clearlane), Costs::BY_HAND);
    assert!(ours.log_sync != by_hand.log_sync && ours.awake != by_hand.awake, "{calibration}");

    let line = [
        "validate",
        "pr-9384-small",
        "--era",
        "3.2,clearlane",
        "--runs",
        "2",
        "--seconds",
        "2",
        "--patience",
        "0",
    ];
    let done = tool(&[&line[..], &["--costs", costs, "--json"]].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let found: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(found["machine"], calibration.machine.as_str());
    let found = &found["scenarios"]["pr-9384-small"];
    for part in ["woken_in", "written_in", "read_in"] {
        assert_eq!(found["pace"][part].as_array().unwrap().len(), 2, "{found}");
    }
    let figures = found["figures"].as_array().unwrap();
    // Two eras, three classes, two percentiles, each of them from two runs.
    assert_eq!(figures.len(), 12);
    for figure in figures {
        for of in ["real_ms", "model_ms"] {
            let runs: Vec<f64> =
                figure[of].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
            assert!(runs.len() == 2 && runs.iter().all(|ms| *ms > 0.0), "{figure}");
        }
    }
}

#[test]
fn what_cannot_be_measured_is_told_in_a_line() {
    let server = ["--server", "/nowhere/clearlane"];
    let words = told(&[&["calibrate"][..], &server].concat());
    assert!(words.contains("/nowhere/clearlane: there is no such program"), "{words}");
    assert!(words.contains("cargo build --release -p clearlane"), "{words}");
    assert!(told(&["validate", "pr-9384-small", "--runs", "0"]).contains("1..=100"));
    assert!(told(&["calibrate", "--era", "3.3"]).contains("unknown era \"3.3\""));
    assert!(
        told(&["run", "head-of-line", "--costs", "/nowhere/costs"]).contains("/nowhere/costs: ")
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("costs.toml");
    fs::write(&file, "[\"3.2\"]\nrequest_ns = 3\n").unwrap();
    let words = told(&["run", "head-of-line", "--costs", file.to_str().unwrap()]);
    assert!(words.contains("era 3.2: `quantum_ns` is missing"), "{words}");
    let Some(server) = self::server() else { return };
    let words = told(&["validate", "alibaba", "--server", server.to_str().unwrap()]);
    assert!(words.contains("alibaba: its table [model] describes other machines"), "{words}");
    let program = env!("CARGO_MANIFEST_DIR").to_owned() + "/Cargo.toml";
    let words = told(&["validate", "pr-9384-small", "--server", &program]);
    assert!(words.contains("Permission denied"), "{words}");
}
