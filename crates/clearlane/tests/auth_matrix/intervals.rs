//! Which ranges a set of permissions covers: adjacent ranges, overlapping ranges, single keys,
//! ranges without end, and requests that cover no key because their ends are equal.
//!
//! There are no requests for ranges that end before they start. Their result in etcd depends on the
//! order of the grants, because this order determines the shape of etcd's tree of permissions.
//!
//! `intervals-3.7.1.txt` has a paragraph for each set of permissions. Its first line lists the
//! permissions, which are divided between two roles of one user. The line below lists the ranges
//! that the user may read. `a..c` is a range, `a..` a range without end, and `a` a key. A zero byte
//! is written as `0`.

use clearlane_proto::authpb::Permission;
use clearlane_proto::authpb::permission::Type;
use clearlane_proto::etcdserverpb::{
    AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserGrantRoleRequest, RangeRequest,
};

use crate::call::{Call, Outcome, Token};
use crate::server::{Program, Server};

/// The keys from which the ends of all permissions and requests are chosen.
const KEYS: [&str; 7] = ["\0", "a", "a\0", "b", "c", "d", "e"];
const NO_END: &str = "\0";

const CHOSEN: [&[(&str, &str)]; 20] = [
    &[("a", "")],
    &[("a", ""), ("b", "")],
    &[("a", ""), ("a\0", "b")],
    &[("a", "a\0"), ("a\0", "")],
    &[("a", "c")],
    &[("a", "b"), ("b", "c")],
    &[("b", "c"), ("a", "b")],
    &[("a", "b"), ("c", "d")],
    &[("a", "c"), ("b", "d")],
    &[("a", "d"), ("b", "c")],
    &[("a", "d"), ("b", "")],
    &[("a", "b"), ("b", ""), ("c", "d")],
    &[("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")],
    &[("d", "e"), ("a", "b"), ("c", "d"), ("b", "c")],
    &[("a", "c"), ("a", "b"), ("a", "d")],
    &[("b", NO_END)],
    &[("a", "b"), ("b", NO_END)],
    &[("a", "c"), ("b", NO_END)],
    &[("a", "b"), ("c", NO_END)],
    &[("\0", NO_END)],
];

const RANDOM_SETS: u64 = 30;

type Pairs = Vec<(String, String)>;

/// Returns one to six permissions, in the order in which they are granted.
fn random_set(seed: u64) -> Pairs {
    let mut state = seed;
    let mut next = move |below: usize| {
        // This is Knuth's generator MMIX. The generator of a library could return other numbers in
        // a new version, and the recorded file would no longer match.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let mut set = Pairs::new();
    for _ in 0..=next(6) {
        let begin = next(KEYS.len());
        let end = match next(6) {
            0 => String::new(),
            1 => NO_END.to_owned(),
            _ if begin + 1 == KEYS.len() => String::new(),
            _ => KEYS[begin + 1 + next(KEYS.len() - begin - 1)].to_owned(),
        };
        set.push((KEYS[begin].to_owned(), end));
    }
    set
}

fn sets() -> Vec<Pairs> {
    let owned = |set: &&[(&str, &str)]| -> Pairs {
        set.iter().map(|(key, end)| ((*key).to_owned(), (*end).to_owned())).collect()
    };
    CHOSEN.iter().map(owned).chain((1..=RANDOM_SETS).map(random_set)).collect()
}

fn shown(key: &str, end: &str) -> String {
    let zero = |text: &str| text.replace('\0', "0");
    match end {
        "" => zero(key),
        NO_END => format!("{}..", zero(key)),
        end => format!("{}..{}", zero(key), zero(end)),
    }
}

/// Returns the text of `intervals-3.7.1.txt`.
pub(crate) async fn intervals(program: &Program) -> String {
    let server = Server::start(program, &[]).await;
    let mut text = String::new();
    for (number, set) in sets().iter().enumerate() {
        let user = format!("set-{number}");
        let token = grant(&server, &user, set).await;
        let permissions: Vec<String> = set.iter().map(|(key, end)| shown(key, end)).collect();
        let may = permitted(&server, &Token::of(&token)).await;
        text += &format!("{}\n   {}\n\n", permissions.join(" "), may.join(" "));
    }
    text
}

async fn grant(server: &Server, user: &str, set: &Pairs) -> String {
    server.add_user(user, "").await;
    for (half, kind) in [(0, Type::Read), (1, Type::Readwrite)] {
        let role = format!("{user}-{half}");
        server.must("Auth/RoleAdd", AuthRoleAddRequest { name: role.clone() }).await;
        for (key, end) in set.iter().skip(half).step_by(2) {
            let (key, range_end) = (key.clone().into(), end.clone().into());
            let perm = Some(Permission { perm_type: kind as i32, key, range_end });
            let granted = AuthRoleGrantPermissionRequest { name: role.clone(), perm };
            server.must("Auth/RoleGrantPermission", granted).await;
        }
        let granted = AuthUserGrantRoleRequest { user: user.to_owned(), role };
        server.must("Auth/UserGrantRole", granted).await;
    }
    server.log_in(user).await
}

async fn permitted(server: &Server, token: &Token) -> Vec<String> {
    let mut may = Vec::new();
    for key in KEYS {
        for end in [""].into_iter().chain(KEYS) {
            if end < key && !end.is_empty() && end != NO_END {
                continue;
            }
            let (from, range_end) = (key.into(), end.into());
            let request =
                RangeRequest { key: from, range_end, count_only: true, ..Default::default() };
            match server.call(&Call::new("KV/Range", request), token).await {
                Outcome::Reply(_) => may.push(shown(key, end)),
                Outcome::Failure { code, .. } if code == "PermissionDenied" => {}
                other => panic!("{key:?} to {end:?}: {other:?}"),
            }
        }
    }
    may
}
