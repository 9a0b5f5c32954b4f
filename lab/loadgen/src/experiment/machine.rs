//! Describes the machine of an experiment, as Linux reports it.

use std::fs;
use std::thread;

use serde::Serialize;
use time::OffsetDateTime;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    cores: usize,
    processor: String,
    memory_gib: u64,
    kernel: String,
    date: String,
    /// The directory below which servers have their data.
    data: String,
}

/// Processor ticks of all cores since the machine started. `wanted` is the number of ticks in which
/// a core had work to do. `withheld` is the part of `wanted` in which the core did not run, because
/// the host of a virtual machine ran something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ticks {
    wanted: u64,
    withheld: u64,
}

impl Machine {
    /// Reads the properties of this system. A property that the system does not report is empty or
    /// marked as unknown.
    pub fn of_this_system() -> Machine {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kib = memory.trim_end_matches(" kB").parse::<u64>().unwrap_or_default();
        let unknown = || "an unknown processor".to_owned();
        let system = std::env::consts::OS;
        Machine {
            cores: thread::available_parallelism().map_or(1, usize::from),
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(unknown),
            memory_gib: (kib + (1 << 19)) >> 20,
            kernel: format!("{system} {}", read("/proc/sys/kernel/osrelease").trim()),
            date: OffsetDateTime::now_utc().date().to_string(),
            data: std::env::temp_dir().display().to_string(),
        }
    }

    pub fn sentence(&self) -> String {
        let Machine { cores, processor, memory_gib, kernel, date, data } = self;
        format!(
            "{cores} cores of {processor}, {memory_gib} GiB, {kernel}, {date}; servers and load \
             share them; data below {data}."
        )
    }
}

impl Ticks {
    pub(super) fn now() -> Ticks {
        Ticks::parse(&fs::read_to_string("/proc/stat").unwrap_or_default()).unwrap_or_default()
    }

    /// Parses the line for all cores in the text of `/proc/stat`. The fields of the line are user,
    /// nice, system, idle, waiting, two kinds of interrupts, and withheld.
    fn parse(stat: &str) -> Option<Ticks> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks = line.split_whitespace().map(|field| field.parse::<u64>().ok());
        let ticks = ticks.collect::<Option<Vec<_>>>()?;
        let [user, nice, system, _, _, hard, soft, withheld] = ticks.get(..8)?.try_into().ok()?;
        Some(Ticks { wanted: user + nice + system + hard + soft + withheld, withheld })
    }

    pub(super) fn withheld_percent_since(self, before: Ticks) -> f64 {
        let wanted = self.wanted.saturating_sub(before.wanted).max(1) as f64;
        100.0 * self.withheld.saturating_sub(before.withheld) as f64 / wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_withheld_is_a_share_of_what_was_wanted() {
        let before = Ticks::parse("cpu  10 0 10 900 5 0 0 0 0 0\ncpu0 1 2").expect("a line");
        let after = Ticks::parse("cpu  60 5 20 990 5 3 2 10 0 0\n").expect("a line");
        assert_eq!(after.withheld_percent_since(before), 12.5);
        assert_eq!(before.withheld_percent_since(before), 0.0);
        assert_eq!((Ticks::parse(""), Ticks::parse("cpu 1 2 x")), (None, None));
    }

    #[test]
    fn the_machine_is_told_in_a_sentence() {
        let machine = Machine::of_this_system();
        let sentence = machine.sentence();
        assert!(sentence.contains(" cores of ") && sentence.ends_with('.'), "{sentence}");
    }
}
