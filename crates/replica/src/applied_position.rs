//! The position of the store in the log. In etcd: the consistent index.
//!
//! Each write transaction ends with an [`AppliedPosition`], even if its entry changes nothing. The
//! commit that makes the changes durable also writes the position, into etcd's three keys of bucket
//! `meta`:
//!
//! ```text
//!   consistent_index   8 bytes, big endian     index of the last entry that the store has applied
//!   term               8 bytes, big endian     the term of that entry; absent while it is 0
//!   confState          {"voters":[1,2],"learners":[3],"auto_leave":false}
//! ```
//!
//! etcd writes `confState` only when the members change. At startup, both etcd and Clearlane take
//! the members from bucket `members` instead. If that bucket is empty, Clearlane takes `confState`.

use std::sync::Arc;

use clearlane_backend::PreCommit;
use clearlane_engine::{Bucket, Read};
use clearlane_raft::LogPosition;
use clearlane_wal::ConfState;
use serde_json::{Map, Value};

use crate::error::{Error, Result};

const INDEX_KEY: &[u8] = b"consistent_index";
const TERM_KEY: &[u8] = b"term";
const CONF_STATE_KEY: &[u8] = b"confState";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedPosition {
    /// The index of the last applied entry, or 0 if no entry has been applied.
    pub index: u64,
    pub term: u64,
    /// The members as of the entry at `index`. Positions share this list, because every entry has a
    /// position and the members seldom change.
    pub conf_state: Arc<ConfState>,
}

impl AppliedPosition {
    pub fn read(state: &(impl Read + ?Sized)) -> Result<AppliedPosition> {
        let members = state.get(Bucket::Meta, CONF_STATE_KEY)?;
        let members = members.map(|text| parse_conf_state(&text)).transpose()?;
        Ok(AppliedPosition {
            index: read_u64(state, INDEX_KEY, "consistent_index")?,
            term: read_u64(state, TERM_KEY, "term")?,
            conf_state: Arc::new(members.unwrap_or_default()),
        })
    }

    pub fn pre_commit() -> PreCommit<AppliedPosition> {
        PreCommit::new(|progress: &AppliedPosition, put| {
            if progress.index == 0 {
                return Ok(());
            }
            put(Bucket::Meta, INDEX_KEY, &progress.index.to_be_bytes())?;
            if progress.term > 0 {
                put(Bucket::Meta, TERM_KEY, &progress.term.to_be_bytes())?;
            }
            put(Bucket::Meta, CONF_STATE_KEY, print_conf_state(&progress.conf_state).as_bytes())
        })
    }

    pub fn position(&self) -> LogPosition {
        LogPosition { index: self.index, term: self.term, conf_state: (*self.conf_state).clone() }
    }
}

fn read_u64(state: &(impl Read + ?Sized), key: &[u8], name: &'static str) -> Result<u64> {
    let Some(value) = state.get(Bucket::Meta, key)? else { return Ok(0) };
    let bytes = <[u8; 8]>::try_from(&value[..]);
    bytes
        .map(u64::from_be_bytes)
        .map_err(|_| Error::damaged(name, format!("it has {} bytes, not 8", value.len())))
}

fn print_conf_state(members: &ConfState) -> String {
    let lists = [
        ("voters", &members.voters),
        ("learners", &members.learners),
        ("voters_outgoing", &members.voters_outgoing),
        ("learners_next", &members.learners_next),
    ];
    let mut out = String::from("{");
    for (name, ids) in lists.iter().filter(|(_, ids)| !ids.is_empty()) {
        let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
        out += &format!("\"{name}\":[{}],", ids.join(","));
    }
    out + &format!("\"auto_leave\":{}}}", members.auto_leave)
}

fn parse_conf_state(text: &[u8]) -> Result<ConfState> {
    let damaged = |what: &str| Error::damaged("confState", what);
    let Ok(Value::Object(object)) = serde_json::from_slice(text) else {
        return Err(damaged("it is not a JSON object"));
    };
    let list =
        |name: &str| ids(&object, name).ok_or_else(|| damaged("it has an id that is not a number"));
    Ok(ConfState {
        voters: list("voters")?,
        learners: list("learners")?,
        voters_outgoing: list("voters_outgoing")?,
        learners_next: list("learners_next")?,
        auto_leave: object.get("auto_leave").and_then(Value::as_bool).unwrap_or(false),
    })
}

fn ids(object: &Map<String, Value>, name: &str) -> Option<Vec<u64>> {
    match object.get(name) {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(list) => list.as_array()?.iter().map(Value::as_u64).collect(),
    }
}

#[cfg(test)]
mod tests {
    use clearlane_engine::{Engine, MemoryEngine};

    use super::*;

    fn write(pairs: &[(&[u8], &[u8])]) -> MemoryEngine {
        let engine = MemoryEngine::new();
        let mut txn = engine.begin_write().unwrap();
        for (key, value) in pairs {
            txn.put(Bucket::Meta, key, value).unwrap();
        }
        txn.commit().unwrap();
        engine
    }

    fn read(engine: &MemoryEngine) -> Result<AppliedPosition> {
        AppliedPosition::read(&*engine.snapshot().unwrap())
    }

    #[test]
    fn what_a_commit_writes_is_read_again() {
        let members = ConfState {
            voters: vec![1, u64::MAX],
            learners: vec![3],
            voters_outgoing: vec![4, 5],
            learners_next: vec![6],
            auto_leave: true,
        };
        for members in [ConfState::default(), members] {
            let progress = AppliedPosition { index: 7, term: 2, conf_state: Arc::new(members) };
            let engine = MemoryEngine::new();
            assert_eq!(read(&engine).unwrap(), AppliedPosition::default());
            let mut txn = engine.begin_write().unwrap();
            let mut put = |bucket, key: &[u8], value: &[u8]| Ok(txn.put(bucket, key, value)?);
            AppliedPosition::pre_commit().run(&progress, &mut put).unwrap();
            txn.commit().unwrap();
            assert_eq!(read(&engine).unwrap(), progress);
        }
    }

    #[test]
    fn etcds_text_is_read_and_written() {
        let text = r#"{"voters":[1,2],"learners":[3],"auto_leave":false}"#;
        let members = parse_conf_state(text.as_bytes()).unwrap();
        assert_eq!((&members.voters, &members.learners), (&vec![1, 2], &vec![3]));
        assert_eq!(print_conf_state(&members), text);
        let null = parse_conf_state(br#"{"voters":null,"new":1}"#).unwrap();
        assert_eq!(null, ConfState::default());
    }

    #[test]
    fn what_makes_no_sense_is_told_with_its_key() {
        for (key, value) in [
            (INDEX_KEY, &b"short"[..]),
            (TERM_KEY, b"123456789"),
            (CONF_STATE_KEY, b"[]"),
            (CONF_STATE_KEY, b"{\"voters\":[\"one\"]}"),
            (CONF_STATE_KEY, b"{\"learners\":7}"),
            (CONF_STATE_KEY, b"\xff"),
        ] {
            let message = read(&write(&[(key, value)])).unwrap_err().to_string();
            assert!(message.contains(std::str::from_utf8(key).unwrap()), "{message}");
        }
    }
}
