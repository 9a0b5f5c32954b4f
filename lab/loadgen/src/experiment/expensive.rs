//! How many keys an expensive read has.
//!
//! A fixed number of keys loses its effect when the engine becomes faster: the read is over before
//! anybody waits for it. So the size follows from a time: an expensive read has as many keys as
//! hold the lock `readTx` of era 3.2 for [`HOLD_MIN`] on this machine, and at least as many as were
//! published. That is measured once for each load, and all servers get the same reads.
//!
//! ```text
//!   fill keys ──▶ read all, several times ──▶ shortest hold of the lock ──▶ long enough?
//!       ▲                                                                    │ no
//!       └──────────────── as many as would hold it for that time ◀───────────┘
//! ```
//!
//! `--keys N` sets the number instead, and nothing is measured.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;

use super::beside::data_keys;
use super::context::{Context, Running, Subject, channel};
use super::load;
use super::number::number;
use crate::keys::Sizes;
use crate::requests::range;
use crate::server_latency::metrics_page;
use crate::servers::ClusterOptions;
use crate::workload::Workload;
use crate::{Error, Result, connection};

/// Least time that the expensive read holds its lock. At one such read a second, a tenth of all
/// other requests arrive during a hold: more than enough for their 99th percentile to show it.
pub(super) const HOLD_MIN: Duration = Duration::from_millis(100);
/// The era whose lock is measured.
const ERA: &str = "3.2";
/// The metric with the total time that reads have held that lock.
const HOLDS: &str = "clearlane_lock_hold_seconds_sum{lock=\"readTx\",mode=\"read\"} ";
/// Number of keys that are read first.
const FIRST_KEYS: u64 = 2000;
/// Number of reads in one measurement. The shortest one counts, because other work of the machine
/// makes a read longer.
const READS: usize = 5;
const ATTEMPTS: usize = 6;
/// A large read takes longer for each key than a small one, so a number grows in steps.
const GROWTH_MAX: u64 = 4;
/// Aims at more than the least time, so that the next measurement is the last one.
const MARGIN: f64 = 1.15;
/// Largest size of all keys and values. A faster engine needs a longer [`HOLD_MIN`] or other reads.
const BYTES_MAX: u64 = 3 << 29;

/// The sizes of values in the published figures with large values.
pub(super) const LARGE_VALUES: &str = "{ min = 1024, max = 32768 }";

/// The keys and values of a load whose expensive read is sized.
#[derive(Clone, Copy, Debug)]
pub(super) struct Records<'a> {
    pub(super) key_size: u64,
    /// As in a workload file.
    pub(super) value: &'a str,
    /// The least number of keys in an expensive read: the published number, if the scale has it.
    pub(super) keys_min: u64,
}

/// The size of an expensive read, and the reason for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExpensiveRead {
    pub(super) keys: u64,
    pub(super) reason: String,
}

impl ExpensiveRead {
    pub(super) async fn size(context: &Context, records: Records<'_>) -> Result<ExpensiveRead> {
        if let Some(keys) = context.keys {
            let reason = format!("An expensive read has {keys} keys, as `--keys` says.");
            return Ok(ExpensiveRead { keys, reason });
        }
        let subject = context.program_or_given(ERA)?;
        let result = tokio::select! {
            biased;
            () = context.stop.wait() => {
                Err(Error::Local("interrupted while the expensive read was sized".to_owned()))
            }
            result = ExpensiveRead::measure(context, &subject, records) => result,
        };
        if result.is_err() {
            subject.clean_up().await;
        }
        result
    }

    async fn measure(
        context: &Context,
        subject: &Subject,
        records: Records<'_>,
    ) -> Result<ExpensiveRead> {
        let running = context.start(subject, ClusterOptions::default()).await?;
        let mut keys = records.keys_min.max(FIRST_KEYS);
        let mut attempts = 0;
        let hold = loop {
            let hold = Hold::measure(context, &running, records, keys).await?;
            let sentence = hold.sentence(subject.name());
            context.tell(&format!("an expensive read of {keys} keys {sentence}"));
            let next = keys_for_hold(keys, hold.time, records);
            attempts += 1;
            if next == keys || attempts == ATTEMPTS {
                break hold;
            }
            keys = next;
        };
        running.end().await?;
        let sentence = hold.sentence(subject.name());
        let (ms, keys_min) = (HOLD_MIN.as_millis(), records.keys_min);
        let least = if keys_min > 0 { format!(", and {keys_min} keys") } else { String::new() };
        let reason = format!(
            "An expensive read has {keys} keys. It {sentence}, measured before the load; the least \
             is {ms} ms{least}. `--keys {keys}` repeats this size."
        );
        Ok(ExpensiveRead { keys, reason })
    }
}

/// Returns the same number if it is right: the hold is long enough, and not twice as long without
/// need.
fn keys_for_hold(keys: u64, hold: Duration, records: Records<'_>) -> u64 {
    let is_least = keys <= records.keys_min;
    if hold >= HOLD_MIN && (is_least || hold < 2 * HOLD_MIN) {
        return keys;
    }
    let wanted = keys as f64 * MARGIN * HOLD_MIN.as_secs_f64() / hold.as_secs_f64().max(1e-6);
    let most = (BYTES_MAX / records.bytes_of_key()).max(1);
    rounded_up(wanted).min(GROWTH_MAX * keys).min(most).max(records.keys_min)
}

/// Two digits and zeros, so that small differences of the machine do not change the number.
fn rounded_up(wanted: f64) -> u64 {
    let step = 10_f64.powf(wanted.log10().floor() - 1.0).max(1.0);
    ((wanted / step).ceil() * step) as u64
}

impl<'a> Records<'a> {
    /// At full scale as published: values of 1 KiB, and at least as many keys. A first look has
    /// large values, which hold the lock for longer by each byte that is filled and sent.
    pub(super) fn new(context: &Context, published_keys: u64) -> Records<'a> {
        let (value, keys_min) = context.pick((LARGE_VALUES, 0), ("1024", published_keys));
        Records { key_size: 256, value, keys_min }
    }

    /// A workload of a class that is not sent by itself: only its keys are used.
    pub(super) fn workload(self, count: u64) -> Result<Workload> {
        let keys = data_keys(count, self.key_size, self.value);
        let class = "[[class]]\nname = 'put'\noperation = 'put'\nrate = 1\n";
        Workload::parse(&format!("seconds = 1\n{keys}{class}"))
    }

    /// Returns the average size of a key with its value.
    fn bytes_of_key(self) -> u64 {
        let default = Sizes { min: 1024, max: 1024 };
        let value = self.workload(1).map_or(default, |workload| workload.space.value);
        self.key_size + (value.min + value.max) / 2
    }
}

/// How long a read has held its lock.
#[derive(Clone, Copy, Debug)]
struct Hold {
    time: Duration,
    /// If false, the server does not report holds, and this is the time until the answer.
    is_of_lock: bool,
}

impl Hold {
    /// The shortest of several reads of all keys, which are put first.
    async fn measure(
        context: &Context,
        running: &Running,
        records: Records<'_>,
        keys: u64,
    ) -> Result<Hold> {
        let (space, endpoint) = (records.workload(keys)?.space, running.endpoint());
        load::fill(context, &endpoint, &space, context.seed).await?;
        let read = range(&space, 0, keys);
        let mut client =
            KvClient::new(channel(&endpoint).await?).max_decoding_message_size(usize::MAX);
        let mut shortest: Option<Hold> = None;
        for _ in 0..READS {
            let (held_before, begin) = (seconds_held(&endpoint).await?, Instant::now());
            let answer = client.range(read.clone()).await;
            let took = begin.elapsed();
            answer.map_err(|status| {
                Error::Server(format!("a read of {keys} keys failed: {}", status.message()))
            })?;
            let held = held_before.zip(seconds_held(&endpoint).await?);
            let hold = match held {
                Some((before, after)) => Hold {
                    time: Duration::from_secs_f64((after - before).max(0.0)),
                    is_of_lock: true,
                },
                None => Hold { time: took, is_of_lock: false },
            };
            shortest = Some(match shortest {
                Some(other) if other.time <= hold.time => other,
                _ => hold,
            });
        }
        Ok(shortest.expect("there is more than one read"))
    }

    fn sentence(self, server: &str) -> String {
        let Hold { time, is_of_lock } = self;
        let ms = number(time.as_secs_f64() * 1e3);
        if is_of_lock {
            format!("holds `readTx` of era {ERA} for {ms} ms")
        } else {
            format!("takes {ms} ms at {server} if nothing else runs")
        }
    }
}

/// `None` if the server is not ours, or of an era without that lock.
async fn seconds_held(endpoint: &str) -> Result<Option<f64>> {
    let page = metrics_page(&connection::endpoint(endpoint)?).await;
    let held = page.as_deref().and_then(|page| page.lines().find_map(|l| l.strip_prefix(HOLDS)));
    Ok(held.and_then(|seconds| seconds.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDS: Records<'_> = Records { key_size: 256, value: "1024", keys_min: 0 };

    #[test]
    fn a_faster_engine_gets_more_keys() {
        let ms = Duration::from_millis;
        assert_eq!(keys_for_hold(2000, ms(60), RECORDS), 3900);
        assert_eq!(keys_for_hold(2000, ms(40), RECORDS), 5800);
        // The number at most quadruples in one step.
        assert_eq!(keys_for_hold(2000, ms(1), RECORDS), 8000);
        // Long enough, and not too long.
        assert_eq!(keys_for_hold(120_000, ms(100), RECORDS), 120_000);
        assert_eq!(keys_for_hold(120_000, ms(199), RECORDS), 120_000);
        assert_eq!(keys_for_hold(120_000, ms(400), RECORDS), 35_000);
        // No time at all must not make a number without bound.
        assert_eq!(keys_for_hold(1_000_000, Duration::ZERO, RECORDS), BYTES_MAX / 1280);
    }

    #[test]
    fn a_published_number_is_the_least() {
        let published = Records { keys_min: 20_000, ..RECORDS };
        let ms = Duration::from_millis;
        assert_eq!(keys_for_hold(20_000, ms(900), published), 20_000);
        assert_eq!(keys_for_hold(20_000, ms(10), published), 80_000);
        assert_eq!(keys_for_hold(230_000, ms(5000), published), 20_000);
    }

    #[test]
    fn a_number_has_two_digits() {
        assert_eq!([9.2, 47.1, 1234.0, 115_001.0].map(rounded_up), [10, 48, 1300, 120_000]);
    }

    #[test]
    fn values_of_several_sizes_count_with_their_mean() {
        let records = Records { value: "{ min = 1024, max = 32768 }", ..RECORDS };
        assert_eq!(records.bytes_of_key(), 256 + 16_896);
    }
}
