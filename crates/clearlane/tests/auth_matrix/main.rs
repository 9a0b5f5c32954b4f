//! Compares every RPC, for every kind of caller, with etcd 3.7.1: both must return the same result
//! when authentication is enabled.
//!
//! * `etcd-3.7.1.txt`: each row is an RPC with one shape of request, and each column is a user
//!   (`server.rs`) or a token.
//! * `tokens-3.7.1.txt`: each row is a way to send a token, or a token that is no longer valid, and
//!   each column is one of a few RPCs. `jwt-3.7.1.txt` is the same for JWT.
//! * `intervals-3.7.1.txt`: which ranges permissions cover. `gateway-3.7.1.txt`: tokens over HTTP.
//!
//! etcd's own program produced these files. The following command writes them again. Without
//! `UPDATE_GOLDENFILES`, the command compares etcd with the files:
//!
//! ```text
//! CLEARLANE_ETCD=.../etcd UPDATE_GOLDENFILES=1 \
//!     cargo test -p clearlane --test auth_matrix -- --ignored
//! ```

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod auth_rows;
#[path = "../support/bytes_codec.rs"]
mod bytes_codec;
mod call;
mod gateway;
mod intervals;
mod jwt;
mod kv_rows;
mod matrix;
mod other_rows;
#[path = "../support/program.rs"]
mod program_process;
mod row;
mod server;
mod table;
mod tokens;

use std::path::{Path, PathBuf};

use server::Program;
use table::Table;

const HEAD: &str = "\
# Recorded from etcd 3.7.1 by the test auth_matrix; see its head. A cell is ok, ok with a fact about the reply,
# or a name that is explained below the table.

";

/// The only cell that intentionally differs. A simple token ends with the index of the log entry
/// that issued it. The token in this cell names an index that the log has not reached. etcd waits
/// for this index until the call times out. Clearlane waits only until it has applied the entries
/// that are committed at that time, and then rejects the token.
const INTENDED: [&str; 1] = [
    r#"index not reached as KV/Range: etcd "no answer", ours "Unauthenticated: etcdserver: invalid auth token""#,
];

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/auth_matrix").join(file)
}

/// Returns whether this run writes the files instead of comparing them.
fn is_update(program: &Program) -> bool {
    matches!(program, Program::Etcd(_)) && std::env::var_os("UPDATE_GOLDENFILES").is_some()
}

fn check(file: &str, program: &Program, table: &Table) {
    if is_update(program) {
        return std::fs::write(path(file), format!("{HEAD}{}", table.to_text())).unwrap();
    }
    let wanted = Table::parse(&std::fs::read_to_string(path(file)).unwrap());
    let mut found = table.differences(&wanted);
    found.retain(|difference| !INTENDED.contains(&difference.as_str()));
    assert!(found.is_empty(), "{file}: {} differences\n{}", found.len(), found.join("\n"));
}

fn etcd() -> Program {
    let program = std::env::var_os("CLEARLANE_ETCD").expect("it must name etcd's program");
    Program::Etcd(program.into())
}

fn check_matrix(program: &Program) {
    check("etcd-3.7.1.txt", program, &run(matrix::matrix(program)));
}

fn check_tokens(program: &Program) {
    check("tokens-3.7.1.txt", program, &run(tokens::simple(program)));
}

fn check_jwt(program: &Program) {
    check("jwt-3.7.1.txt", program, &run(tokens::jwt(program)));
}

/// Compares `got` with a file that consists of paragraphs, and fails with the paragraphs that
/// differ. If this run updates the files, writes `got` to the file instead.
fn check_text(file: &str, program: &Program, got: &str) {
    if is_update(program) {
        return std::fs::write(path(file), got).unwrap();
    }
    let wanted = std::fs::read_to_string(path(file)).unwrap();
    let mut found = String::new();
    for (got, wanted) in got.split("\n\n").zip(wanted.split("\n\n")) {
        if got != wanted {
            found += &format!("\netcd: {wanted}\nours: {got}\n");
        }
    }
    assert!(found.is_empty() && got.len() == wanted.len(), "{file}: {found}");
}

fn check_intervals(program: &Program) {
    check_text("intervals-3.7.1.txt", program, &run(intervals::intervals(program)));
}

fn check_gateway(program: &Program) {
    check_text("gateway-3.7.1.txt", program, &run(gateway::gateway(program)));
}

#[test]
fn every_call_is_answered_as_by_etcd() {
    check_matrix(&Program::Clearlane);
}

#[test]
fn simple_tokens_are_taken_as_by_etcd() {
    check_tokens(&Program::Clearlane);
}

#[test]
fn jwts_are_taken_as_by_etcd() {
    check_jwt(&Program::Clearlane);
}

#[test]
fn permissions_cover_ranges_as_in_etcd() {
    check_intervals(&Program::Clearlane);
}

#[test]
fn tokens_come_through_the_gateway_as_in_etcd() {
    check_gateway(&Program::Clearlane);
}

#[test]
#[ignore = "needs etcd, which `tests/compat/dump-logs/run` builds"]
fn etcd_agrees_with_the_files() {
    let program = etcd();
    check_tokens(&program);
    check_jwt(&program);
    check_intervals(&program);
    check_gateway(&program);
    check_matrix(&program);
}
