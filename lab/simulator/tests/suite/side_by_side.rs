//! Eras that run at the same time.

use clearlane_simulator::cost_file::CostFile;
use clearlane_simulator::era::Era;
use clearlane_simulator::results::Results;
use clearlane_simulator::run::{run, run_each};
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::server::Build;

#[test]
fn eras_side_by_side_are_eras_one_after_the_other() {
    let mut scenario = Scenario::parse(include_str!("../../scenarios/learner.toml")).unwrap();
    scenario.set("seconds", "3").unwrap();
    let tables = |results: Vec<Results>| results.iter().map(Results::table).collect::<Vec<_>>();
    let builds = Era::ALL.map(|era| Build::new(era, CostFile::shipped().costs(era)));
    let one_after_the_other = builds.iter().map(|build| run(&scenario, build).unwrap()).collect();
    let runs: Vec<_> = builds.iter().map(|build| (&scenario, build)).collect();
    let side_by_side = run_each(&runs).into_iter().map(Result::unwrap).collect();
    assert_eq!(tables(side_by_side), tables(one_after_the_other));
}
