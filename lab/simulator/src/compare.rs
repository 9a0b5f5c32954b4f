//! Compares two eras: the latency of each class, and the waits that the second era removes.
//!
//! For each resource that slow requests wait for, the removed time is the time in the first era
//! minus the time in the second era:
//!
//! ```text
//!   3.2         readTx ░░░░░░░░░░░░░░░░░░░░░░░ batchTx ░ running ██
//!   clearlane                                            running ██
//!               └──────── removed ───────────┘
//! ```

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::results::{ClassResults, Results, Share, number};

/// Two latencies are considered equal if neither is this many times as long as the other.
pub(crate) const SAME: f64 = 1.1;

const SHOWN: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("max", 1.0)];

#[derive(Clone, Copy, Debug)]
pub struct Comparison<'r> {
    pub before: &'r Results,
    pub after: &'r Results,
}

type Pair<'r> = (&'r ClassResults, &'r ClassResults);

impl<'r> Comparison<'r> {
    /// Returns the classes of both eras in pairs. Skips classes that exist in one era only.
    fn pairs(&self) -> impl Iterator<Item = Pair<'r>> {
        self.before.classes.iter().filter_map(|class| {
            let others = &self.after.classes;
            Some((class, others.iter().find(|other| other.name == class.name)?))
        })
    }

    pub fn table(&self) -> String {
        let [before, after] = [self.before.era.name(), self.after.era.name()];
        let widest = self.pairs().map(|(class, _)| class.name.chars().count()).max();
        let width = widest.unwrap_or(0).max(5);
        let mut table = format!(
            "{:width$}  {:>4} {:>14} {:>14} {:>8}   the slowest 1 % spend their time on\n",
            "class",
            "time",
            format!("{before} (ms)"),
            format!("{after} (ms)"),
            "ratio"
        );
        for (one, other) in self.pairs() {
            let blames =
                [self.blame(self.before, one), self.blame(self.after, other), String::new()];
            for ((row, (quantile, at)), blame) in SHOWN.into_iter().enumerate().zip(blames) {
                let name = if row == 0 { one.name.as_str() } else { "" };
                let times = [one.latency_ms(at), other.latency_ms(at)];
                let ratio = times[0].zip(times[1]).map(|(before, after)| before / after);
                let line = format!(
                    "{name:width$}  {quantile:>4} {:>14} {:>14} {:>8}   {blame}",
                    number(times[0]),
                    number(times[1]),
                    number(ratio)
                );
                let _ = writeln!(table, "{}", line.trim_end());
            }
        }
        table
    }

    fn blame(&self, results: &Results, class: &ClassResults) -> String {
        let shares = results.shares(class).into_iter().take(3);
        // The text names the largest share, and each other share of at least 1 %.
        let shares = shares.enumerate().filter(|(place, share)| *place == 0 || share.share >= 0.01);
        let shares = shares.map(|(_, share)| share.to_string());
        format!("{}: {}", results.era, shares.collect::<Vec<_>>().join(", "))
    }

    pub fn sentences(&self) -> Vec<String> {
        self.pairs().map(|pair| self.sentence(pair)).collect()
    }

    fn sentence(&self, (one, other): Pair<'r>) -> String {
        let (name, [before, after]) = (&one.name, [self.before.era, self.after.era]);
        let refused = match [one.refused, other.refused] {
            [0, 0] => String::new(),
            [of_one, of_other] => {
                format!(" {before} rejects {of_one} of them, {after} {of_other}.")
            }
        };
        let Some((was, is)) = one.latency_ms(0.99).zip(other.latency_ms(0.99)) else {
            return format!(
                "{name}: no requests were answered, so there is nothing to compare.{refused}"
            );
        };
        let changes = self.changes((one, other));
        if was / is < SAME && is / was < SAME {
            return format!("{name}: p99 is the same in {before} and {after}.{refused}");
        }
        let mut sentence =
            format!("{name}: p99 is {was:.2} ms in {before} and {is:.2} ms in {after}");
        // The largest gain. If the class became slower, the largest loss.
        let (change, is_gain) =
            if was > is { (changes.first(), true) } else { (changes.last(), false) };
        if let Some(change) = change {
            let (verb, ms, era) = match is_gain {
                true => ("removes", change.was_ms - change.is_ms, before),
                false => ("adds", change.is_ms - change.was_ms, after),
            };
            let what = change.words();
            let holds = change.blocked_by.map(|holder| format!(", which {holder} holds in {era},"));
            let (holds, towards) = (holds.unwrap_or_default(), if is_gain { "from" } else { "to" });
            let _ = write!(
                sentence,
                "; {after} {verb} {ms:.2} ms of {what}{holds} {towards} the slowest 1 %, on average"
            );
        }
        format!("{sentence}.{refused}")
    }

    /// Returns the time that slow requests spend on each resource in both eras. The largest gain is
    /// first.
    fn changes(&self, (one, other): Pair<'r>) -> Vec<TimeChange> {
        let (was, is) = (self.before.shares(one), self.after.shares(other));
        let find = |shares: &[Share], name| shares.iter().find(|share| share.name == name).cloned();
        let mut names: Vec<_> = was.iter().chain(&is).map(|share| share.name).collect();
        names.sort_unstable();
        names.dedup();
        let change = |name| {
            let (was, is) = (find(&was, name), find(&is, name));
            let ms = |share: &Option<Share>| share.as_ref().map_or(0.0, |share| share.each_ms);
            let (was_ms, is_ms) = (ms(&was), ms(&is));
            let held_by = if was_ms > is_ms { was } else { is }.and_then(|share| share.blocked_by);
            TimeChange { name, was_ms, is_ms, blocked_by: held_by }
        };
        let mut changes: Vec<_> = names.into_iter().map(change).collect();
        changes.sort_by(|a, b| (b.was_ms - b.is_ms).total_cmp(&(a.was_ms - a.is_ms)));
        changes
    }

    pub fn json(&self) -> Value {
        let classes = self.pairs().zip(self.sentences()).map(|(pair, sentence)| {
            let ratios = SHOWN.map(|(name, at)| {
                let times = pair.0.latency_ms(at).zip(pair.1.latency_ms(at));
                (name.to_owned(), json!(times.map(|(before, after)| before / after)))
            });
            let ratio = Value::Object(ratios.into_iter().collect());
            json!({ "name": pair.0.name, "ratio": ratio, "sentence": sentence })
        });
        json!({
            "before": self.before.json(),
            "after": self.after.json(),
            "classes": classes.collect::<Vec<_>>(),
        })
    }
}

/// The time that slow requests spend on one resource in each era.
struct TimeChange {
    name: &'static str,
    was_ms: f64,
    is_ms: f64,
    blocked_by: Option<&'static str>,
}

impl TimeChange {
    fn words(&self) -> String {
        wait_words(self.name)
    }
}

/// Returns a description of how time was spent.
pub(crate) fn wait_words(name: &str) -> String {
    match name {
        "running" | "waiting for a core" => name.to_owned(),
        name => format!("waiting for {name}"),
    }
}
