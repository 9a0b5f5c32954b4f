//! Settings that can be changed, and the error messages for the others.

use clearlane_simulator::knobs::KNOBS;
use clearlane_simulator::model::Connect;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::spread::Spread;

const LOAD: &str = include_str!("../../../loadgen/workloads/head-of-line.toml");

fn parsed(model: &str) -> Scenario {
    Scenario::parse(&format!("{LOAD}\n[model]\n{model}")).unwrap()
}

fn told(model: &str) -> String {
    Scenario::parse(&format!("{LOAD}\n[model]\n{model}")).map(drop).unwrap_err().to_string()
}

#[test]
fn a_knob_on_a_command_line_is_a_field_of_a_file() {
    let file = parsed(
        "cores = 16\ncommit_interval_ms = 20\nbatch_limit = 500\nsync_ms = 2\n\
         commit_sync_ms = { mean = 4, p99 = 9 }\nwatchers = { synced = 5, lagging = 40 }",
    );
    let mut turned = Scenario::parse(LOAD).unwrap();
    for (name, value) in [
        ("model.cores", "16"),
        ("model.commit_interval_ms", "20"),
        ("model.batch_limit", "500.0"),
        ("model.sync_ms", "2"),
        ("model.commit_sync_ms.p99", "9"),
        ("model.commit_sync_ms.mean", "4"),
        ("model.watchers.lagging", "40"),
        ("model.watchers.synced", "5"),
    ] {
        turned.set(name, value).unwrap();
    }
    assert_eq!(file.cores, 16);
    assert_eq!((file.model.commit_interval_ns, file.model.batch_limit), (20_000_000, 500));
    assert_eq!(file.model.sync, Some(Spread::constant(2_000_000)));
    assert_eq!((file.model.watchers.synced, file.model.watchers.lagging), (5, 40));
    assert_eq!(file.model.commit_sync, Some(Spread { mean_ns: 4e6, p99_ns: Some(9e6) }));
    assert_eq!((turned.cores, turned.model), (16, file.model));
}

#[test]
fn every_knob_of_the_table_can_be_turned() {
    for (name, _) in KNOBS {
        let told = Scenario::parse(LOAD).unwrap().set(&format!("model.{name}"), "[]").unwrap_err();
        assert!(told.to_string().contains(name), "{told}");
    }
}

#[test]
fn what_has_parts_is_several_knobs() {
    let file = parsed(
        "members = 3\nround_trips_ms.1-3 = { mean = 2, p99 = 5 }\n[model.watchers]\nlagging = 4\n\
         [model.connect]\nput = 2\ncheap = 'spread'",
    );
    let far = Some(Spread { mean_ns: 2e6, p99_ns: Some(5e6) });
    assert_eq!(file.model.round_trips.get(&(1, 3)), Some(&far));
    assert_eq!(file.model.watchers.lagging, 4);
    let connects = ["put", "cheap", "expensive"].map(|class| file.model.connects(class));
    assert_eq!(connects, [Connect::Member(2), Connect::Spread, Connect::Leader]);
}

#[test]
fn classes_and_keys_are_turned_too() {
    let mut scenario = Scenario::parse(LOAD).unwrap();
    for (name, value) in [
        ("cheap.rate", "250.5"),
        ("cheap.consistency", "serializable"),
        ("cheap.arrivals", "\"constant\""),
        ("put.value", "{ min = 1, max = 9 }"),
        ("seconds", "5"),
        ("seed", "9"),
    ] {
        scenario.set(name, value).unwrap();
    }
    assert_eq!((scenario.workload.classes[1].rate, scenario.seed), (250.5, 9));
    assert_eq!(scenario.workload.seconds, 5);
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let names = KNOBS.map(|(name, _)| name).join(", ");
    for (model, line) in [
        ("core = 2", format!("unknown field `core`; known are {names}")),
        ("cores.p99 = 2", format!("unknown field `cores.p99`; known are {names}")),
        ("sync_ms.p90 = 2", format!("unknown field `sync_ms.p90`; known are {names}")),
        ("cores = 0", "`cores` is 0; it must be a whole number from 1 to 1024".to_owned()),
        ("cores = 1.5", "`cores` is 1.5; it must be a whole number from 1 to 1024".to_owned()),
        ("sync_ms = -1", "`sync_ms` is -1; it must be a number from 0 to 3600000".to_owned()),
        ("watchers.late = 1", format!("unknown field `watchers.late`; known are {names}")),
        ("watchers = 1", format!("unknown field `watchers`; known are {names}")),
        (
            "round_trips_ms.near = 1",
            format!("unknown field `round_trips_ms.near`; known are {names}"),
        ),
        ("clients = 'all'", "`clients` is \"all\"; it must be leader or spread".to_owned()),
        ("connect.put = 'all'", "`connect.put` is \"all\"; it must be leader or spread".to_owned()),
        (
            "compaction.every_s = 0.01",
            "`compaction.every_s` is 0.01; it must be 0 or at least 0.1".to_owned(),
        ),
        (
            "auth.logins_per_s = 5",
            "`auth.logins_per_s`: logins need `auth.enabled = true`".to_owned(),
        ),
        ("sync_ms = nan", "`sync_ms` is nan; it must be a number from 0 to 3600000".to_owned()),
        ("sync_ms = 'a'", "`sync_ms` is \"a\"; it must be a number from 0 to 3600000".to_owned()),
        (
            "sync_ms = { mean = 5, p99 = 4 }",
            "`sync_ms` has a mean of 5 and a p99 of 4; p99 must be from the mean to 14.9 times it"
                .to_owned(),
        ),
    ] {
        assert_eq!(told(model), format!("[model]: {line}"));
    }
    let no_table = Scenario::parse(&format!("model = 5\n{LOAD}")).unwrap_err().to_string();
    assert_eq!(no_table, "[model]: `model` must be a table, [model]");
    let mut scenario = Scenario::parse(LOAD).unwrap();
    let told = scenario.set("chap.rate", "5").unwrap_err().to_string();
    assert!(told.contains("CLASS.FIELD, where CLASS is one of expensive, cheap, put"), "{told}");
    let told = scenario.set("model.cores", "2\nother = 3").unwrap_err().to_string();
    assert!(told.contains("it must be a whole number"), "{told}");
}
