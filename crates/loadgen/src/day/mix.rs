//! What a period consists of.

use rand::RngExt;
use rand::rngs::SmallRng;

use super::job::Job;

/// With fewer, one per cent would be less than a request, and counts as one.
pub const REQUESTS_MIN: u64 = 100;

/// How many there are of each kind in a period; no more of any in one period than in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mix {
    pub(super) updates: u64,
    pub(super) compared_updates: u64,
    /// Keys that are created, each with a new name, and deleted in the next period.
    pub(super) created: u64,
    pub(super) revoked_leases: u64,
    pub(super) expiring_leases: u64,
    pub(super) keep_alives: u64,
    pub(super) gets: u64,
    pub(super) old_gets: u64,
    pub(super) lists: u64,
    pub(super) old_lists: u64,
    pub(super) catch_ups: u64,
    pub(super) slow_watches: u64,
    pub(super) connections: u64,
}

impl Mix {
    /// Of about so many requests: what is read in pages comes on top.
    pub(super) fn of(requests: u64) -> Mix {
        let percent = |share: u64| (requests * share / 100).max(1);
        Mix {
            updates: percent(38),
            compared_updates: percent(12),
            created: percent(12),
            // Of five requests each.
            revoked_leases: percent(1),
            expiring_leases: requests.div_ceil(400),
            keep_alives: percent(2),
            gets: percent(13),
            old_gets: percent(3),
            lists: 2,
            old_lists: 1,
            catch_ups: 3,
            slow_watches: 2,
            connections: requests.div_ceil(400),
        }
    }
}

/// In no order. Periods are counted from 0.
pub(super) fn period_jobs(mix: &Mix, period: u64, keys: u64, rng: &mut SmallRng) -> Vec<Job> {
    let mut jobs = Vec::new();
    let mut add = |count: u64, job: &mut dyn FnMut(u64) -> Job| jobs.extend((0..count).map(job));
    add(mix.updates, &mut |_| Job::Update(rng.random_range(0..keys)));
    add(mix.compared_updates, &mut |_| Job::ComparedUpdate(rng.random_range(0..keys)));
    add(mix.created, &mut |number| Job::Create { period, number });
    add(mix.revoked_leases, &mut |number| Job::RevokedLease { period, number });
    add(mix.expiring_leases, &mut |number| Job::ExpiringLease { period, number });
    add(mix.keep_alives, &mut |number| Job::KeepAlive(number));
    add(mix.gets, &mut |_| Job::Get(rng.random_range(0..keys)));
    add(mix.old_gets, &mut |_| Job::OldGet(rng.random_range(0..keys)));
    add(mix.lists, &mut |_| Job::List);
    add(mix.old_lists, &mut |_| Job::OldList);
    add(mix.connections, &mut |_| Job::Connection(rng.random_range(0..keys)));
    // Before the first period there are no events and no keys with other names.
    if let Some(before) = period.checked_sub(1) {
        add(mix.catch_ups, &mut |_| Job::CatchUp);
        jobs.extend(deletions(mix, before));
    }
    jobs
}

/// Of what that period has created.
pub(super) fn deletions(mix: &Mix, period: u64) -> impl Iterator<Item = Job> + use<> {
    (0..mix.created).map(move |number| Job::Delete { period, number })
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn jobs(period: u64) -> Vec<Job> {
        period_jobs(&Mix::of(4000), period, 10, &mut SmallRng::seed_from_u64(period))
    }

    #[test]
    fn all_periods_but_the_first_have_as_much_of_each_kind() {
        let kinds = |period| {
            let mut names: Vec<&str> = jobs(period).iter().map(Job::name).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(kinds(1), kinds(287));
        assert!(kinds(0).len() < kinds(1).len());
    }

    #[test]
    fn what_a_period_creates_is_deleted_in_the_next() {
        let named = |job: Job| match job {
            Job::Create { period, number } | Job::Delete { period, number } => {
                Some((job.name(), period, number))
            }
            _ => None,
        };
        let of = |period, kind| {
            let jobs = jobs(period).into_iter().filter_map(named);
            let jobs = jobs.filter(move |(name, ..)| *name == kind);
            jobs.map(|(_, period, number)| (period, number)).collect::<Vec<_>>()
        };
        let (created, deleted) = (of(6, "a creation"), of(7, "a deletion"));
        assert!(created.len() as u64 == Mix::of(4000).created && created == deleted);
    }

    #[test]
    fn the_requests_add_up() {
        let mix = Mix::of(4000);
        let puts = mix.updates + mix.compared_updates + 2 * mix.created;
        let leases = 5 * mix.revoked_leases + 4 * mix.expiring_leases + mix.keep_alives;
        let gets = mix.gets + mix.old_gets;
        assert_eq!((puts, leases, gets), (2960, 320, 640));
        // Lists of 10,000 keys have 20 pages.
        let pages = 20 * (mix.lists + mix.old_lists);
        let rest = pages + mix.catch_ups + mix.slow_watches + mix.connections;
        assert!((75..=80).contains(&rest), "{mix:?}");
    }

    #[test]
    fn the_least_has_all_kinds() {
        let mix = Mix::of(REQUESTS_MIN);
        let leases = [mix.revoked_leases, mix.expiring_leases, mix.keep_alives];
        assert!(leases.iter().all(|count| *count > 0), "{mix:?}");
        assert!(mix.updates > 30 && mix.created > 10 && mix.connections > 0, "{mix:?}");
    }
}
