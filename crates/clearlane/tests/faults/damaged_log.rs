//! A member is killed, its log is damaged, and the member is started again: it must either fail, or
//! have all data.
//!
//! `crates/replica/tests/suite/halves/damaged_log.rs` tests 2,000 more cases of damage, in logs
//! with several segments and after power failures.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest};

use crate::program::{Program, TIMEOUT, kv_with_timeout, members, short_pause};
use crate::{SeededRng, env_number};

const PUTS: u64 = 300;
const SEGMENT: &str = "0000000000000000-0000000000000000.wal";

/// Waits until the member serves clients or has ended. Returns true if it serves clients.
async fn serves(member: &mut Program) -> bool {
    let begin = Instant::now();
    while member.is_running() {
        if let Ok(channel) = crate::program::kv(member.client).await {
            let all = RangeRequest { key: "key".into(), ..RangeRequest::default() };
            if channel.clone().range(all).await.is_ok() {
                return true;
            }
        }
        assert!(begin.elapsed() < TIMEOUT, "it neither serves nor ends: {}", member.log());
        short_pause().await;
    }
    false
}

/// Returns the length without the zeros at the end, rounded up to a multiple of 512, but at most
/// the length of `bytes`.
fn written(bytes: &[u8]) -> u64 {
    let sectors = bytes.chunks(512);
    let last = sectors.rev().position(|sector| *sector != [0; 512][..sector.len()]);
    let sectors = bytes.len().div_ceil(512) - last.unwrap_or(bytes.len().div_ceil(512));
    (sectors * 512).min(bytes.len()) as u64
}

fn damage(rng: &mut SeededRng, segment: &Path) -> String {
    let file = File::options().read(true).write(true).open(segment).unwrap();
    let end = written(&fs::read(segment).unwrap());
    match rng.below(4) {
        0 => {
            let (at, mut byte) = (rng.below(end), [0]);
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1 << rng.below(8)], at).unwrap();
            format!("a bit of byte {at}")
        }
        1 => {
            let length = rng.below(end + 10_000);
            file.set_len(length).unwrap();
            format!("cut to {length}")
        }
        _ => {
            let (from, length) = (rng.below(end) / 512 * 512, 512 << rng.below(8));
            file.write_all_at(&vec![0; length], from).unwrap();
            format!("{length} zeros from {from} of {end}")
        }
    }
}

/// Copies a directory. The copies are sparse files, because most of a segment is zeros.
fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_dir(&entry.path(), &to),
            false => {
                let bytes = fs::read(entry.path()).unwrap();
                fs::write(&to, &bytes[..written(&bytes) as usize]).unwrap();
                File::options().write(true).open(&to).unwrap().set_len(bytes.len() as u64).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_damaged_log_is_refused_or_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = SeededRng::new();
    let mut member = members(dir.path(), 1).remove(0);
    member.start();
    member.ready().await;
    let mut client = kv_with_timeout(member.client).await;
    for number in 0..PUTS {
        let value = "v".repeat(rng.below(1000) as usize);
        let (key, value) = (format!("key{number}").into(), value.into());
        client.put(PutRequest { key, value, ..PutRequest::default() }).await.unwrap();
    }
    member.kill();
    let (data, whole) = (dir.path().join("m0"), dir.path().join("whole"));
    let segment: PathBuf = data.join("member/wal").join(SEGMENT);
    copy_dir(&data, &whole);
    let mut refused = 0;
    let rounds = env_number("CLEARLANE_ROUNDS").unwrap_or(12);
    for round in 0..=rounds {
        fs::remove_dir_all(&data).unwrap();
        copy_dir(&whole, &data);
        // In the first round the log is not damaged.
        let words = if round == 0 { "nothing".to_owned() } else { damage(&mut rng, &segment) };
        member.start();
        if !serves(&mut member).await {
            let said = member.log();
            assert!(round > 0 && (said.contains("damaged") || said.contains("log-loss")), "{said}");
            refused += 1;
            continue;
        }
        let mut client = kv_with_timeout(member.client).await;
        let (key, range_end) = ("key".into(), "kez".into());
        let all = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
        let found = client.range(all).await.unwrap().into_inner().count;
        assert_eq!(found, PUTS as i64, "{words}: {}", member.log());
        member.kill();
    }
    println!("{refused} of {rounds} damaged logs are refused, and the others have everything");
}
