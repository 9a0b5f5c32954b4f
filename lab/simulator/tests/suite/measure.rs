//! Measures the costs of the real server, and predicts its latencies with them.
//!
//! These tests do not check how exact the predictions are. That is impossible on a machine that
//! does other work at the same time. They check that each step works and that the results are
//! plausible.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use clearlane_simulator::cost_file::CostFile;
use clearlane_simulator::costs::Costs;
use clearlane_simulator::era::Era;
use clearlane_simulator::show::Recording;
use serde_json::Value;

const SIMULATOR: &str = env!("CARGO_BIN_EXE_clearlane-sim");

fn tool(arguments: &[&str]) -> Output {
    Command::new(SIMULATOR).args(arguments).output().unwrap()
}

fn told(arguments: &[&str]) -> String {
    let output = tool(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "", "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the path of the server, or `None` if the server's package was not built.
fn server() -> Option<PathBuf> {
    let path = Path::new(SIMULATOR).with_file_name("clearlane");
    if !path.is_file() {
        // The message bypasses the test harness, which shows a test's output only if the test
        // fails.
        let words = b"SKIPPED: no program `clearlane` was built; nothing was measured\n";
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
    let (costs, data) = (file.to_str().unwrap(), directory.path().join("data"));
    fs::create_dir(&data).unwrap();
    let dir = ["--dir", data.to_str().unwrap()];
    let line = ["measure", "--era", "3.2,clearlane", "--seconds", "1", "--out", costs];
    let done = tool(&[&line[..], &dir].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let measured = CostFile::parse(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(measured.eras.keys().copied().collect::<Vec<_>>(), [Era::V3_2, Era::Clearlane]);
    assert!(measured.machine.contains(" cores, "), "{}", measured.machine);
    for era in [Era::V3_2, Era::Clearlane] {
        let (here, shipped) = (measured.costs(era), CostFile::shipped().costs(era));
        let Costs { request_ns, client_ns, .. } = here;
        assert!(request_ns + client_ns > 1_000, "{measured}");
        assert!(here != shipped, "{measured}");
        assert_eq!(here.scan_revision_ns, shipped.scan_revision_ns, "no load shows it");
    }
    let line = ["validate", "head-of-line", "--era", "3.2,clearlane", "--seconds", "2", "--json"];
    let few = ["--set", "expensive.keys=2000", "--set", "keys.count=2000", "--costs", costs];
    let done = tool(&[&line[..], &few, &dir].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let found: Value = serde_json::from_slice(&done.stdout).unwrap();
    let accounting = found["figures"].as_array().unwrap();
    // Two eras, three classes, two percentiles.
    assert_eq!(accounting.len(), 12);
    for figure in accounting {
        let ms = |of: &str| figure[of].as_f64().unwrap();
        assert!(ms("real_ms") > 0.0 && ms("model_ms") > 0.0, "{figure}");
    }
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "servers leave nothing behind");
}

/// The recording omits the transactions that fill the store. It shows the same window for both
/// eras.
#[test]
fn what_is_recorded_here_is_the_time_around_the_longest_wait() {
    if server().is_none() || !cfg!(target_os = "linux") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (data, file) = (path("data"), path("two.jsonl"));
    fs::create_dir(&data).unwrap();
    let few = ["--set", "expensive.keys=2000", "--set", "keys.count=2000"];
    let line = ["record", "head-of-line", "--era", "3.2,clearlane", "--seconds", "3"];
    let done = tool(&[&line[..], &few, &["--dir", &data, "--timeline", &file]].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let words = String::from_utf8(done.stdout).unwrap();
    let recorded = ["3.2", "clearlane"].map(|era| {
        let name = format!("two-{era}.jsonl");
        assert!(words.contains(&name), "{words}");
        let recording = Recording::parse(&name, &fs::read_to_string(path(&name)).unwrap()).unwrap();
        assert_eq!(recording.title(), format!("era {era}"));
        let about = "scenario head-of-line, the real server, ";
        assert!(recording.about().starts_with(about), "{}", recording.about());
        let lanes = recording.timeline.lanes();
        assert!(lanes.iter().all(|(lane, _)| !lane.contains("txn")), "{lanes:?}");
        recording
    });
    let waits =
        recorded.iter().filter_map(|it| it.longest_chain().first().map(|it| it.length_ns()));
    let longest_ns = waits.max().unwrap();
    let ends = recorded.iter().filter_map(|it| it.timeline.bounds());
    let from_ns = ends.clone().map(|(from_ns, _)| from_ns).min().unwrap();
    let to_ns = ends.map(|(_, to_ns)| to_ns).max().unwrap();
    // The window also shows the causes of the wait, which may start before it and end after it. So
    // the window may be several times as long as the wait.
    assert!(to_ns - from_ns >= longest_ns && to_ns - from_ns < 10 * longest_ns);
    assert!(from_ns >= 500_000_000, "the start is left out");
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "servers leave nothing behind");
}

#[test]
fn what_cannot_be_measured_is_told_in_a_line() {
    let server = ["--server", "/nowhere/clearlane"];
    let words = told(&[&["measure"][..], &server].concat());
    assert!(words.contains("/nowhere/clearlane: the program does not exist"), "{words}");
    assert!(words.contains("cargo build --release --bin clearlane`"), "{words}");
    assert!(told(&["measure", "--era", "3.9"]).contains("unknown era \"3.9\""));
    assert!(
        told(&["run", "head-of-line", "--costs", "/nowhere/costs"]).contains("/nowhere/costs: ")
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("costs.toml");
    fs::write(&file, "[\"3.2\"]\nrequest_ns = 3\n").unwrap();
    let words = told(&["run", "head-of-line", "--costs", file.to_str().unwrap()]);
    assert!(words.contains("era 3.2: `quantum_ns` is missing"), "{words}");
    let program = env!("CARGO_MANIFEST_DIR").to_owned() + "/Cargo.toml";
    let words = told(&["validate", "learner", "--server", &program]);
    assert!(words.contains("learner: its table [model] has members or background work"), "{words}");
    let words = told(&["measure", "--server", &program]);
    assert!(words.contains("Permission denied"), "{words}");
}
