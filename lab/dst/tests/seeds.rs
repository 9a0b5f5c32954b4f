//! Seeds that must pass, one seed that is new, and seeds that find the planted bugs.
//!
//! ```text
//!   cargo test --release --test seeds       200 seeds, every planted bug
//!   CLEARLANE_SEEDS=2000 cargo test --release ...            this number of seeds
//!   CLEARLANE_SEED=17 cargo test --release ... fixed -- --nocapture      one seed and its trace
//!   CLEARLANE_SEEDS=2000 UPDATE_GOLDENFILES=1 cargo test --release ... fixed    records hashes
//! ```
//!
//! What members do in a seed is on record as a [hash](clearlane_dst::effect_hash). A change of
//! behaviour records it anew, in a commit of its own that says why. Even seeds have three members,
//! odd ones five. Without `--release` there are fewer seeds, because each takes ten times as long.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "which seed has found what is worth knowing")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use clearlane_dst::bugs::Bug;
use clearlane_dst::checkers::Rule;
use clearlane_dst::cluster::SeedOptions;
use clearlane_dst::{Report, run};

const SEEDS: u64 = if cfg!(debug_assertions) { 4 } else { 200 };

fn seed_options(seed: u64, bug: Option<Bug>) -> SeedOptions {
    let members = if seed.is_multiple_of(2) { 3 } else { 5 };
    SeedOptions { seed, members, bug, prints_trace: false }
}

fn from_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value}: not a number")))
}

/// Runs seeds, two at a time, until none are left or `enough` returns true.
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

fn effects_are_on_record(reports: &[Report]) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/effects");
    let line = |report: &Report| {
        let SeedOptions { seed, members, .. } = report.options;
        format!("seed {seed} members {members} effects {:016x}\n", report.effect_hash)
    };
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        let lines: String = reports.iter().map(line).collect();
        std::fs::write(path, lines).unwrap();
        return;
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
    let broken: Vec<String> =
        reports.iter().filter(|report| report.violation.is_some()).map(describe).collect();
    assert!(broken.is_empty(), "{} seeds:\n{}", broken.len(), broken.join("\n"));
    effects_are_on_record(&reports);
    // Each kind of event must have occurred, or the checks mean little.
    let sum = |what: fn(&Report) -> u64| reports.iter().map(what).sum::<u64>();
    for (name, seen, each) in [
        ("committed entries", sum(|report| report.metrics.committed_entries), 100),
        ("terms with a leader", sum(|report| report.metrics.terms_with_leader), 2),
        ("crashes", sum(|report| report.metrics.crashes), 3),
        ("compared hashes", sum(|report| report.metrics.compared_hashes), 50),
    ] {
        // A few seeds may all have the same kinds of faults.
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

/// A violation is reported, and does not fail the run.
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
    let seeds = if cfg!(debug_assertions) { 0..1 } else { 0..12 };
    for seed in seeds {
        let first = run(seed_options(seed, None));
        let second = run(seed_options(seed, None));
        assert_eq!(first.trace_hash, second.trace_hash, "seed {seed}");
        assert_eq!(first.metrics, second.metrics, "seed {seed}");
        assert!(first.metrics.events > 1000, "seed {seed}: {:?}", first.metrics);
        // In another thread, beside another seed, it is the same.
        let beside = std::thread::spawn(move || run(seed_options(seed, None)).trace_hash);
        run(seed_options(seed + 1, None));
        assert_eq!(beside.join().unwrap(), first.trace_hash, "seed {seed}");
    }
}

const SEEDS_FOR_A_BUG: u64 = 500;

/// Some seed breaks one of `rules`.
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

#[test]
fn stalled_leader_leads_is_found() {
    assert_found(Bug::StalledLeaderLeads, &[Rule::Progress]);
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

#[test]
fn acknowledge_before_sync_is_found() {
    // A vote is an append, too: a member that has forgotten its vote gives another in the same
    // term.
    assert_found(Bug::AcknowledgeBeforeSync, &[&LOSSES[..], &[Rule::Leaders]].concat());
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn reused_read_id_is_found() {
    assert_found(Bug::ReusedReadId, &[Rule::Linearizability]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn skipped_quorum_check_is_found() {
    assert_found(Bug::SkippedQuorumCheck, &[Rule::Linearizability]);
}

#[test]
fn no_identity_check_is_found() {
    // The wiped member may be found out by any loss, and by a second vote in a term.
    assert_found(Bug::NoIdentityCheck, &[&LOSSES[..], &[Rule::Leaders]].concat());
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn lost_log_accepted_is_found() {
    assert_found(Bug::LostLogAccepted, &[Rule::LostLog]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn lost_vote_is_found() {
    // The log's durable end shows the loss at the next start, unless it is as old as the log.
    assert_found(Bug::LostVote, &[Rule::Leaders, Rule::Running]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn lease_too_long_is_found() {
    assert_found(Bug::LeaseTooLong, &[Rule::Linearizability]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn lease_kept_over_transfer_is_found() {
    assert_found(Bug::LeaseKeptOverTransfer, &[Rule::Linearizability]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn release_by_applied_is_found() {
    assert_found(Bug::ReleaseByApplied, &[Rule::Running]);
}

#[test]
fn apply_twice_is_found() {
    assert_found(Bug::ApplyTwice, &[Rule::Revisions, Rule::Acknowledged, Rule::Hashes]);
}

#[test]
fn reply_before_apply_is_found() {
    assert_found(Bug::ReplyBeforeApply, &[Rule::Requests]);
}

#[test]
fn conf_state_too_late_is_found() {
    assert_found(Bug::ConfStateTooLate, &[Rule::Members]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn install_not_awaited_is_found() {
    assert_found(Bug::InstallNotAwaited, &[Rule::Running]);
}

#[test]
fn completed_twice_is_found() {
    assert_found(Bug::CompletedTwice, &[Rule::Requests]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn permission_only_proposed_is_found() {
    assert_found(Bug::PermissionOnlyProposed, &[Rule::Permissions]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn auth_revision_ignored_is_found() {
    assert_found(Bug::AuthRevisionIgnored, &[Rule::Permissions]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn auth_not_installed_is_found() {
    assert_found(Bug::AuthNotInstalled, &[Rule::AuthState]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn revision_not_compared_is_found() {
    assert_found(Bug::RevisionNotCompared, &[Rule::Permissions]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn authorized_before_wait_is_found() {
    assert_found(Bug::AuthorizedBeforeWait, &[Rule::Revocation, Rule::Permissions]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn tokens_outlive_passwords_is_found() {
    assert_found(Bug::TokensOutlivePasswords, &[Rule::Tokens]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes more seeds than there is time for without --release")]
fn revocation_unnamed_is_found() {
    assert_found(Bug::RevocationUnnamed, &[Rule::Progress]);
}
