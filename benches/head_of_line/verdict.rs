//! Decides in which eras the expensive read delays the other operations.

use std::fmt::Write as _;

use clearlane_backend::Era;

use crate::load::{Class, Load};
use crate::plot::readable_time;
use crate::summary::Summary;

/// The expensive read delays a class of operations if it raises the p99 of the class to more than
/// this multiple of the p99 during `Load::Spin`, which only keeps a core busy. The scheduler can
/// cause smaller differences.
const HELD_UP_FACTOR: f64 = 10.0;

/// Returns a row for each era, and a sentence that lists the eras with a delay. In a test run
/// (`is_quick`), another sentence explains that there is no verdict.
pub(crate) fn verdict(summary: &Summary, eras: &[Era], is_quick: bool) -> String {
    let mut text =
        "99 of 100 take at most (in brackets: beside a thread that only keeps a core busy)\n\
                    era        put                    cheap read             puts served  \
                    for each read\n"
            .to_owned();
    let (mut held_up, mut unaffected) = (Vec::new(), Vec::new());
    for era in eras {
        let p99_us =
            |load, class| summary.cell(*era, load, class).map_or(0.0, |cell| cell.latency_us(0.99));
        let times = |class| {
            let beside_spin = format!("({})", readable_time(p99_us(Load::Spin, class)));
            format!("{:>8} {beside_spin:12}", readable_time(p99_us(Load::Expensive, class)))
        };
        let served = summary.cell(*era, Load::Expensive, Class::Put);
        let _ = writeln!(
            text,
            "{:9} {} {} {:8.0} % {:11.1}",
            era.name(),
            times(Class::Put),
            times(Class::CheapRead),
            served.map_or(0.0, |cell| cell.served_percent()),
            served.map_or(0.0, |cell| cell.served_per_read()),
        );
        let is_held_up = Class::ALL.iter().any(|class| {
            p99_us(Load::Expensive, *class) > HELD_UP_FACTOR * p99_us(Load::Spin, *class)
        });
        if is_held_up { held_up.push(era.name()) } else { unaffected.push(era.name()) }
    }
    if is_quick {
        return text + "\nno verdict: the windows of a test run are too short";
    }
    let named = |eras: &[&str]| if eras.is_empty() { "none".into() } else { eras.join(", ") };
    let _ = write!(
        text,
        "\nverdict: beside the expensive read others take more than {HELD_UP_FACTOR} times as long \
         in: {}; not in: {}",
        named(&held_up),
        named(&unaffected),
    );
    text
}
