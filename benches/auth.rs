//! The cost of authentication for a request.
//!
//! ```text
//! cargo bench --bench auth
//! ```
//!
//! **Timed:**
//!
//! * `permission`: the permission check of one key, for a user whose roles have 1, 100 or 10,000
//!   rules. The keys are in a different order than the rules.
//! * `token`: finding the user of a simple token among 200, and of a signed token whose signature
//!   was checked before.
//! * `signature`: the check of a signature, which a server makes once for each token.
//! * `range`: all the work that a range request does for its user. Before the read, this is finding
//!   the user of the token and checking the permission. After the read, it is comparing the auth
//!   revision.
//!
//! **Not timed:** merging a user's rules, which is done once after each change, and bcrypt, which
//! is in `benches/authenticate`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use clearlane_auth::simple_tokens::SimpleToken;
use clearlane_auth::{
    AuthConfig, AuthInfo, AuthStore, JwtProvider, TokenConfig, TokenProvider, VerifiedTokens,
};
use clearlane_backend::{Config, Era, PreCommit};
use clearlane_contention::Registry;
use clearlane_engine::{EngineKind, Options};
use clearlane_mvcc::{Store, StoreConfig};
use clearlane_proto::authpb::Permission;
use clearlane_proto::authpb::permission::Type;
use clearlane_proto::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest,
    AuthUserGrantRoleRequest, InternalAuthenticateRequest, InternalRaftRequest,
};
use criterion::{Criterion, criterion_group, criterion_main};

const RULES: [usize; 3] = [1, 100, 10_000];
const TOKENS: u64 = 200;
/// The distance between two keys that are checked one after the other. It is coprime to the number
/// of rules, so every key is checked.
const STRIDE: usize = 7919;

struct Bench {
    auth: AuthStore,
    users: Box<dyn Store<u64>>,
    _directory: tempfile::TempDir,
}

fn open(tokens: TokenConfig) -> Bench {
    let directory = tempfile::TempDir::new().expect("there is room for a store");
    let engine =
        clearlane_engine::open(EngineKind::Bolt, &directory.path().join("s"), Options::default());
    let config = StoreConfig {
        engine: engine.expect("an empty store opens"),
        config: Config::default(),
        pre_commit: PreCommit::new(|_: &u64, _| Ok(())),
        consistent_index: 0,
        leases: Arc::new(()),
    };
    let (store, _) = clearlane_mvcc::open(Era::Clearlane, config).expect("an empty store opens");
    let auth = AuthStore::new(AuthConfig { tokens, bcrypt_cost: 10 }, &Registry::new());
    Bench { auth, users: store, _directory: directory }
}

impl Bench {
    fn change(&self, request: InternalRaftRequest) {
        let mut txn = self.users.begin_write().expect("a healthy store takes writes");
        let change = self.auth.apply(&mut *txn, &request).expect("nothing is refused");
        drop(txn.end(0));
        self.auth.publish(change);
    }

    /// Adds a root user, and `alice` with a role that has `rules` disjoint rules. Then enables
    /// authentication.
    fn fill(&self, rules: usize) {
        for name in ["root", "alice"] {
            let user = AuthUserAddRequest { name: name.to_owned(), ..Default::default() };
            let role = AuthRoleAddRequest { name: name.to_owned() };
            let grant = AuthUserGrantRoleRequest { user: name.to_owned(), role: name.to_owned() };
            self.change(InternalRaftRequest { auth_user_add: Some(user), ..Default::default() });
            self.change(InternalRaftRequest { auth_role_add: Some(role), ..Default::default() });
            let auth_user_grant_role = Some(grant);
            self.change(InternalRaftRequest { auth_user_grant_role, ..Default::default() });
        }
        for rule in 0..rules {
            let perm_type = Type::Readwrite as i32;
            let (key, range_end) = (key(rule), [&key(rule)[..], b"/z"].concat().into());
            let perm = Some(Permission { perm_type, key, range_end });
            let auth_role_grant_permission =
                Some(AuthRoleGrantPermissionRequest { name: "alice".to_owned(), perm });
            self.change(InternalRaftRequest { auth_role_grant_permission, ..Default::default() });
        }
        let auth_enable = Some(AuthEnableRequest::default());
        self.change(InternalRaftRequest { auth_enable, ..Default::default() });
    }

    fn assign_tokens(&self) -> Vec<String> {
        let request = InternalAuthenticateRequest {
            name: "alice".to_owned(),
            simple_token: "abcdefghijklmnop".to_owned(),
            ..Default::default()
        };
        let assign = |index| self.auth.authenticate(&request, index).expect("alice is there");
        (1..=TOKENS).map(assign).collect()
    }

    fn user(&self, token: &str) -> AuthInfo {
        let revision = self.auth.with_state(|state| state.revision);
        let TokenProvider::Simple(tokens) = self.auth.tokens() else { unreachable!() };
        let token = SimpleToken::parse(token).expect("it was made here");
        let username = tokens.use_token(token, Duration::from_secs(1)).expect("it was made here");
        AuthInfo { username, revision }
    }
}

fn key(number: usize) -> bytes::Bytes {
    format!("/registry/configmaps/namespace-{number:08}").into()
}

fn simple() -> TokenConfig {
    TokenConfig::Simple { ttl: Duration::from_secs(300) }
}

fn permission(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("permission");
    for rules in RULES {
        let bench = open(simple());
        bench.fill(rules);
        let keys: Vec<_> = (0..rules).map(|at| key(at * STRIDE % rules)).collect();
        let revision = bench.auth.with_state(|state| state.revision);
        let user = AuthInfo { username: "alice".into(), revision };
        let mut next = keys.iter().cycle();
        group.bench_function(format!("{rules}_rules"), |bencher| {
            bencher.iter(|| {
                let key = next.next().expect("it goes round");
                let checked =
                    bench.auth.with_state(|state| state.checker(Some(&user)).read(key, &[]));
                assert!(checked.is_ok());
            });
        });
    }
    group.finish();
}

fn token(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("token");
    let bench = open(simple());
    bench.fill(1);
    let tokens = bench.assign_tokens();
    let mut next = tokens.iter().cycle();
    group.bench_function("simple", |bencher| {
        bencher.iter(|| bench.user(next.next().expect("it goes round")));
    });
    let (provider, token) = signed();
    let open_store = open(TokenConfig::Jwt(provider));
    let TokenProvider::Jwt(known) = open_store.auth.tokens() else { unreachable!() };
    let known: &VerifiedTokens = known;
    group.bench_function("signed_and_known", |bencher| {
        bencher.iter(|| known.user(black_box(&token), 1).expect("it is good"));
    });
    group.finish();
}

fn signed() -> (Arc<JwtProvider>, String) {
    let secret = |_: &str| Ok(b"a secret that is long enough for a bench".to_vec());
    let provider = JwtProvider::new("sign-method=HS256,priv-key=secret", &secret);
    let provider = Arc::new(provider.expect("the options are right"));
    let token = provider.sign("alice", 1, 1, &ring::rand::SystemRandom::new());
    (provider, token.expect("there is a key"))
}

fn signature(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("signature");
    let (provider, token) = signed();
    group.bench_function("hs256", |bencher| {
        bencher.iter(|| provider.verify(black_box(&token), 1).expect("it is good"));
    });
    group.finish();
}

fn range(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("range");
    let bench = open(simple());
    bench.fill(10_000);
    let tokens = bench.assign_tokens();
    let mut next = (0..).map(|at: usize| (&tokens[at % tokens.len()], key(at * STRIDE % 10_000)));
    group.bench_function("all_that_a_user_costs", |bencher| {
        bencher.iter_batched(
            || next.next().expect("it goes on"),
            |(token, key)| {
                let user = bench.user(token);
                let checked =
                    bench.auth.with_state(|state| state.checker(Some(&user)).read(&key, &[]));
                assert!(checked.is_ok());
                bench.auth.with_state(|state| state.revision) == user.revision
            },
            criterion::BatchSize::SmallInput,
        );
    });
    group.finish();
}

criterion_group!(benches, permission, token, signature, range);
criterion_main!(benches);
