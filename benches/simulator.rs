//! The number of events per second that the model of the read path processes.
//!
//! ```text
//! cargo bench --bench simulator
//! ```
//!
//! **The load** resembles a large Kubernetes cluster: 10,000 small reads, 2,000 puts and 50 lists
//! of 500 objects per second, for ten virtual seconds on 16 cores, in each era.
//!
//! **Timed:** one run, from an empty world to its results. An event is a process that continues:
//! its request starts, one of its steps ends, or a lock becomes free for it. The goal is 2,000,000
//! events per second.
//!
//! **Not timed:** reading the workload's file.

use std::hint::black_box;

use clearlane_simulator::cost_file::CostFile;
use clearlane_simulator::era::Era;
use clearlane_simulator::run::run;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::server::Build;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const LOAD: &str = r#"
    seconds = 10

    [keys]
    count = 1_000_000
    size = 64
    value = 4096

    [[class]]
    name = "get"
    operation = "range"
    keys = 1
    rate = 10_000
    arrivals = "poisson"

    [[class]]
    name = "list"
    operation = "range"
    keys = 500
    rate = 50
    arrivals = "poisson"

    [[class]]
    name = "put"
    operation = "put"
    rate = 2_000
    arrivals = "poisson"
"#;

fn events(criterion: &mut Criterion) {
    let scenario = Scenario::parse(LOAD).expect("it is a scenario");
    let scenario = Scenario { cores: 16, ..scenario };
    let mut group = criterion.benchmark_group("simulator");
    group.sample_size(10);
    for era in Era::ALL {
        let build = Build::new(era, CostFile::shipped().costs(era));
        let once = || run(black_box(&scenario), &build).expect("the machine can bear it");
        group.throughput(Throughput::Elements(once().steps));
        group.bench_function(era.name(), |bencher| bencher.iter(once));
    }
    group.finish();
}

criterion_group!(benches, events);
criterion_main!(benches);
