//! The count of all keys, and their first page, as keys become more.

use std::time::Duration;

use clearlane_proto::etcdserverpb::RangeRequest;

use super::beside::data;
use super::charts::{lines, log, table_by_point};
use super::check::Check;
use super::context::{Context, Subject};
use super::findings::{Findings, Story};
use super::load::{self, in_a_loop, warn_of_failures};
use super::measurements::{Measurements, quotient};
use crate::Result;
use crate::plot::Better;
use crate::requests::{Call, range};
use crate::servers::{ClusterOptions, ETCD};

const STORY: Story = Story {
    title: "The count of a prefix, and its first page",
    see: "etcd walks over all keys of the range in its index for each count. A first page of 100 \
          keys has the count of all, so it takes as long. In clearlane the index has the number \
          of keys below each node: neither depends on how many there are.",
    published: "A page of two keys out of many took 1.036 s, and 0.009 s once the walk ended at \
                the limit; that was taken back because it changed the count. 2.0 million keys, \
                read in pages: 5 min, and 7 s without counts.",
    source: "etcd pull requests 11990 and 13060, issues 11057 and 16510",
    differs: "The times are those of an index that is in memory alone; the curve, which is \
              straight on these scales, is what is published.",
};

const PAGE_KEYS: u64 = 100;

pub(super) async fn count_and_page(context: &Context) -> Result<Findings> {
    let numbers = context.pick(&[1000_u64, 10_000, 100_000][..], &[10_000, 100_000, 1_000_000]);
    let window = Duration::from_millis(context.pick(500, 5000));
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        let running = context.start(subject, ClusterOptions::default()).await?;
        let (server, endpoint) = (subject.name(), running.endpoint());
        for keys in numbers {
            let space = data(*keys, 32, 64)?.space;
            load::fill(context, &endpoint, &space, seed).await?;
            let count = Call::new("/etcdserverpb.KV/Range", &Call::count(&space), Some(0));
            let page = RangeRequest { limit: PAGE_KEYS as i64, ..range(&space, 0, *keys) };
            let page = Call::new("/etcdserverpb.KV/Range", &page, Some(PAGE_KEYS));
            for (name, call) in [("count", count), ("page", page)] {
                let metrics = in_a_loop(&endpoint, &call, window).await?;
                warn_of_failures(&metrics, &format!("{server}, {name}"), into);
                if let Some(p50) = metrics.latency_ms(0.5) {
                    into.add_at(server, name, *keys as f64, p50);
                }
            }
        }
        running.end().await
    };
    let subjects = context.servers(&["3.5", "clearlane"])?;
    let measured = context.in_turns(&subjects, measure).await?;
    let figures = [("count p50, ms", "count"), ("first page p50, ms", "page")];
    let axes = || [log("keys"), log("p50, ms")];
    let shown = vec![
        table_by_point(&measured, "keys", &figures),
        lines(&measured, "First page of 100 keys", axes(), Better::Lower, "page"),
        lines(&measured, "Count of all keys", axes(), Better::Lower, "count"),
    ];
    let (first, last) = (numbers[0] as f64, numbers[numbers.len() - 1] as f64);
    let growth = |server: &str, figure: &str| {
        let at = |keys| measured.median_at(server, figure, keys);
        quotient(at(last), at(first))
    };
    let mut checks = Vec::new();
    for figure in ["count", "page"] {
        let claim = |server: &str| format!("{server}, {figure} of {last} keys over {first}");
        checks.push(Check::at_least(&claim("era 3.5"), growth("3.5", figure), 4.0));
        if measured.has(ETCD) {
            checks.push(Check::at_least(&claim(ETCD), growth(ETCD, figure), 4.0));
        }
        checks.push(Check::at_most(&claim("clearlane"), growth("clearlane", figure), 4.0));
    }
    let setting = vec![format!(
        "One member, keys of 32 bytes with 64. One client that counts all of them, and then asks \
         for the first {PAGE_KEYS} of all, linearizable, again and again for {} ms each.",
        window.as_millis()
    )];
    Ok(Findings { story: STORY, setting, shown, checks, measured })
}
