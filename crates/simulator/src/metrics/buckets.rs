//! A histogram of Prometheus: how many were at most so much.
//!
//! Its mean is exact. A percentile is only known to lie between two bounds, and is taken where it
//! would be if those in between lay evenly there.

use super::page::{Page, Sample};

/// How often what was measured was at most so much, in seconds; ascending.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    at_most: Vec<(f64, f64)>,
    sum_s: f64,
    /// How many.
    pub count: f64,
}

impl Buckets {
    /// The one of that name, all those of its labels together; nothing if it is not there, or has
    /// none.
    pub fn of(page: &Page, name: &str) -> Option<Buckets> {
        let sum = |part| page.sum(&format!("{name}_{part}"), |_| true);
        let mut buckets = Buckets { at_most: Vec::new(), sum_s: sum("sum")?, count: sum("count")? };
        for sample in page.all(&format!("{name}_bucket")) {
            buckets.add(sample)?;
        }
        buckets.at_most.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        (buckets.count > 0.0).then_some(buckets)
    }

    fn add(&mut self, sample: &Sample) -> Option<()> {
        let bound: f64 = sample.label("le").parse().ok()?;
        match self.at_most.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, count)) => *count += sample.value,
            None => self.at_most.push((bound, sample.value)),
        }
        Some(())
    }

    /// What has been added since an earlier page; nothing if nothing was.
    pub fn since(&self, earlier: Option<&Buckets>) -> Option<Buckets> {
        let Some(earlier) = earlier else { return Some(self.clone()) };
        let before = |bound| {
            let known = earlier.at_most.iter().find(|(known, _)| *known == bound);
            known.map_or(0.0, |(_, count)| *count)
        };
        let at_most = self.at_most.iter().map(|(bound, count)| (*bound, count - before(*bound)));
        let (sum_s, count) = (self.sum_s - earlier.sum_s, self.count - earlier.count);
        (count > 0.0).then(|| Buckets { at_most: at_most.collect(), sum_s, count })
    }

    /// The mean.
    pub fn mean_ms(&self) -> f64 {
        1e3 * self.sum_s / self.count
    }

    /// About what a share of all is below, from 0 to 1.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        let wanted = share * self.count;
        let (mut low, mut below) = (0.0, 0.0);
        for (bound, count) in &self.at_most {
            if *count >= wanted && bound.is_finite() {
                let inside = if *count > below { (wanted - below) / (count - below) } else { 1.0 };
                return 1e3 * (low + inside * (bound - low));
            }
            if bound.is_finite() {
                (low, below) = (*bound, *count);
            }
        }
        // It took longer than any bound.
        1e3 * low
    }

    /// How many took longer than the last bound that is at most so much, and about how long they
    /// took on average.
    pub fn beyond(&self, ms: f64) -> Option<(f64, f64)> {
        let (mut low, mut below, mut found, mut sum_s) = (0.0, 0.0, 0.0, 0.0);
        for (bound, count) in &self.at_most {
            if 1e3 * bound > ms {
                // In the middle between two bounds; of what took longer than any, the last one is
                // all that is known.
                let middle = if bound.is_finite() { f64::midpoint(low, *bound) } else { low };
                (found, sum_s) = (found + count - below, sum_s + (count - below) * middle);
            }
            (low, below) = (if bound.is_finite() { *bound } else { low }, *count);
        }
        (found > 0.0).then(|| (found, 1e3 * sum_s.min(self.sum_s) / found))
    }

    /// How many took longer than this bound, which must be one.
    pub fn longer_than(&self, seconds: f64) -> Option<f64> {
        let at_most = self.at_most.iter().find(|(bound, _)| (*bound - seconds).abs() < 1e-9)?;
        Some(self.count - at_most.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(counts: [u32; 4], sum: f64) -> Buckets {
        let [one, two, four, all] = counts;
        let text = format!(
            "etcd_t_bucket{{le=\"0.001\"}} {one}\netcd_t_bucket{{le=\"0.002\"}} {two}\n\
             etcd_t_bucket{{le=\"0.004\"}} {four}\netcd_t_bucket{{le=\"+Inf\"}} {all}\n\
             etcd_t_sum {sum}\netcd_t_count {all}\n"
        );
        Buckets::of(&Page::parse(&text).expect("a page"), "etcd_t").expect("it is there")
    }

    #[test]
    fn a_difference_has_a_mean_and_percentiles() {
        let (first, second) =
            (buckets([100, 100, 100, 100], 0.05), buckets([140, 160, 200, 200], 0.25));
        let between = second.since(Some(&first)).expect("100 more");
        assert!((between.mean_ms() - 2.0).abs() < 1e-9, "{}", between.mean_ms());
        // 40 below 1 ms, 20 from 1 to 2 ms, 40 from 2 to 4 ms.
        for (share, ms) in [(0.2, 0.5), (0.5, 1.5), (0.8, 3.0), (1.0, 4.0)] {
            assert!((between.quantile_ms(share) - ms).abs() < 1e-9, "{share}");
        }
        assert_eq!((between.longer_than(0.002), between.longer_than(0.003)), (Some(40.0), None));
        assert_eq!((between.beyond(2.0), between.beyond(4.0)), (Some((40.0, 3.0)), None));
        assert_eq!(
            between.beyond(3.9),
            Some((40.0, 3.0)),
            "a value between two bounds has the lower one"
        );
        assert_eq!(second.since(Some(&second)), None);
        assert_eq!(second.since(None), Some(second));
    }

    #[test]
    fn what_is_beyond_the_last_bound_is_at_least_that() {
        let slow = buckets([0, 0, 0, 5], 40.0);
        assert_eq!((slow.quantile_ms(0.99), slow.beyond(1.0)), (4.0, Some((5.0, 4.0))));
        // And not more than all of them together.
        assert_eq!(buckets([0, 0, 5, 5], 0.01).beyond(1.0), Some((5.0, 2.0)));
    }
}
