//! The mix of jobs in a period.

use clap::ValueEnum;
use rand::RngExt;
use rand::rngs::SmallRng;

/// Minimum number of requests in a period. With fewer requests, a share of one per cent would be
/// less than one request. Such a share is rounded up to one request, so the mix would no longer
/// have its proportions.
pub const REQUESTS_MIN: u64 = 100;
/// Number of watches that each period opens and does not read.
pub(super) const SLOW_WATCHES: u64 = 2;

/// A kind of job: one request, or a few requests that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum JobKind {
    Update,
    /// An update with the condition that the key exists.
    ComparedUpdate,
    /// A put of a new key, with the condition that the key does not exist. The next period deletes
    /// the key.
    Create,
    Delete,
    /// A grant, puts of keys with the lease, and the revocation of the lease.
    RevokedLease,
    /// A grant, and puts of keys with the lease. The lease is left to expire.
    ExpiringLease,
    KeepAlive,
    Get,
    OldGet,
    /// Reads of all updated keys in pages. All pages are read at the revision of the first page.
    List,
    OldList,
    /// A watch that starts at an old revision. It ends when it has the events of the previous
    /// period.
    CatchUp,
    /// A new connection with one get. It is closed afterwards.
    Connection,
}

/// How many jobs of a kind a period has, for a given number of requests.
#[derive(Clone, Copy, Debug)]
enum Share {
    Percent(u64),
    OneInRequests(u64),
    Number(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) kind: JobKind,
    /// The period that creates the keys of the job.
    pub(super) period: u64,
    /// For a job that uses a random existing key, the number of the key. For any other job, its
    /// number among the jobs of its period and kind.
    pub(super) number: u64,
}

impl JobKind {
    pub(super) fn name(self) -> &'static str {
        self.in_mix().0
    }

    /// Returns the number of jobs of this kind in a period. It is the same in all periods, except
    /// that the first period has no `CatchUp` and no `Delete`.
    pub(super) fn count(self, requests: u64) -> u64 {
        match self.in_mix().1 {
            Share::Percent(percent) => (requests * percent / 100).max(1),
            Share::OneInRequests(each) => requests.div_ceil(each),
            Share::Number(number) => number,
        }
    }

    /// Returns the name of the kind in errors, and its share. A list sends one request for each
    /// page, so its number of requests depends on the number of keys.
    fn in_mix(self) -> (&'static str, Share) {
        match self {
            JobKind::Update => ("an update", Share::Percent(38)),
            JobKind::ComparedUpdate => ("a compared update", Share::Percent(12)),
            JobKind::Create => ("a creation", Share::Percent(12)),
            JobKind::Delete => ("a deletion", Share::Percent(12)),
            // A job of this kind sends five requests, so these leases are 5 % of the requests.
            JobKind::RevokedLease => ("a lease that is revoked", Share::Percent(1)),
            JobKind::ExpiringLease => ("a lease that expires", Share::OneInRequests(400)),
            JobKind::KeepAlive => ("a keep-alive", Share::Percent(2)),
            JobKind::Get => ("a get", Share::Percent(13)),
            JobKind::OldGet => ("a get at an old revision", Share::Percent(3)),
            JobKind::List => ("a list", Share::Number(2)),
            JobKind::OldList => ("a list at an old revision", Share::Number(1)),
            JobKind::CatchUp => ("a watch that catches up", Share::Number(3)),
            JobKind::Connection => ("a connection", Share::OneInRequests(400)),
        }
    }

    fn has_random_key(self) -> bool {
        use JobKind::{ComparedUpdate, Connection, Get, OldGet, Update};
        matches!(self, Update | ComparedUpdate | Get | OldGet | Connection)
    }
}

/// Returns the jobs of a period, grouped by kind. Periods are numbered from 0.
pub(super) fn period_jobs(requests: u64, period: u64, keys: u64, rng: &mut SmallRng) -> Vec<Job> {
    let mut jobs = Vec::new();
    for kind in JobKind::value_variants() {
        let kind = *kind;
        match (kind, period.checked_sub(1)) {
            // Before the first period there are no events to catch up with and no created keys to
            // delete.
            (JobKind::CatchUp | JobKind::Delete, None) => {}
            (JobKind::Delete, Some(before)) => jobs.extend(deletions(requests, before)),
            _ => jobs.extend((0..kind.count(requests)).map(|number| {
                let number = if kind.has_random_key() { rng.random_range(0..keys) } else { number };
                Job { kind, period, number }
            })),
        }
    }
    jobs
}

/// Returns the jobs that delete the keys that this period has created.
pub(super) fn deletions(requests: u64, period: u64) -> impl Iterator<Item = Job> {
    let kind = JobKind::Delete;
    (0..kind.count(requests)).map(move |number| Job { kind, period, number })
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn jobs(period: u64) -> Vec<Job> {
        period_jobs(4000, period, 10, &mut SmallRng::seed_from_u64(period))
    }

    #[test]
    fn all_periods_but_the_first_have_as_much_of_each_kind() {
        let kinds = |period| {
            let mut names: Vec<&str> = jobs(period).iter().map(|job| job.kind.name()).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(kinds(1), kinds(287));
        assert!(kinds(0).len() < kinds(1).len());
    }

    #[test]
    fn what_a_period_creates_is_deleted_in_the_next() {
        let of = |period, kind| {
            let jobs = jobs(period).into_iter().filter(move |job| job.kind == kind);
            jobs.map(|job| (job.period, job.number)).collect::<Vec<_>>()
        };
        let (created, deleted) = (of(6, JobKind::Create), of(7, JobKind::Delete));
        let count = JobKind::Create.count(4000);
        assert!(created.len() as u64 == count && created == deleted);
    }

    #[test]
    fn the_requests_add_up() {
        let of = |kind: JobKind| kind.count(4000);
        // Each creation has a deletion. A lease has a grant and three puts, and a revoked lease
        // also has a revocation.
        let puts = of(JobKind::Update) + of(JobKind::ComparedUpdate) + 2 * of(JobKind::Create);
        let leases = 5 * of(JobKind::RevokedLease) + 4 * of(JobKind::ExpiringLease);
        let gets = of(JobKind::Get) + of(JobKind::OldGet);
        assert_eq!((puts, leases + of(JobKind::KeepAlive), gets), (2960, 320, 640));
        // A list of 10,000 keys has 20 pages.
        let pages = 20 * (of(JobKind::List) + of(JobKind::OldList));
        let rest = pages + of(JobKind::CatchUp) + SLOW_WATCHES + of(JobKind::Connection);
        assert!((75..=80).contains(&rest), "{rest}");
    }

    #[test]
    fn the_least_has_all_kinds() {
        let of = |kind: JobKind| kind.count(REQUESTS_MIN);
        assert!(JobKind::value_variants().iter().all(|kind| of(*kind) > 0));
        assert!(of(JobKind::Update) > 30 && of(JobKind::Create) > 10);
    }
}
