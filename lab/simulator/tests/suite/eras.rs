//! The same load in all eras. Two runs with the same seed have the same waits.

use clearlane_simulator::costs::Costs;
use clearlane_simulator::era::Era;
use clearlane_simulator::recorder::Recorded;
use clearlane_simulator::results::Results;
use clearlane_simulator::run::run;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::server::Build;
use clearlane_simulator::show::{Recording, svg, terminal};
use clearlane_simulator::spread::Spread;
use clearlane_simulator::timeline::{Activity, Timeline};

const HEAD_OF_LINE: &str = include_str!("../../../loadgen/workloads/head-of-line.toml");

fn scenario(seconds: u64, seed: u64) -> Scenario {
    let mut scenario = Scenario::parse(HEAD_OF_LINE).unwrap();
    scenario.workload.seconds = seconds;
    Scenario { seed, cores: 4, ..scenario }
}

fn results(scenario: &Scenario, era: Era) -> Results {
    run(scenario, &Build::new(era, Costs::by_hand())).unwrap()
}

fn p99(results: &Results, class: &str) -> f64 {
    let class = results.classes.iter().find(|one| one.name == class).unwrap();
    class.latency_ms(0.99).unwrap()
}

#[test]
fn the_same_seed_is_the_same_run() {
    let mut tables = Vec::new();
    for seed in 0..100 {
        let era = Era::ALL[seed as usize % Era::ALL.len()];
        let scenario = scenario(3, seed);
        let (first, second) = (results(&scenario, era), results(&scenario, era));
        assert_eq!(first.table(), second.table(), "seed {seed}, era {era}");
        assert_eq!(first.steps, second.steps);
        tables.push(first.table());
    }
    tables.sort();
    tables.dedup();
    assert_eq!(tables.len(), 100, "another seed is another run");
}

/// Before 3.4, an expensive read makes the p99 of cheap reads and puts at least eight times as
/// long. From 3.4 on it at most doubles the p99.
#[test]
fn eras_stop_others_as_they_did() {
    let with = scenario(30, 1);
    let mut calm = with.clone();
    calm.workload = calm.workload.without(&["expensive".to_owned()]).unwrap();
    for (era, stops) in [
        (Era::V3_0, true),
        (Era::V3_1, true),
        (Era::V3_2, true),
        (Era::V3_4, false),
        (Era::V3_5, false),
        (Era::Clearlane, false),
    ] {
        let (with, calm) = (results(&with, era), results(&calm, era));
        for class in ["cheap", "put"] {
            let times = p99(&with, class) / p99(&calm, class);
            let fits = if stops { times >= 8.0 } else { times <= 2.0 };
            assert!(fits, "era {era}: {class} takes {times:.1} times as long");
        }
    }
}

#[test]
fn the_table_names_the_blamed_class() {
    let table = results(&scenario(30, 1), Era::V3_2).table();
    let line = table.lines().find(|line| line.trim_start().starts_with("put")).unwrap();
    assert!(line.contains("% readTx (held by expensive)"), "{table}");
    let ours = results(&scenario(30, 1), Era::Clearlane).table();
    assert!(!ours.contains("held"), "there is no lock: {ours}");
}

/// The old eras use the thread pool for all reads except reads of a single key, because these reads
/// may wait for locks. The era `clearlane` uses it for reads of more than 128 keys.
#[test]
fn another_thread_reads_what_is_more_than_a_key() {
    let costs = Costs { pool_ns: 50_000_000, ..Costs::by_hand() };
    for (era, handed_over_from) in [(Era::V3_1, 2), (Era::V3_2, 2), (Era::Clearlane, 129)] {
        for keys in [1, 2, 10, 128, 129, 999] {
            let text = format!(
                "seconds = 1\n[keys]\ncount = 1000\nsize = 16\nvalue = 16\n[[class]]\nname = \"read\"\n\
                 operation = \"range\"\nkeys = {keys}\nrate = 10\nconsistency = \"serializable\"\n"
            );
            let scenario = Scenario::parse(&text).unwrap();
            let results = run(&scenario, &Build::new(era, costs.clone())).unwrap();
            let takes_long = p99(&results, "read") > 50.0;
            assert_eq!(takes_long, keys >= handed_over_from, "{keys} keys in era {era}");
        }
    }
}

/// A write that soon follows another write waits for fewer thread wake-ups, because the machine is
/// still awake.
#[test]
fn frequent_writes_find_threads_awake() {
    let (write_awake_ns, write_wakeups_ns, doze_ns) = (7_000_000, 50_000_000, 100_000_000);
    let costs = Costs { write_awake_ns, write_wakeups_ns, doze_ns, ..Costs::by_hand() };
    let median_ms = |rate: u32| {
        let text = format!(
            "seconds = 20\n[keys]\ncount = 1000\nsize = 16\nvalue = 16\n[[class]]\nname = \"put\"\n\
             operation = \"put\"\nrate = {rate}\n"
        );
        let scenario = Scenario::parse(&text).unwrap();
        let results = run(&scenario, &Build::new(Era::Clearlane, costs.clone())).unwrap();
        results.classes[0].latency_ms(0.5).unwrap()
    };
    // With one write per second, the machine is fully asleep when a write arrives. With ten writes
    // per second it is about half asleep, or less if a commit has kept it awake.
    let [seldom, often, at_once] = [1, 10, 1_000].map(median_ms);
    assert!((57.0..61.0).contains(&seldom), "{seldom}");
    assert!((22.0..37.0).contains(&often), "{often}");
    assert!((7.0..12.0).contains(&at_once), "{at_once}");
}

/// In 3.0 a linearizable read waits for the disk of the log. A serializable read does not, nor does
/// any read of 3.1.
#[test]
fn a_fresh_read_of_the_first_era_is_a_write() {
    let costs = Costs { log_sync: Spread::constant(7_000_000), ..Costs::by_hand() };
    for (era, consistency, waits) in [
        (Era::V3_0, "linearizable", true),
        (Era::V3_0, "serializable", false),
        (Era::V3_1, "linearizable", false),
    ] {
        let text = format!(
            "seconds = 1\n[keys]\ncount = 1000\nsize = 16\nvalue = 16\n[[class]]\nname = \"read\"\n\
             operation = \"range\"\nrate = 10\nconsistency = \"{consistency}\"\n"
        );
        let scenario = Scenario::parse(&text).unwrap();
        let results = run(&scenario, &Build::new(era, costs.clone())).unwrap();
        let ms = p99(&results, "read");
        assert_eq!(ms >= 7.0, waits, "{consistency} in era {era} takes {ms} ms");
    }
}

#[test]
fn what_never_ends_is_not_begun() {
    let text = HEAD_OF_LINE.replace("rate = 1\n", "rate = 100\n");
    let mut scenario = Scenario::parse(&text).unwrap();
    scenario.cores = 2;
    let refused = run(&scenario, &Build::new(Era::Clearlane, Costs::by_hand())).unwrap_err();
    let words = refused.to_string();
    assert!(words.contains(" % of the 2 cores of member 1, so queues"), "{words}");
}

#[test]
fn eras_have_the_names_of_the_flag() {
    for era in Era::ALL {
        assert_eq!(era.name().parse::<Era>().unwrap(), era);
    }
    let words = "unknown era \"3.9\": allowed are 3.0, 3.1, 3.2, 3.4, 3.5, clearlane; ";
    assert!("3.9".parse::<Era>().unwrap_err().to_string().starts_with(words));
}

/// The convoy, step by step. The commit of 3.2 needs the lock that the expensive read holds, and
/// the cheap reads wait for the commit.
#[test]
fn a_timeline_shows_blockers() {
    let mut scenario = Scenario::parse(HEAD_OF_LINE).unwrap();
    scenario.recorded = Recorded::Window(6_675_000_000, 6_735_000_000);
    let timeline = results(&scenario, Era::V3_2).timeline;
    let waits_behind = |lane: &str, front: &str| {
        timeline.spans.iter().any(|span| match &span.activity {
            Activity::Wait { resource: of, blocker: Some(behind) } => {
                span.lane.starts_with(lane) && of == "readTx" && behind.starts_with(front)
            }
            _ => false,
        })
    };
    assert!(waits_behind("commit", "expensive") && waits_behind("cheap", "commit"), "{timeline}");
    assert_eq!(timeline.to_string().parse::<Timeline>().unwrap(), timeline);
    let style = terminal::Style { width: 90, lanes_max: 20, has_colours: false };
    let recording = |timeline| Recording { timeline, ..Recording::default() };
    let picture = terminal::draw(&recording(timeline), style);
    let line = |lane: &str| picture.lines().find(|line| line.starts_with(lane)).unwrap();
    assert!(
        line("expensive").contains("████████") && line("commit").contains("░░░░≈"),
        "{picture}"
    );
    let ours = results(&scenario, Era::Clearlane).timeline;
    assert!(
        !terminal::draw(&recording(ours), style).lines().any(|line| line.contains("░░")),
        "no request waits"
    );
}

#[test]
fn a_picture_closes_what_it_opens() {
    let mut scenario = Scenario::parse(HEAD_OF_LINE).unwrap();
    scenario.recorded = Recorded::Window(6_675_000_000, 6_735_000_000);
    let timeline = results(&scenario, Era::V3_2).timeline;
    let picture = svg::draw(&Recording { timeline, ..Recording::default() });
    for tag in ["svg", "title", "text", "defs", "pattern", "marker", "tspan"] {
        let count = |text: String| picture.matches(&text).count();
        assert_eq!(count(format!("<{tag}")), count(format!("</{tag}>")), "{tag}");
    }
    assert!(picture.contains("waits for readTx, behind commit #1"), "{picture}");
}
