//! Compares users, roles, tokens and their effects with the [plain maps](crate::auth_model) of the
//! log.
//!
//! * `AuthState`: members that have applied the same index have the same users and roles. This
//!   holds in memory, and in the store, from which a restart reads them.
//! * `Permissions`: an entry takes effect if and only if its user has permission at the entry's
//!   position in the log. A read returns only records that its user may read. Its user is checked
//!   against the users and roles as of the index that the member had applied when it opened the
//!   read.
//! * `Revocation`: if a change of users or roles was acknowledged before a request started, a state
//!   that includes the change decides the request. Serializable reads are exempt.
//! * `Tokens`: a token is valid only at members that have applied its entry. It becomes invalid
//!   when its user is deleted or gets another password, and when authentication is disabled. It is
//!   assigned only for the user's current password.

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

/// Checks that a member's users and roles equal the model's after the entry `index`.
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
        // For the role `root`, `permissions_of` always returns access to all keys.
        expected.roles.get(role).is_some_and(|spans| role == ROOT || Some(spans) == found.as_ref())
    };
    let names = state.role_names();
    names.len() == expected.roles.len() && names.iter().all(has_permissions)
}

/// Checks the users, roles and password hashes in a member's store. A restart reads them from
/// there.
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

/// Checks that auth accepts or rejects the entry `index` on a member as in the model, and for the
/// same reason. `refused` is the member's reason, or `None` if auth has not rejected the entry.
pub fn check_outcome(
    member: u64,
    index: u64,
    refused: Option<AuthRejection>,
    model: &CommittedModel,
) -> CheckResult {
    let expected = model.refusal(index);
    Rule::Permissions.check(refused == expected, || {
        format!("{member} responds {refused:?} to entry {index}, expected {expected:?}")
    })
}

/// Checks that a step of the apply half makes as many revisions as the model does for the same
/// entries. A step always passes if authentication was disabled at all of its entries.
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
             {expected}; rejected: {refused:?}"
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
    /// The index that the member had applied when the permission was checked.
    pub authorized_at: u64,
    /// The index that the member had applied when the read transaction was opened.
    pub viewed_at: u64,
    /// The index that the member had applied when the auth revision was compared.
    pub answered_at: u64,
}

/// The newest acknowledged change of users and roles, and counts of checked requests.
#[derive(Debug, Default)]
pub struct AuthPromises {
    /// The index of the newest change of users and roles that was acknowledged to a client.
    acknowledged: u64,
    /// The value of `acknowledged` when an operation started, by operation.
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
            format!("{member} answers {read:?}, but {acknowledged} was acknowledged before")
        })?;
        let at = model.auth_at(read.viewed_at);
        let may = |name: &String| at.may(name, Access::Read, &read.span);
        // The read needs no permission if authentication was disabled both when the permission was
        // checked and when the auth revision was compared, even if it was enabled in between.
        let counted = [read.authorized_at, read.answered_at].map(|at| model.auth_at(at).enabled);
        let is_permitted = counted == [false; 2] || read.user.as_ref().is_some_and(may);
        Rule::Permissions.check(is_permitted, || {
            format!("{member} answers {read:?} to a user without permission: {at:?}")
        })
    }

    /// Checks that the entry `index`, which an acknowledged operation has made, follows each change
    /// of users and roles that was acknowledged before the operation started.
    pub fn check_write(&self, operation: usize, index: u64) -> CheckResult {
        let acknowledged = self.at_invocation.get(&operation).copied().unwrap_or(0);
        Rule::Revocation.check(index > acknowledged, || {
            format!("#{operation} is entry {index}, but {acknowledged} was acknowledged before")
        })
    }

    /// Checks a token that a member has accepted. The member has applied the log up to `applied`.
    /// The entry `index` assigned the token, and the member treats it as a token of `username`.
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
            format!(
                "{member} has applied {applied}, and accepts token {index} as {username}'s token"
            )
        })
    }
}

/// Checks that the token of the entry `index` was assigned for this password.
pub fn check_login(
    member: u64,
    index: u64,
    (username, password): (&str, &str),
    model: &CommittedModel,
) -> CheckResult {
    let user = model.auth_at(index).users.get(username);
    let is_its = user.is_some_and(|user| user.hash == Some(hash_of(password)));
    Rule::Tokens.check(is_its, || {
        format!("{member} has assigned token {index} for a password that is not {username}'s")
    })
}

#[cfg(test)]
mod tests {
    use clearlane_proto::etcdserverpb::RequestHeader;
    use clearlane_wal::Entry;

    use super::*;
    use crate::auth_model::AuthOp;
    use crate::proposals::{Proposal, encode};

    /// Authentication is enabled from entry 6 on. Alice may read `k1` from entry 8 until entry 10.
    /// Her token of entry 7 is valid until entry 9.
    fn model() -> CommittedModel {
        let name = |name: &str| name.to_owned();
        let span = || KeySpan::new(b"k1", b"");
        let hash = || Some(hash_of("first"));
        let ops = [
            AuthOp::AddUser { name: name(ROOT), hash: hash() },
            AuthOp::GrantRole { user: name(ROOT), role: name(ROOT) },
            AuthOp::AddRole(name("reader")),
            AuthOp::Grant { role: name("reader"), span: span(), may_read: true, may_write: false },
            AuthOp::AddUser { name: name("alice"), hash: hash() },
            AuthOp::Enable,
            AuthOp::Authenticate { name: name("alice"), letters: name("abc") },
            AuthOp::GrantRole { user: name("alice"), role: name("reader") },
            AuthOp::ChangePassword { name: name("alice"), hash: hash_of("second") },
            AuthOp::Revoke { role: name("reader"), span: span() },
        ];
        let mut model = CommittedModel::default();
        for (index, op) in (1..).zip(ops) {
            let mut message = encode(&Proposal::Auth(op));
            let username = name(ROOT);
            let header = RequestHeader { id: index, username, auth_revision: 1 };
            message.header = Some(header);
            let data = message.encode_to_vec().into();
            model.add(&Entry { index, term: 1, data, ..Entry::default() }).unwrap();
        }
        model
    }

    fn read(user: Option<&str>, at: u64) -> UserRead {
        UserRead {
            operation: 1,
            user: user.map(ToOwned::to_owned),
            span: KeySpan::new(b"k1", b""),
            is_linearizable: true,
            authorized_at: at,
            viewed_at: at,
            answered_at: at,
        }
    }

    #[test]
    fn a_read_of_another_user_is_found_and_one_of_the_past() {
        let (model, mut promises) = (model(), AuthPromises::default());
        let mut rule = |read: UserRead| {
            promises.check_read(1, &read, &model).err().map(|violation| violation.rule)
        };
        assert_eq!(rule(read(Some("alice"), 8)), None);
        assert_eq!(rule(read(None, 5)), None, "users do not count yet");
        for (user, at) in [(Some("alice"), 7), (Some("alice"), 10), (Some("bob"), 8), (None, 8)] {
            assert_eq!(rule(read(user, at)), Some(Rule::Permissions), "{user:?} at {at}");
        }
        let late = UserRead { viewed_at: 10, answered_at: 10, ..read(Some("alice"), 8) };
        assert_eq!(rule(late), Some(Rule::Permissions));

        promises.on_acknowledged(10);
        promises.on_invoke(1);
        let old = promises.check_read(1, &read(Some("alice"), 8), &model);
        assert_eq!(old.unwrap_err().rule, Rule::Revocation);
        let serializable = UserRead { is_linearizable: false, ..read(Some("alice"), 8) };
        assert_eq!(promises.check_read(1, &serializable, &model), Ok(()));
        assert_eq!(promises.check_write(1, 11), Ok(()));
        assert_eq!(promises.check_write(1, 9).unwrap_err().rule, Rule::Revocation);
    }

    #[test]
    fn a_token_that_is_good_too_early_or_too_long_is_found() {
        let (model, mut promises) = (model(), AuthPromises::default());
        let mut rule = |applied, letters, user| {
            let told = promises.check_token((1, applied), (letters, 7), user, &model);
            told.err().map(|violation| violation.rule)
        };
        assert_eq!(rule(7, "abc", "alice"), None);
        assert_eq!(rule(8, "abc", "alice"), None);
        for (applied, letters, user) in
            [(6, "abc", "alice"), (9, "abc", "alice"), (8, "abd", "alice"), (8, "abc", "bob")]
        {
            assert_eq!(rule(applied, letters, user), Some(Rule::Tokens));
        }
        assert_eq!(check_login(1, 7, ("alice", "first"), &model), Ok(()));
        let wrong = check_login(1, 7, ("alice", "second"), &model);
        assert_eq!(wrong.unwrap_err().rule, Rule::Tokens);
    }

    #[test]
    fn an_entry_that_is_decided_otherwise_is_found() {
        let model = model();
        assert_eq!(check_outcome(1, 8, None, &model), Ok(()));
        let refused = check_outcome(1, 8, Some(AuthRejection::OldRevision), &model);
        assert_eq!(refused.unwrap_err().rule, Rule::Permissions);
        assert_eq!(check_effects(1, (7, 8), 0, &model), Ok(()));
        assert_eq!(check_effects(1, (7, 8), 1, &model).unwrap_err().rule, Rule::Permissions);
        let none = AuthState::default();
        assert_eq!(check_state(1, 8, &none, &model).unwrap_err().rule, Rule::AuthState);
    }
}
