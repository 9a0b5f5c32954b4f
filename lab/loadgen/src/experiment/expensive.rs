//! Decides how many keys an expensive read has.
//!
//! With a fixed number of keys, an expensive read has no effect on a fast engine: it ends before
//! any other request waits for it. So the number of keys is measured. An expensive read must hold
//! the lock `readTx` of era 3.2 for at least [`HOLD_MIN`] on this machine, and it has at least the
//! published number of keys. The number is measured once for each load, and all servers get the
//! same reads.
//!
//! ```text
//!   fill keys ──▶ read all, several times ──▶ shortest hold of the lock ──▶ long enough?
//!       ▲                                                                    │ no
//!       └──────────────── another number of keys, by extrapolation ◀─────────┘
//! ```
//!
//! If `--keys N` is given, the number is N, and nothing is measured.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;

use super::context::{Context, Running, Subject, channel};
use super::load;
use super::number::number;
use super::plan::Values;
use crate::keys::{KeySpace, Sizes};
use crate::requests::range;
use crate::server_latency::metric;
use crate::servers::ClusterOptions;
use crate::{Error, Result, connection};

/// Minimum time for which the expensive read holds its lock. If there is one such read a second, a
/// tenth of all other requests arrive during a hold. So the hold clearly raises their 99th
/// percentile.
pub(super) const HOLD_MIN: Duration = Duration::from_millis(100);
/// The era whose lock is measured.
const ERA: &str = "3.2";
/// The metric with the total time for which reads have held the lock `readTx`.
const HOLDS: &str = "clearlane_lock_hold_seconds_sum{lock=\"readTx\",mode=\"read\"}";
/// Number of keys in the first attempt.
const FIRST_KEYS: u64 = 2000;
/// Number of reads in one measurement. The result is the shortest hold, because other work of the
/// machine makes a hold longer.
const READS: usize = 5;
const ATTEMPTS: usize = 6;
/// Maximum growth of the number of keys in one attempt. A large read takes longer for each key than
/// a small one, so an extrapolation over a larger factor would be wrong.
const GROWTH_MAX: u64 = 4;
/// The next attempt aims at this multiple of the minimum time, so that it is the last one.
const MARGIN: f64 = 1.15;
/// Maximum size of all keys and values in bytes. If an engine reads this much in less than
/// [`HOLD_MIN`], its hold stays shorter than the minimum.
const BYTES_MAX: u64 = 3 << 29;

/// The keys and values of a load whose expensive read is sized.
#[derive(Clone, Copy, Debug)]
struct Records {
    key_size: u64,
    value: Sizes,
    /// The minimum number of keys in an expensive read. It is the published number, if the scale
    /// has one.
    keys_min: u64,
}

/// Sets the size of a plan's expensive read. Measures it unless the user has set it. After this
/// call the texts of the plan may use `{keys}`, `{reason}`, and `{values}`, which is the size of
/// the values. `{count}` is at least as large as `{keys}`.
pub(super) async fn size_expensive_read(context: &Context, values: &mut Values) -> Result<()> {
    let space = values.with("count", 1).keys_of("data")?.space;
    let (value, keys_min) = (space.value, values.get("keys_min")?);
    let records = Records { key_size: space.key_size, value, keys_min };
    let (keys, reason) = match context.keys {
        Some(keys) => (keys, format!("An expensive read has {keys} keys, the value of `--keys`.")),
        None => size(context, values, records).await?,
    };
    let count = values.get("count").unwrap_or(0).max(keys);
    values.set("count", count);
    values.set("keys", keys);
    values.set("reason", reason);
    values.set("values", value);
    Ok(())
}

/// Measures the number of keys. Returns it with the reason for the report.
async fn size(context: &Context, values: &Values, records: Records) -> Result<(u64, String)> {
    let subject = context.program_or_given(ERA)?;
    let result = tokio::select! {
        biased;
        () = context.stop.wait() => {
            Err(Error::Local("interrupted while an expensive read was measured".to_owned()))
        }
        result = measure(context, &subject, values, records) => result,
    };
    if result.is_err() {
        subject.clean_up().await;
    }
    let (keys, sentence) = result?;
    let (ms, keys_min) = (HOLD_MIN.as_millis(), records.keys_min);
    let least = if keys_min > 0 { format!(", and {keys_min} keys") } else { String::new() };
    let reason = format!(
        "An expensive read has {keys} keys. It {sentence}, measured before the load; the minimum \
         is {ms} ms{least}. `--keys {keys}` repeats this size."
    );
    Ok((keys, reason))
}

/// Returns the number of keys, and how long the read holds its lock.
async fn measure(
    context: &Context,
    subject: &Subject,
    values: &Values,
    records: Records,
) -> Result<(u64, String)> {
    let running = subject.start(ClusterOptions::default()).await?;
    let (mut keys, mut attempts) = (records.keys_min.max(FIRST_KEYS), 0);
    loop {
        let space = values.with("count", keys).keys_of("data")?.space;
        let hold = Hold::measure(context, &running, &space).await?;
        let sentence = hold.sentence(subject.name());
        context.tell(&format!("an expensive read of {keys} keys {sentence}"));
        let next = keys_for_hold(keys, hold.time, records);
        attempts += 1;
        if next == keys || attempts == ATTEMPTS {
            running.end().await?;
            return Ok((keys, sentence));
        }
        keys = next;
    }
}

/// Returns the number of keys for the next attempt. Returns the same number if it is right: the
/// hold is at least [`HOLD_MIN`], and it is shorter than twice that time or the number is the
/// minimum.
fn keys_for_hold(keys: u64, hold: Duration, records: Records) -> u64 {
    let is_least = keys <= records.keys_min;
    if hold >= HOLD_MIN && (is_least || hold < 2 * HOLD_MIN) {
        return keys;
    }
    let wanted = keys as f64 * MARGIN * HOLD_MIN.as_secs_f64() / hold.as_secs_f64().max(1e-6);
    let most = (BYTES_MAX / records.bytes_of_key()).max(1);
    rounded_up(wanted).min(GROWTH_MAX * keys).min(most).max(records.keys_min)
}

/// Rounds up to two significant digits, so that small differences between runs do not change the
/// number of keys.
fn rounded_up(wanted: f64) -> u64 {
    let step = 10_f64.powf(wanted.log10().floor() - 1.0).max(1.0);
    ((wanted / step).ceil() * step) as u64
}

impl Records {
    /// Returns the average size of a key with its value.
    fn bytes_of_key(self) -> u64 {
        self.key_size + (self.value.min + self.value.max) / 2
    }
}

/// How long a read has held its lock. Holds are ordered by their length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Hold {
    time: Duration,
    /// If true, `time` is the time for which the lock was held. If false, the server does not
    /// report holds, and `time` is the time until the response.
    is_of_lock: bool,
}

impl Hold {
    /// Puts all keys, reads them several times, and returns the shortest hold.
    async fn measure(context: &Context, running: &Running, space: &KeySpace) -> Result<Hold> {
        let (keys, endpoint) = (space.count, &running.leader);
        load::fill(context, endpoint, space, context.seed).await?;
        let mut client =
            KvClient::new(channel(endpoint).await?).max_decoding_message_size(usize::MAX);
        let mut holds = Vec::new();
        for _ in 0..READS {
            let (held_before, begin) = (metric(endpoint, HOLDS).await?, Instant::now());
            let answer = client.range(range(space, 0, keys)).await;
            let took = begin.elapsed();
            answer.map_err(connection::error(format!("a read of {keys} keys failed")))?;
            // Another server than ours, or an era without this lock, does not have the metric.
            let held = held_before.zip(metric(endpoint, HOLDS).await?);
            let held =
                held.map(|(before, after)| Duration::from_secs_f64((after - before).max(0.0)));
            holds.push(Hold { time: held.unwrap_or(took), is_of_lock: held.is_some() });
        }
        Ok(holds.into_iter().min().expect("there is more than one read"))
    }

    fn sentence(self, server: &str) -> String {
        let ms = number(self.time.as_secs_f64() * 1e3);
        if self.is_of_lock {
            format!("holds `readTx` of era {ERA} for {ms} ms")
        } else {
            format!("takes {ms} ms at {server} without other load")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: Sizes = Sizes { min: 1024, max: 1024 };
    const RECORDS: Records = Records { key_size: 256, value: VALUE, keys_min: 0 };

    #[test]
    fn a_faster_engine_gets_more_keys() {
        let ms = Duration::from_millis;
        assert_eq!(keys_for_hold(2000, ms(60), RECORDS), 3900);
        assert_eq!(keys_for_hold(2000, ms(40), RECORDS), 5800);
        // The number at most quadruples in one step.
        assert_eq!(keys_for_hold(2000, ms(1), RECORDS), 8000);
        // The hold is long enough and not too long.
        assert_eq!(keys_for_hold(120_000, ms(100), RECORDS), 120_000);
        assert_eq!(keys_for_hold(120_000, ms(199), RECORDS), 120_000);
        assert_eq!(keys_for_hold(120_000, ms(400), RECORDS), 35_000);
        // A hold that took no time must not lead to an unlimited number of keys.
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
        let records = Records { value: Sizes { min: 1024, max: 32_768 }, ..RECORDS };
        assert_eq!(records.bytes_of_key(), 256 + 16_896);
    }
}
