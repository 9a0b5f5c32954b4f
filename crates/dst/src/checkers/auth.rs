//! Users, roles and what follows from them, compared with the [plain maps](crate::auth_model) that
//! the log makes.
//!
//! * `AuthState`: members that have applied the same have the same users and roles, in memory and
//!   in the store, from which a restart takes them.
//! * `Permissions`: an entry takes effect exactly if its user may do what it does at its place in
//!   the log. A read returns only what its user may read at the state that it is read from.
//! * `Revocation`: nothing that begins behind an acknowledged change is decided by what was before.
//! * `Tokens`: a token is good only where its entry is applied, and not after its user is gone or
//!   has another password; and only for that password there is one.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clearlane_auth::{AuthConfig, AuthRejection, AuthState, AuthStore};
use clearlane_engine::Bucket;
use clearlane_mvcc::ReadTxn;
use clearlane_proto::authpb::{Permission, User};
use prost::Message;

use super::committed_model::CommittedModel;
use super::{CheckResult, Rule};
use crate::auth_model::{Access, AuthModel, Granted, KeySpan, ROOT};
use crate::auth_proposals::{hash_of, may_do};
use crate::machine::text;

/// A member's users and roles equal what the log up to `index` makes of none.
pub fn check_state(
    member: u64,
    index: u64,
    state: &AuthState,
    model: &CommittedModel,
) -> CheckResult {
    let expected = model.auth_at(index);
    let is_same = (state.enabled, state.revision) == (expected.enabled, expected.revision)
        && users_are_same(state, expected)
        && roles_are_same(state, expected);
    Rule::AuthState.check(is_same, || {
        format!("{member} has applied {index} and has {state:?}, not {expected:?}")
    })
}

fn users_are_same(state: &AuthState, expected: &AuthModel) -> bool {
    let has_roles = |name: &String| {
        let roles = state.roles_of(name).unwrap_or_default();
        expected.users.get(name).is_some_and(|user| roles.iter().eq(&user.roles))
    };
    let names = state.user_names();
    names.len() == expected.users.len() && names.iter().all(has_roles)
}

fn roles_are_same(state: &AuthState, expected: &AuthModel) -> bool {
    let granted = |permission: &Permission| {
        let (may_read, may_write) = may_do(permission)?;
        let span = KeySpan::new(&permission.key, &permission.range_end);
        Some((span, Granted { may_read, may_write }))
    };
    let has_permissions = |role: &String| {
        let found = state.permissions_of(role).unwrap_or_default();
        let found = found.iter().map(granted).collect::<Option<BTreeMap<_, _>>>();
        // What was granted to the role `root` is not shown.
        expected.roles.get(role).is_some_and(|spans| role == ROOT || Some(spans) == found.as_ref())
    };
    let names = state.role_names();
    names.len() == expected.roles.len() && names.iter().all(has_permissions)
}

/// What a member would begin with after a restart.
pub fn check_buckets(
    member: u64,
    index: u64,
    read: &dyn ReadTxn,
    model: &CommittedModel,
) -> CheckResult {
    let fresh = AuthStore::new(AuthConfig::default(), &clearlane_contention::Registry::default());
    let restored = fresh.restore(read);
    Rule::AuthState.check(restored.is_ok(), || format!("at {index} of {member}: {restored:?}"))?;
    fresh.with_state(|state| check_state(member, index, state, model))?;
    let mut hashes = BTreeMap::new();
    let scanned = read.scan(Bucket::AuthUsers, &mut |name, value| {
        let user = User::decode(value.to_bytes()).unwrap_or_default();
        let has_password = !user.options.unwrap_or_default().no_password;
        hashes.insert(text(name), has_password.then(|| STANDARD.encode(&user.password)));
        ControlFlow::Continue(())
    });
    let users = &model.auth_at(index).users;
    let expected = users.iter().map(|(name, user)| (name, &user.hash));
    Rule::AuthState.check(scanned.is_ok() && hashes.iter().eq(expected), || {
        format!("{member} at {index} has other passwords: {:?}", hashes.keys())
    })
}

/// `refused` is what the member has answered about the user of the entry `index`.
pub fn check_outcome(
    member: u64,
    index: u64,
    refused: Option<AuthRejection>,
    model: &CommittedModel,
) -> CheckResult {
    let expected = model.refusal(index);
    Rule::Permissions.check(refused == expected, || {
        format!("{member} answers {refused:?} about entry {index}, expected {expected:?}")
    })
}

/// How many revisions a step makes, of which some entries' users are checked.
pub fn check_effects(
    member: u64,
    (first, last): (u64, u64),
    revisions: usize,
    model: &CommittedModel,
) -> CheckResult {
    if !(first..=last).any(|index| model.is_user_checked(index)) {
        return Ok(());
    }
    let at = |index| model.at_index(index).map_or(0, |state| state.revision);
    let expected = at(last) - at(first - 1);
    Rule::Permissions.check(expected == revisions as i64, || {
        let refused: Vec<_> = (first..=last).filter_map(|at| model.refusal(at)).collect();
        format!(
            "entries {first} to {last} have made {revisions} revisions at {member}, expected \
             {expected}; refused: {refused:?}"
        )
    })
}

/// A read that is about to be answered.
#[derive(Clone, Debug)]
pub struct UserRead {
    pub operation: usize,
    pub user: Option<String>,
    pub span: KeySpan,
    pub is_linearizable: bool,
    /// What the member had applied when the permission was checked.
    pub authorized_at: u64,
    /// What the member had applied when the view was opened.
    pub viewed_at: u64,
}

/// What was acknowledged about users.
#[derive(Debug, Default)]
pub struct AuthPromises {
    /// The newest change of users and roles of which a client was told.
    acknowledged: u64,
    /// By operation: `acknowledged` when it began.
    at_invocation: BTreeMap<usize, u64>,
    pub user_reads: u64,
    pub refused_requests: u64,
    pub used_tokens: u64,
}

impl AuthPromises {
    pub fn on_invoke(&mut self, operation: usize) {
        self.at_invocation.insert(operation, self.acknowledged);
    }

    pub fn on_acknowledged(&mut self, index: u64) {
        self.acknowledged = self.acknowledged.max(index);
    }

    pub fn check_read(
        &mut self,
        member: u64,
        read: &UserRead,
        model: &CommittedModel,
    ) -> CheckResult {
        self.user_reads += 1;
        let acknowledged = self.at_invocation.get(&read.operation).copied().unwrap_or(0);
        let is_fresh = !read.is_linearizable || read.authorized_at >= acknowledged;
        Rule::Revocation.check(is_fresh, || {
            format!("{member} answers {read:?} and {acknowledged} was acknowledged before")
        })?;
        let (before, at) = (model.auth_at(read.authorized_at), model.auth_at(read.viewed_at));
        let may = |name: &String| at.may(name, Access::Read, &read.span);
        // Whether users count at all is not compared again, as in etcd.
        let is_permitted = !before.enabled || read.user.as_ref().is_some_and(may);
        Rule::Permissions.check(is_permitted, || {
            format!("{member} answers {read:?} to a user that may not read it: {at:?}")
        })
    }

    /// `index` is the entry of an operation that was acknowledged.
    pub fn check_write(&self, operation: usize, index: u64) -> CheckResult {
        let acknowledged = self.at_invocation.get(&operation).copied().unwrap_or(0);
        Rule::Revocation.check(index > acknowledged, || {
            format!("#{operation} is entry {index} and {acknowledged} was acknowledged before")
        })
    }

    /// A member that has applied `applied` takes the token of the entry `index` for this user's.
    pub fn check_token(
        &mut self,
        (member, applied): (u64, u64),
        (letters, index): (&str, u64),
        username: &str,
        model: &CommittedModel,
    ) -> CheckResult {
        self.used_tokens += 1;
        let assigned = model.auth_at(applied).tokens.get(&index);
        let is_good = assigned.is_some_and(|(has, of)| has == letters && of == username);
        Rule::Tokens.check(is_good, || {
            format!("{member} has applied {applied} and takes token {index} for {username}'s")
        })
    }
}

/// The token of the entry `index` was given for this password.
pub fn check_login(
    member: u64,
    index: u64,
    (username, password): (&str, &str),
    model: &CommittedModel,
) -> CheckResult {
    let user = model.auth_at(index).users.get(username);
    let is_its = user.is_some_and(|user| user.hash == Some(hash_of(password)));
    Rule::Tokens.check(is_its, || {
        format!("{member} has assigned token {index} for another password than that of {username}")
    })
}
