//! Operations written as words, for golden scripts: `put lease a=1`, `range key`, `delete meta b`.

use std::error::Error;
use std::fmt::Write as _;
use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_backend::{ReadTx, WriteTx};
use clearlane_engine::{Bucket, KeyRange};

use super::Entry;

pub(crate) type Outcome = Result<String, Box<dyn Error>>;

fn bucket(name: &str) -> Result<Bucket, Box<dyn Error>> {
    let found = Bucket::ALL.into_iter().find(|bucket| bucket.name() == name);
    found.ok_or_else(|| format!("no bucket {name:?}").into())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `get BUCKET KEY...` or `range BUCKET [FROM [TO]] [limit=N]` on a read or write transaction.
pub(crate) fn read(tx: &dyn ReadTx, name: &str, words: &[&str]) -> Outcome {
    let (bucket, words) = match words {
        [name, rest @ ..] => (bucket(name)?, rest),
        [] => return Err("which bucket?".into()),
    };
    match name {
        "get" => words.iter().try_fold(String::new(), |mut out, key| {
            match tx.get(bucket, key.as_bytes())? {
                Some(value) => writeln!(out, "{key}={}", text(&value))?,
                None => writeln!(out, "{key} is absent")?,
            }
            Ok(out)
        }),
        "range" => range(tx, bucket, words),
        other => Err(format!("no read {other:?}").into()),
    }
}

fn range(tx: &dyn ReadTx, bucket: Bucket, words: &[&str]) -> Outcome {
    let limit = words.iter().find_map(|word| word.strip_prefix("limit="));
    let mut left = limit.map_or(Ok(usize::MAX), str::parse)?;
    let keys: Vec<&str> = words.iter().copied().filter(|word| !word.contains('=')).collect();
    let from = keys.first().map_or(&b""[..], |from| from.as_bytes());
    let to = keys.get(1).map(|to| to.as_bytes());
    let mut out = String::new();
    tx.range(bucket, KeyRange { from, to }, &mut |key, value| {
        out.push_str(&format!("{}={}\n", text(key), text(&value)));
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(if out.is_empty() { "(none)\n".to_owned() } else { out })
}

/// Runs `put BUCKET KEY=VALUE...`, `delete BUCKET KEY...` or a read in a write transaction.
pub(crate) fn write(tx: &mut dyn WriteTx<Entry>, name: &str, words: &[&str]) -> Outcome {
    match (name, words) {
        ("put", [name, records @ ..]) => {
            for record in records {
                let (key, value) = record.split_once('=').ok_or("put takes KEY=VALUE")?;
                let value = Bytes::copy_from_slice(value.as_bytes());
                tx.put(bucket(name)?, key.as_bytes(), value)?;
            }
            Ok(String::new())
        }
        ("delete", [name, keys @ ..]) => {
            for key in keys {
                tx.delete(bucket(name)?, key.as_bytes())?;
            }
            Ok(String::new())
        }
        _ => read(tx, name, words),
    }
}
