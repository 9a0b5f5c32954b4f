//! The program's output, and its error messages for wrong arguments.

use std::fs;
use std::process::{Command, Output};

use clearlane_simulator::era::Era;
use clearlane_simulator::knobs::KNOBS;
use clearlane_simulator::shipped::Shipped;
use clearlane_simulator::show::{Recording, sentence};
use serde_json::Value;

fn tool(line: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_clearlane-sim");
    Command::new(program).args(line.split_whitespace()).output().unwrap()
}

/// Returns the standard output of a successful run.
fn said(line: &str) -> String {
    let output = tool(line);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{line}: {errors}");
    assert_eq!(errors, "", "no terminal: no progress");
    String::from_utf8(output.stdout).unwrap()
}

fn json(line: &str) -> Value {
    serde_json::from_str(&said(line)).unwrap()
}

/// Returns the standard error of a failed run.
fn told(line: &str) -> String {
    let output = tool(line);
    assert!(!output.status.success(), "{line}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "", "{line}");
    String::from_utf8(output.stderr).unwrap()
}

fn scenario(directory: &tempfile::TempDir, text: &str) -> String {
    let path = directory.path().join("scenario.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_run_has_a_table_for_each_era_or_says_the_same_in_json() {
    let line = "run head-of-line --era 3.2,clearlane --seconds 5 --seed 3 --cores 4";
    let tables = said(line);
    let heading = "scenario head-of-line: 4 cores, seed 3, 5 s of requests\n\nera 3.2\n";
    assert!(tables.starts_with(heading) && tables.matches("\nera ").count() == 2, "{tables}");
    assert!(tables.contains(" p99.9 ms    max ms   the slowest"), "{tables}");
    let verdict = tables.lines().find(|line| line.starts_with("cheap: ")).unwrap();
    let words = ["p99 is lowest in clearlane, ", "highest in 3.2, ", "which expensive holds."];
    assert!(words.iter().all(|words| verdict.contains(words)), "{verdict}");
    assert!(tables.contains("era 3.2\n") && tables.contains("era clearlane\n"), "{tables}");
    let all = json(&format!("{line} --json"));
    let cheap = &all[0]["classes"][1];
    assert_eq!((&all[0]["era"], &cheap["name"]), (&"3.2".into(), &"cheap".into()));
    let slowest = &cheap["slowest"][0];
    assert_eq!((&slowest["on"], &slowest["held_by"]), (&"readTx".into(), &"expensive".into()));
    let p99 = cheap["latency_ms"]["p99"].as_f64().unwrap();
    assert!(tables.contains(&format!("{p99:.2}")), "{p99}\n{tables}");
    assert!(
        cheap["answered"].as_u64() == cheap["due"].as_u64() && all.as_array().unwrap().len() == 2
    );
}

#[test]
fn each_era_has_a_file_of_the_longest_wait() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let line = "run head-of-line --seconds 5 --cores 4 --era";
    let words = said(&format!("{line} 3.2,clearlane --timeline {}", path("two.jsonl")));
    let recorded = ["two-3.2.jsonl", "two-clearlane.jsonl"].map(|name| {
        let text = fs::read_to_string(path(name)).unwrap();
        Recording::parse(name, &text).unwrap()
    });
    let [old, ours] = &recorded;
    assert_eq!((old.title().as_str(), ours.title().as_str()), ("era 3.2", "era clearlane"));
    assert_eq!(old.about(), "scenario head-of-line, the model, 4 cores, seed 1");
    let chain = old.longest_chain();
    let end = chain.last().unwrap();
    assert!(end.lane.starts_with("expensive #"), "{}", sentence(&chain));
    assert!(words.contains(&format!("two-3.2.jsonl: {}\n", sentence(&chain))), "{words}");
    // All eras have the same window, which contains the whole wait.
    let (from_ns, to_ns) = old.timeline.bounds().unwrap();
    assert!(from_ns < chain[0].from_ns && chain[0].to_ns < to_ns && to_ns - from_ns < 400_000_000);
    let (own_from_ns, own_to_ns) = ours.timeline.bounds().unwrap();
    assert!(own_from_ns < to_ns && from_ns < own_to_ns);
    said(&format!("{line} 3.2 --timeline {}", path("one.jsonl")));
    let [one, two] =
        ["one.jsonl", "two-3.2.jsonl"].map(|name| fs::read_to_string(path(name)).unwrap());
    assert_eq!(one, two);
    let picture = said(&format!("show {} --as svg", path("one.jsonl")));
    assert!(picture.contains(&sentence(&chain)[..40]) && picture.contains("class=\"chain\""));
}

#[test]
fn a_part_is_recorded_that_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("part");
    let line = "run head-of-line --seconds 2 --era 3.2 --from 700 --for 100";
    said(&format!("{line} --timeline {}", file.display()));
    let recording = Recording::parse("part", &fs::read_to_string(&file).unwrap()).unwrap();
    let (from_ns, to_ns) = recording.timeline.bounds().unwrap();
    assert!(from_ns >= 700_000_000 && to_ns <= 800_000_000);
}

/// Runs the commands that `docs/head-of-line.md` lists for its picture. The result must equal the
/// committed file `docs/images/convoy.svg`.
#[test]
fn the_picture_in_the_docs_is_what_the_model_draws() {
    let directory = tempfile::tempdir().unwrap();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let recorded = ["3.2", "clearlane"].map(|era| {
        let file = directory.path().join(format!("era-{era}.jsonl"));
        let file = file.to_str().unwrap().to_owned();
        said(&format!(
            "run {root}/lab/loadgen/workloads/convoy.toml --cores 4 --era {era} \
             --costs {root}/lab/simulator/costs/by-hand.toml \
             --timeline {file} --from 4679 --for 50"
        ));
        file
    });
    let picture = said(&format!("show {} --from 4679 --for 50 --as chain", recorded.join(" ")));
    let shown = fs::read_to_string(format!("{root}/docs/images/convoy.svg")).unwrap();
    assert!(picture == shown, "draw docs/images/convoy.svg anew, as docs/head-of-line.md says");
}

#[test]
fn the_blame_of_a_class_is_a_row_of_shares() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("timeline");
    let spans = concat!(
        r#"{"lane":"list #1","kind":"read","what":"hold","of":"readTx","from":0,"to":6000000}"#,
        "\n",
        r#"{"lane":"put #1","kind":"write","what":"disk","from":0,"to":2000000}"#,
        "\n",
        r#"{"lane":"put #1","kind":"write","what":"wait","of":"readTx","#,
        r#""behind":"list #1","from":2000000,"to":6000000}"#,
        "\n",
        r#"{"lane":"put #2","kind":"write","what":"run","from":0,"to":2000000}"#,
        "\n",
    );
    fs::write(&file, spans).unwrap();
    let table = said(&format!("show {} --as blame", file.display()));
    let rows: Vec<_> = table.lines().skip(2).collect();
    let put = "| put | 2 | 4.00 ms | 50.0 % readTx, held by list; 25.0 % running; 25.0 % disk |";
    assert_eq!(rows, [put]);
}

#[test]
fn a_number_of_a_scenario_can_be_set() {
    let line = "run head-of-line --era clearlane --seconds 5 --json";
    let count = |line: &str| json(line)[0]["classes"][1]["due"].as_u64().unwrap();
    let (once, twice) = (count(line), count(&format!("{line} --set cheap.rate=1000")));
    assert!((400..600).contains(&once) && (4500..5500).contains(&twice), "{once}, {twice}");
    // The setting has the same effect as --cores.
    let busy = |line: &str| json(line)[0].to_string();
    let set = busy(&format!("{line} --set model.cores=7 --set seconds=3"));
    assert_eq!(set, busy("run head-of-line --era clearlane --json --cores 7 --seconds 3"));
}

#[test]
fn a_comparison_says_what_was_removed() {
    let line = "compare head-of-line --era 3.2,clearlane --seconds 10 --cores 4";
    let text = said(line);
    let sentence = text.lines().find(|line| line.starts_with("put: ")).unwrap();
    assert!(
        sentence.contains("of waiting for readTx, which expensive holds in 3.2, from"),
        "{sentence}"
    );
    assert!(sentence.ends_with(" from the slowest 1 %, on average."), "{sentence}");
    let same = said("compare head-of-line --era 3.4,3.5 --seconds 3 --cores 4 --set cheap.rate=1");
    assert!(same.contains(": p99 is the same in 3.4 and 3.5.\n"), "{same}");
    let json = json(&format!("{line} --json"));
    assert_eq!(json["classes"][2]["sentence"].as_str(), Some(sentence));
    assert!(json["classes"][2]["ratio"]["p99"].as_f64().unwrap() > 1.5, "{json}");
    assert_eq!(said(line), text, "the same seed is the same run");
    let head = [
        "scenario head-of-line: 4 cores, seed 1, 10 s of requests",
        "",
        "class      time       3.2 (ms) clearlane (ms)    ratio   the slowest 1 % spend their time on",
    ];
    assert_eq!(text.lines().take(3).collect::<Vec<_>>(), head);
    let rows = text.lines().skip(3).take(9).map(|row| row.trim_start_matches(char::is_alphabetic));
    let rows: Vec<_> = rows.map(|row| row.split_whitespace().next().unwrap()).collect();
    assert_eq!(rows, ["p50", "p99", "max"].repeat(3));
    let back = said("compare head-of-line --era clearlane,3.2 --seconds 10 --cores 4");
    let worse =
        "of waiting for readTx, which expensive holds in 3.2, to the slowest 1 %, on average.";
    assert!(back.contains("; 3.2 adds ") && back.contains(worse), "{back}");
}

#[test]
fn a_list_has_all_that_can_be_asked_for() {
    let (text, json) = (said("list"), json("list --json"));
    let eras = Era::ALL.map(|era| ("eras", era.name().to_owned()));
    let scenarios = Shipped::all().map(|shipped| ("scenarios", shipped.name.to_owned()));
    let knobs = KNOBS.iter().map(|(name, _)| ("knobs", format!("model.{name}")));
    for (part, name) in eras.into_iter().chain(scenarios).chain(knobs) {
        assert!(text.contains(&format!("\n  {name} ")), "{name}: {text}");
        let entries = json[part].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["name"] == name.as_str()).unwrap();
        assert!(entry["about"].as_str().unwrap().len() > 4, "{entry}");
    }
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    for (line, expected) in [
        ("", "Usage: clearlane-sim"),
        ("fly", "unrecognized subcommand 'fly'"),
        ("run", "<SCENARIO>"),
        ("run nothing", "no file or shipped scenario has this name; known are "),
        ("run ./nothing.toml", "./nothing.toml: No such file"),
        ("run head-of-line --era 3.9", "unknown era \"3.9\": allowed are 3."),
        ("run head-of-line --cores 0", "0 is not in 1..=1024"),
        ("run head-of-line --seconds 0", "0 is not in 1..=86400"),
        ("run head-of-line --from 5", "--timeline <FILE>"),
        ("record head-of-line --server nothing", "--timeline <FILE>"),
        (
            "record head-of-line --server nothing --timeline x",
            "nothing: the program does not exist",
        ),
        ("run head-of-line --set cheap.rate", "must be NAME=VALUE, such as cheap.rate=200"),
        (
            "run head-of-line --set chip.rate=1",
            "unknown field `chip.rate`; known are seconds, keys.FIELD",
        ),
        ("run head-of-line --set cheap.rate=0", "`rate` is 0; it must be a number above 0"),
        ("run head-of-line --set model.crows=1", "unknown field `crows`; known are cores, "),
        ("run head-of-line --set cheap.rate=900000", "head-of-line: era 3.0: the requests need "),
        ("compare head-of-line --era 3.2", "--era has 1 eras; it must have two"),
        ("compare head-of-line --era 3.1,3.2,3.4", "--era has 3 eras"),
        ("show nothing.json", "nothing.json: No such file"),
        ("show nothing --as painting", "[possible values: "),
        ("list eras", "unexpected argument 'eras'"),
    ] {
        let told = told(line);
        assert!(told.contains(expected), "{line}: {told}");
    }
}

#[test]
fn what_is_wrong_in_a_file_is_said_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let class = "[[class]]\nname = \"a\"\noperation = \"put\"\nrate = 1\n";
    let keys = "seconds = 1\n[keys]\ncount = 10\nsize = 16\nvalue = 1\n";
    for (text, expected) in [
        ("seconds = ".to_owned(), "line 1 is not TOML"),
        (format!("threads = 1\n{keys}{class}"), "unknown field `threads`"),
        (keys.to_owned(), "`class` is missing"),
        (format!("{keys}{class}rates = 5\n"), "unknown field `rates`"),
        (format!("{keys}{class}[model]\ncrows = 5\n"), "[model]: unknown field `crows`"),
        (
            format!("{keys}{}", class.replace("= 1", "= -1")),
            "`rate` is -1; it must be a number above 0",
        ),
    ] {
        let file = scenario(&directory, &text);
        for command in ["run", "compare"] {
            let told = told(&format!("{command} {file}"));
            assert!(told.contains(expected) && told.contains(&file), "{text}: {told}");
        }
    }
}
