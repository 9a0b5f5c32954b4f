//! Seeds that must pass, one new seed, and seeds that find the planted bugs.
//!
//! ```text
//!   a few seeds, and bugs that are found soon:
//!     cargo test --workspace --test seeds
//!   200 seeds, and every planted bug:
//!     CLEARLANE_SEEDS=200 cargo test --workspace --test seeds -- --include-ignored
//!   one seed and its trace:
//!     CLEARLANE_SEED=17 cargo test --workspace --test seeds fixed -- --nocapture
//!   records the hashes of 200 seeds:
//!     CLEARLANE_SEEDS=200 UPDATE_GOLDENFILES=1 cargo test --workspace --test seeds fixed
//! ```
//!
//! The recorded [hashes](clearlane_dst::effect_hash) represent what the members do in each seed. If
//! a change alters the behaviour, record the hashes again, in a separate commit that explains why.
//! Even seeds have three members, odd seeds have five.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "which seed has found what is worth knowing")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use clearlane_dst::bugs::Bug;
use clearlane_dst::checkers::Rule;
use clearlane_dst::cluster::SeedOptions;
use clearlane_dst::{Report, run};

const SEEDS: u64 = 4;

fn seed_options(seed: u64, bug: Option<Bug>) -> SeedOptions {
    let members = if seed.is_multiple_of(2) { 3 } else { 5 };
    SeedOptions { seed, members, bug, prints_trace: false }
}

fn from_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value}: not a number")))
}

/// Runs the seeds from 0 to `count`, two at a time, until none are left or `enough` returns true
/// for a report.
fn run_all(count: u64, bug: Option<Bug>, enough: impl Fn(&Report) -> bool + Sync) -> Vec<Report> {
    let (next, reports) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= count {
                return;
            }
            let report = run(seed_options(seed, bug));
            if enough(&report) {
                next.store(count, Ordering::Relaxed);
            }
            reports.lock().unwrap().push(report);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let mut reports = reports.into_inner().unwrap();
    reports.sort_by_key(|report| report.options.seed);
    reports
}

fn describe(report: &Report) -> String {
    let SeedOptions { seed, members, .. } = report.options;
    let violation = report.violation.as_ref().map(ToString::to_string).unwrap_or_default();
    format!(
        "seed {seed} with {members} members: {violation}\n  again, with its trace: cargo run \
         --release --bin dst -- --seed {seed} --members {members} --trace"
    )
}

fn is_recording() -> bool {
    std::env::var_os("UPDATE_GOLDENFILES").is_some()
}

fn effects_are_on_record(reports: &[Report]) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/effects");
    let line = |report: &Report| {
        let SeedOptions { seed, members, .. } = report.options;
        format!("seed {seed} members {members} effects {:016x}\n", report.effect_hash)
    };
    if is_recording() {
        let lines: String = reports.iter().map(line).collect();
        return std::fs::write(path, lines).unwrap();
    }
    let recorded = std::fs::read_to_string(path).unwrap();
    let recorded = recorded.split_inclusive('\n');
    let pairs = reports.iter().zip(recorded);
    let differ: Vec<String> = pairs
        .filter(|(report, recorded)| line(report) != *recorded)
        .map(|(report, recorded)| format!("{recorded}is now {}", line(report)))
        .collect();
    assert!(differ.is_empty(), "{} of {}:\n{}", differ.len(), reports.len(), differ.join(""));
}

#[test]
fn fixed_seeds_break_no_rule() {
    if let Some(seed) = from_environment("CLEARLANE_SEED") {
        let report = run(SeedOptions { prints_trace: true, ..seed_options(seed, None) });
        assert!(report.violation.is_none(), "{}", describe(&report));
        return;
    }
    let count = from_environment("CLEARLANE_SEEDS").unwrap_or(SEEDS);
    let reports = run_all(count, None, |_| false);
    if is_recording() {
        // Record the hashes before the checks, so that seeds that break a rule are also recorded.
        effects_are_on_record(&reports);
    }
    let broken: Vec<String> =
        reports.iter().filter(|report| report.violation.is_some()).map(describe).collect();
    assert!(broken.is_empty(), "{} seeds:\n{}", broken.len(), broken.join("\n"));
    effects_are_on_record(&reports);
    // Each kind of event must have occurred. Otherwise the checks prove little.
    let sum = |what: fn(&Report) -> u64| reports.iter().map(what).sum::<u64>();
    for (name, seen, each) in [
        ("committed entries", sum(|report| report.metrics.committed_entries), 100),
        ("terms with a leader", sum(|report| report.metrics.terms_with_leader), 2),
        ("crashes", sum(|report| report.metrics.crashes), 3),
        ("compared hashes", sum(|report| report.metrics.compared_hashes), 50),
    ] {
        // With fewer than 100 seeds, the average per seed varies more. So one per seed is enough.
        let each = if count < 100 { 1 } else { each };
        assert!(seen >= each * count, "only {seen} {name} in {count} seeds");
    }
    let lost = sum(|report| report.metrics.quorums_removed);
    assert!(lost * 500 <= count.max(500), "{lost} clusters of {count} have lost their quorum");
    for (name, seen) in [
        ("torn writes", sum(|report| report.metrics.torn_writes)),
        ("installed copies", sum(|report| report.metrics.installed_snapshots)),
        ("members that came", sum(|report| report.metrics.members_added)),
        ("leases that were kept alive", sum(|report| report.metrics.lease_keep_alives)),
        ("leases that ran out", sum(|report| report.metrics.expired_leases)),
        ("changes of users", sum(|report| report.metrics.auth_changes)),
        ("reads of users", sum(|report| report.metrics.user_reads)),
        ("requests that were refused", sum(|report| report.metrics.refused_requests)),
        ("stalls of disks", sum(|report| report.metrics.disk_stalls)),
        ("stalled leaders that handed over", sum(|report| report.metrics.stall_transfers)),
        ("used tokens", sum(|report| report.metrics.used_tokens)),
        ("tokens that were waited for", sum(|report| report.metrics.token_waits)),
        ("members that left", sum(|report| report.metrics.members_removed)),
        ("disks that were wiped", sum(|report| report.metrics.wiped_disks)),
        ("members that were refused", sum(|report| report.metrics.refused_members)),
        ("members that were admitted", sum(|report| report.metrics.admitted_members)),
        ("reads of a member that is alone", sum(|report| report.metrics.sole_voter_reads)),
    ] {
        assert!(seen > 0 || count < 100, "no {name} in {count} seeds");
    }
}

/// Runs a seed that nobody has run before. A violation is printed and does not fail the test.
#[test]
fn a_fresh_seed_is_reported() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let report = run(seed_options(seed, None));
    println!("a fresh seed: {seed}, {:?}", report.metrics);
    if report.violation.is_some() {
        let line = "!".repeat(80);
        eprintln!("{line}\nA FRESH SEED HAS BROKEN A RULE. {}\n{line}", describe(&report));
    }
}

#[test]
fn a_seed_run_twice_gives_the_same_trace() {
    let seeds = from_environment("CLEARLANE_SEEDS").unwrap_or(SEEDS).min(12);
    for seed in 0..seeds {
        let first = run(seed_options(seed, None));
        let second = run(seed_options(seed, None));
        assert_eq!(first.trace_hash, second.trace_hash, "seed {seed}");
        assert_eq!(first.metrics, second.metrics, "seed {seed}");
        assert!(first.metrics.events > 1000, "seed {seed}: {:?}", first.metrics);
        // The trace is the same in another thread, while another seed runs.
        let beside = std::thread::spawn(move || run(seed_options(seed, None)).trace_hash);
        run(seed_options(seed + 1, None));
        assert_eq!(beside.join().unwrap(), first.trace_hash, "seed {seed}");
    }
}

const SEEDS_FOR_A_BUG: u64 = 500;

/// Checks that some seed breaks a rule, and that the first such seed breaks one of `rules`.
fn assert_found(bug: Bug, rules: &[Rule]) {
    let reports = run_all(SEEDS_FOR_A_BUG, Some(bug), |report| report.violation.is_some());
    let found = reports.iter().find_map(|report| {
        report.violation.as_ref().map(|violation| (report.options.seed, violation))
    });
    let Some((seed, violation)) = found else {
        panic!("{bug:?} is not found in {SEEDS_FOR_A_BUG} seeds");
    };
    println!("{bug:?} is found by seed {seed}: {violation}");
    assert!(rules.contains(&violation.rule), "{bug:?} is found by {violation}, of all rules");
}

/// The rules that a member's loss of data may break.
const LOSSES: [Rule; 6] = [
    Rule::Committed,
    Rule::Running,
    Rule::Acknowledged,
    Rule::Linearizability,
    Rule::Serializable,
    Rule::Hashes,
];

/// Defines a test for each planted bug, with the rules that the bug may break.
macro_rules! tests_of_bugs {
    (#[$when:meta] $($test:ident: $bug:ident breaks $rules:expr;)*) => {
        $(
            #[test]
            #[$when]
            fn $test() {
                assert_found(Bug::$bug, &$rules);
            }
        )*
    };
}

tests_of_bugs! {
    /// A bug of this group is found in a few seeds.
    stalled_leader_leads_is_found: StalledLeaderLeads breaks [Rule::Progress];
    // A vote is also written to the log. A member that has forgotten its vote may vote for another
    // candidate in the same term.
    acknowledge_before_sync_is_found:
        AcknowledgeBeforeSync breaks [&LOSSES[..], &[Rule::Leaders]].concat();
    // A wiped member that starts anyway may cause any of the losses, or may vote twice in a term.
    no_identity_check_is_found: NoIdentityCheck breaks [&LOSSES[..], &[Rule::Leaders]].concat();
    apply_twice_is_found: ApplyTwice breaks [Rule::Revisions, Rule::Acknowledged, Rule::Hashes];
    reply_before_apply_is_found: ReplyBeforeApply breaks [Rule::Requests];
    conf_state_too_late_is_found: ConfStateTooLate breaks [Rule::Members];
    completed_twice_is_found: CompletedTwice breaks [Rule::Requests];
}

tests_of_bugs! {
    #[ignore = "needs many seeds: run it with --include-ignored"]
    reused_read_id_is_found: ReusedReadId breaks [Rule::Linearizability];
    skipped_quorum_check_is_found: SkippedQuorumCheck breaks [Rule::Linearizability];
    lost_log_accepted_is_found: LostLogAccepted breaks [Rule::LostLog];
    // At the next start, the log's durable end may show the loss, and the member fails. The durable
    // end shows nothing if it is as old as the log.
    lost_vote_is_found: LostVote breaks [Rule::Leaders, Rule::Running];
    lease_too_long_is_found: LeaseTooLong breaks [Rule::Linearizability];
    lease_kept_over_transfer_is_found: LeaseKeptOverTransfer breaks [Rule::Linearizability];
    release_by_applied_is_found: ReleaseByApplied breaks [Rule::Running];
    install_not_awaited_is_found: InstallNotAwaited breaks [Rule::Running];
    permission_only_proposed_is_found: PermissionOnlyProposed breaks [Rule::Permissions];
    auth_revision_ignored_is_found: AuthRevisionIgnored breaks [Rule::Permissions];
    auth_not_installed_is_found: AuthNotInstalled breaks [Rule::AuthState];
    revision_not_compared_is_found: RevisionNotCompared breaks [Rule::Permissions];
    authorized_before_wait_is_found:
        AuthorizedBeforeWait breaks [Rule::Revocation, Rule::Permissions];
    tokens_outlive_passwords_is_found: TokensOutlivePasswords breaks [Rule::Tokens];
    revocation_unnamed_is_found: RevocationUnnamed breaks [Rule::Progress];
}
