//! The matrix: each row's request is sent by the caller of each column.

use std::time::Duration;

use crate::call::{Call, Outcome, Token};
use crate::row::Row;
use crate::server::{Program, Server};
use crate::table::Table;
use crate::{auth_rows, kv_rows, other_rows};

/// The columns. The first three send no token, a token that was never issued, and an expired token.
/// Each other column sends the token of the user with that name.
const COLUMNS: [&str; 11] =
    ["-", "wrong", "expired", "none", "ro", "wo", "exact", "narrow", "all", "root", "admin"];

/// A token that has the form of a simple token, but was never issued.
pub(crate) const WRONG_TOKEN: &str = "0123456789abcdef.1";

pub(crate) async fn matrix(program: &Program) -> Table {
    let server = Server::start(program, &[]).await;
    // The tokens of this second server expire after one second. The tokens of `server` do not
    // expire during the test.
    let expiring = Server::start(program, &["--auth-token-ttl=1"]).await;
    let expired = expiring.expired_token("exact", Duration::from_secs(1)).await;
    let mut table = Table::new(COLUMNS);
    let rows = [kv_rows::rows(), other_rows::rows(), auth_rows::rows()];
    for row in rows.into_iter().flatten() {
        let mut cells = Vec::new();
        for column in COLUMNS {
            cells.push(match column {
                "-" => cell(&server, &row, "root", &Token::none()).await,
                "wrong" => cell(&server, &row, "root", &Token::of(WRONG_TOKEN)).await,
                "expired" => cell(&expiring, &row, "exact", &Token::of(&expired)).await,
                user => cell(&server, &row, user, &Token::of(&server.token_of(user))).await,
            });
        }
        table.push(row.name().trim_end(), cells);
    }
    table
}

async fn cell(server: &Server, row: &Row, user: &str, token: &Token) -> String {
    for step in &row.before {
        let outcome = server.as_root(step).await;
        assert!(matches!(outcome, Outcome::Reply(_)), "{}: {step:?}: {outcome:?}", row.name());
    }
    let asked = Call { method: row.method, request: (row.request)(user) };
    let outcome = server.call(&asked, token).await;
    for step in &row.after {
        server.as_root(step).await;
    }
    if row.is_end_of_tokens {
        server.log_in_all().await;
    }
    text(&outcome, &row.fact)
}

pub(crate) fn text(outcome: &Outcome, fact: &crate::row::Fact) -> String {
    match outcome {
        Outcome::Reply(reply) => match fact(reply) {
            fact if fact.is_empty() => "ok".to_owned(),
            fact => format!("ok:{fact}"),
        },
        Outcome::Failure { code, message } => format!("{code}: {message}"),
        Outcome::Ended => "the stream ends without a message".to_owned(),
        Outcome::Waits => "no answer".to_owned(),
    }
}
