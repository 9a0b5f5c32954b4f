//! etcd's health pages: the old page `/health`, and the newer pages `/livez` and `/readyz`. See
//! `docs/http.md`.
//!
//! `/livez` shows whether a restart would help. `/readyz` shows whether the member should receive
//! requests. Neither page fails because of the alarm NOSPACE. `/readyz` fails if the log has waited
//! for disk space for as long as an election time-out. Each check has its own path below these
//! pages. `?exclude=` omits a check, and `?verbose` also lists the checks that passed.

use std::fmt::Write as _;
use std::time::Duration;

use clearlane_proto::etcdserverpb::{AlarmType, RangeRequest};
use clearlane_raft::read_index::ReadNeed;
use clearlane_replica::{Part, RequestError, apply};
use http::{Response, StatusCode};
use tonic::body::Body;

use super::{HttpService, PLAIN, error_response, query_parts, text};

const LIVE: [&str; 1] = ["serializable_read"];
const READY: [&str; 5] =
    ["data_corruption", "serializable_read", "linearizable_read", "non_learner", PROGRESS];
const PROGRESS: &str = "progress";
/// Time limit of a linearizable read while the member is stalled. A longer wait would rarely help.
const STALLED_READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the checks that a path names: all checks of a page, or one of them. Returns `None` for
/// any other path.
pub(super) fn checks_of(path: &str) -> Option<&'static [&'static str]> {
    let (all, rest): (&'static [&'static str], _) = match (path.strip_prefix("/livez"), path) {
        (Some(rest), _) => (&LIVE, rest),
        (None, path) => (&READY, path.strip_prefix("/readyz")?),
    };
    if rest.is_empty() {
        return Some(all);
    }
    let name = rest.strip_prefix('/')?;
    all.iter().position(|check| *check == name).map(|at| &all[at..=at])
}

impl HttpService {
    /// Serves `/health`.
    pub(super) async fn health(&self, query: Option<&str>) -> Response<Body> {
        let excluded: Vec<&str> = excluded(query).collect();
        let is_serializable = query_parts(query).any(|part| part == ("serializable", "true"));
        match self.unhealthy_reason(&excluded, is_serializable).await {
            None => {
                self.thread.health_check(true);
                text(StatusCode::OK, PLAIN, r#"{"health":"true","reason":""}"#)
            }
            Some(reason) => {
                self.thread.health_check(false);
                let line = serde_json::json!({ "health": "false", "reason": reason });
                error_response(StatusCode::SERVICE_UNAVAILABLE, &line.to_string())
            }
        }
    }

    async fn unhealthy_reason(&self, excluded: &[&str], is_serializable: bool) -> Option<String> {
        let alarms = self.server.threads().alarms();
        let mut names = alarms.iter().map(|alarm| alarm.alarm().as_str_name());
        if let Some(name) = names.find(|name| !excluded.contains(name)) {
            return Some(format!("ALARM {name}"));
        }
        if !is_serializable && self.server.threads().status().leader() == 0 {
            return Some("RAFT NO LEADER".to_owned());
        }
        let read = self.check_read(is_serializable).await;
        read.err().map(|error| format!("RANGE ERROR:{error}"))
    }

    /// Serves `/livez`, `/readyz`, and the paths of their single checks.
    pub(super) async fn run_checks(&self, checks: &[&str], query: Option<&str>) -> Response<Body> {
        let excluded: Vec<&str> = excluded(query).collect();
        let mut report = String::new();
        let mut is_well = true;
        for name in checks.iter().filter(|name| !excluded.contains(name)) {
            let outcome = self.run_check(name).await;
            // etcd has no check `progress`, and tools compare the list of a ready member with
            // etcd's list. So the list does not contain this check if it has passed.
            if **name == *PROGRESS && outcome.is_ok() && checks.len() > 1 {
                continue;
            }
            let _ = match &outcome {
                Ok(()) => writeln!(report, "[+]{name} ok"),
                Err(why) => writeln!(report, "[-]{name} failed: {why}"),
            };
            is_well &= outcome.is_ok();
        }
        if !is_well {
            return error_response(StatusCode::SERVICE_UNAVAILABLE, &report);
        }
        if !query_parts(query).any(|(name, _)| name == "verbose") {
            report.clear();
        }
        report.push_str("ok\n");
        text(StatusCode::OK, PLAIN, report)
    }

    async fn run_check(&self, name: &str) -> Result<(), String> {
        let node = self.server.threads();
        match name {
            "data_corruption" => match node.alarms().is_raised(AlarmType::Corrupt) {
                true => Err("alarm activated: CORRUPT".to_owned()),
                false => Ok(()),
            },
            "non_learner" => match node.members().get(node.metadata().node_id) {
                Some(member) if member.is_learner => Err("this member is a learner".to_owned()),
                _ => Ok(()),
            },
            PROGRESS => self.stall().map_or(Ok(()), Err),
            read => {
                let done = self.check_read(read == "serializable_read").await;
                done.map_err(|error| error.to_string())
            }
        }
    }

    /// Returns the description of a part of this member that makes no progress. Returns `None` if
    /// all parts make progress.
    fn stall(&self) -> Option<String> {
        let node = self.server.threads();
        let (stalls, now) = (node.stalls(), node.now());
        let raft_loop = stalls.raft_loop_stalled_for(now, node.election_timeout());
        let raft_loop = raft_loop.map(|stalled| ("the raft loop", stalled));
        let mut parts = Part::ALL.into_iter().filter_map(|part| {
            let name = match part {
                Part::Log => "the disk of the write-ahead log",
                Part::Apply => "the apply loop",
                Part::Network => "a network thread",
            };
            Some((name, stalls.stalled_for(part, now)?))
        });
        let (name, stalled) = parts.next().or(raft_loop)?;
        Some(format!("{name} has made no progress for {:.1} s", stalled.as_secs_f64()))
    }

    /// Reads a key, either locally or linearizably.
    async fn check_read(&self, is_serializable: bool) -> Result<(), RequestError> {
        if !is_serializable {
            let timeout = match self.stall() {
                Some(_) => self.config.read_timeout.min(STALLED_READ_TIMEOUT),
                None => self.config.read_timeout,
            };
            let fresh =
                tokio::time::timeout(timeout, self.server.requests().read_index(ReadNeed::Applied));
            fresh.await.unwrap_or(Err(RequestError::TimedOut))?;
        }
        let (key, range_end) = (vec![0].into(), vec![0].into());
        let one = RangeRequest { key, range_end, limit: 1, keys_only: true, ..Default::default() };
        let read = self.server.read_store(move |read| apply::range(read, &one));
        read.await??.map(drop).map_err(RequestError::from)
    }
}

/// Returns the values of the query parameter `exclude`. Each value is the name of a check to omit,
/// or, for `/health`, the name of an alarm to ignore.
fn excluded(query: Option<&str>) -> impl Iterator<Item = &str> {
    query_parts(query).filter(|(name, _)| *name == "exclude").map(|(_, value)| value)
}
