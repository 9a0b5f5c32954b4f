//! Draws unusual data, and compares the pictures with a golden file.

use hdrhistogram::Histogram;

use super::lines::LabelPlace;
use super::*;
use crate::golden;
use crate::page::{Section, html};

fn bars(scale: Scale, groups: &[(&str, &[(&str, f64)])]) -> String {
    let bar = |(name, value): &(&str, f64)| ((*name).to_owned(), era_colour(name), *value);
    let group = |(label, bars): &(&str, &[(&str, f64)])| BarGroup {
        label: (*label).to_owned(),
        bars: bars.iter().map(bar).collect(),
    };
    Bars {
        title: "Answers".to_owned(),
        y: Axis::new("answered, requests/s", scale),
        better: Better::Higher,
        groups: groups.iter().map(group).collect(),
    }
    .svg()
}

fn lines<'a>(
    scale: Scale,
    lines: impl IntoIterator<Item = (&'a str, Vec<(f64, f64)>)>,
    place: LabelPlace,
) -> String {
    let line = |(name, points): (&str, _)| Line {
        label: name.to_owned(),
        colour: era_colour(name),
        points,
    };
    Plot {
        title: "Latency of cheap reads".to_owned(),
        x: Axis::new("time, s", Scale::Linear),
        y: Axis::new("latency, ms", scale),
        better: Better::Lower,
        lines: lines.into_iter().map(line).collect(),
    }
    .draw(place)
}

fn histogram(latencies_us: impl Iterator<Item = u64>) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("three digits");
    latencies_us.for_each(|us| histogram.record(us * 1000).expect("it grows"));
    histogram
}

#[test]
fn pictures_are_as_they_were() {
    let nan = f64::NAN;
    let (few, steady) = (histogram(1..=5), histogram((0..20_000).map(|at| at * 7 % 5000 + 1)));
    let latencies = [
        ("3.2".to_owned(), era_colour("3.2"), &steady),
        ("clearlane".to_owned(), era_colour("clearlane"), &few),
    ];
    let percentiles = latency_by_percentile("Cheap reads", &latencies).expect("one has many");
    assert!(latency_by_percentile("Cheap reads", &latencies[1..]).is_none(), "five requests");
    let rise = || vec![(0.0, 1.0), (30.0, 20.0), (60.0, 5.0)];
    let gaps = vec![(0.0, 1.0), (1.0, 2.0), (2.0, nan), (3.0, 2.0), (4.0, 1.0 / 0.0), (5.0, 1.0)];
    let names: Vec<_> = (0..30).map(|line| format!("a line with a long name, {line}")).collect();
    let crowd = names.iter().zip(0_u32..).map(|(name, line)| {
        let point = |at| (f64::from(at), f64::from(at * line % 7));
        (name.as_str(), (0..50).map(point).collect())
    });
    let at_end = LabelPlace::End;
    let groups: [(&str, &[_]); 2] =
        [("reads", &[("3.2", 12_345.0), ("clearlane", 24_690.0)]), ("p<uts", &[("3.2", 0.0)])];
    let pictures = [
        ("groups, and a text with markup", bars(Scale::Linear, &groups)),
        ("zero on a log scale", bars(Scale::Log, &[("", &[("a", 0.0), ("b", 1e3), ("c", 1e4)])])),
        ("a bar without data", bars(Scale::Log, &[("a", &[("b", nan)])])),
        ("no bars", bars(Scale::Linear, &[("a", &[])])),
        (
            "one colour, three dashes",
            lines(Scale::Log, ["3.2", "etcd", "3.2", "3.2"].map(|name| (name, rise())), at_end),
        ),
        ("gaps", lines(Scale::Linear, [("etcd", gaps)], at_end)),
        ("only zero", lines(Scale::Log, [("etcd", vec![(0.0, 0.0)])], at_end)),
        (
            "too little data",
            lines(Scale::Log, [("<&>", vec![(nan, 1.0)]), ("3.5", vec![])], at_end),
        ),
        ("no lines", lines(Scale::Nines, [], at_end)),
        ("more labels than fit", lines(Scale::Linear, crowd, at_end)),
        ("labels at peaks", lines(Scale::Linear, [("3.5", rise())], LabelPlace::Peak)),
        ("percentiles", percentiles.svg()),
        ("histogram", latency_histogram("Cheap reads", &latencies)),
    ];
    assert!(pictures.iter().all(|(_, svg)| !svg.contains("NaN") && !svg.contains("inf")));
    let section = |(caption, svg): (&str, _)| Section::Figure { svg, caption: caption.to_owned() };
    golden::compare("plots.html", &html("Plots", &pictures.map(section)));
}
