//! Users, roles and tokens as plain maps: the state that each member must have after it has applied
//! the log up to some index.
//!
//! The model follows the rules of etcd's `auth` package and does not use the product's code. The
//! checkers decode each committed entry. The model then accepts or rejects the entry, based on the
//! state that the earlier entries have produced.

use std::collections::{BTreeMap, BTreeSet};

use clearlane_auth::AuthRejection;

pub const ROOT: &str = "root";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// The keys from `key` up to `range_end`, which is exclusive, as in requests. An empty `range_end`
/// means the single key `key`. A `range_end` of one zero byte means that the range has no end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeySpan {
    pub key: Vec<u8>,
    pub range_end: Vec<u8>,
}

impl KeySpan {
    pub fn new(key: &[u8], range_end: &[u8]) -> KeySpan {
        KeySpan { key: key.to_vec(), range_end: range_end.to_vec() }
    }

    /// Returns the exclusive end, or `None` if there is no end.
    fn end(&self) -> Option<Vec<u8>> {
        match &self.range_end[..] {
            [] => Some([&self.key[..], &[0]].concat()),
            [0] => None,
            end => Some(end.to_vec()),
        }
    }

    fn has(&self, key: &[u8]) -> bool {
        self.key[..] <= *key && self.end().is_none_or(|end| *key < end[..])
    }
}

/// An operation on users, roles or tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthOp {
    Enable,
    Disable,
    /// Adds a user. `hash` is the password's hash as proposed, or `None` for a user without a
    /// password.
    AddUser {
        name: String,
        hash: Option<String>,
    },
    DeleteUser(String),
    ChangePassword {
        name: String,
        hash: String,
    },
    GrantRole {
        user: String,
        role: String,
    },
    RevokeRole {
        user: String,
        role: String,
    },
    AddRole(String),
    DeleteRole(String),
    Grant {
        role: String,
        span: KeySpan,
        may_read: bool,
        may_write: bool,
    },
    Revoke {
        role: String,
        span: KeySpan,
    },
    /// Assigns a token to a user whose password was checked earlier. `letters` is the part of the
    /// token before the index of its entry.
    Authenticate {
        name: String,
        letters: String,
    },
}

/// The user that the header of an entry names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedUser {
    pub name: String,
    /// The auth revision at which the request was proposed. 0 means that the header names no user.
    pub revision: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelUser {
    pub roles: BTreeSet<String>,
    pub hash: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    pub may_read: bool,
    pub may_write: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthModel {
    pub enabled: bool,
    pub revision: u64,
    pub users: BTreeMap<String, ModelUser>,
    pub roles: BTreeMap<String, BTreeMap<KeySpan, Granted>>,
    /// The assigned tokens, each as its letters and its user, by the index of the entry that
    /// assigned it.
    pub tokens: BTreeMap<u64, (String, String)>,
}

impl Default for AuthModel {
    fn default() -> AuthModel {
        AuthModel {
            enabled: false,
            revision: 1,
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
            tokens: BTreeMap::new(),
        }
    }
}

type Permitted = Result<(), AuthRejection>;

impl AuthModel {
    /// Fails if the header names no user, if users or roles have changed since the user's auth
    /// revision, or if the user may not access all of the keys. Always succeeds while
    /// authentication is disabled, or if no access is needed.
    pub fn check_keys(&self, user: &NamedUser, needs: &[(Access, KeySpan)]) -> Permitted {
        if !self.enabled || needs.is_empty() {
            return Ok(());
        }
        if user.revision == 0 {
            return Err(AuthRejection::UserEmpty);
        }
        if user.revision < self.revision {
            return Err(AuthRejection::OldRevision);
        }
        match needs.iter().all(|(access, span)| self.may(&user.name, *access, span)) {
            true => Ok(()),
            false => Err(AuthRejection::PermissionDenied),
        }
    }

    /// Fails if the user does not have the role `root`. Always succeeds while authentication is
    /// disabled.
    pub fn check_admin(&self, user: &NamedUser) -> Permitted {
        if !self.enabled {
            return Ok(());
        }
        if user.name.is_empty() {
            return Err(AuthRejection::UserEmpty);
        }
        let found = self.users.get(&user.name).ok_or(AuthRejection::UserNotFound)?;
        if found.roles.contains(ROOT) { Ok(()) } else { Err(AuthRejection::PermissionDenied) }
    }

    /// Returns whether the user may access the whole span, at any auth revision. While
    /// authentication is disabled, everyone has access. The loop steps through the span, from the
    /// end of one granted span to the next.
    pub fn may(&self, name: &str, access: Access, span: &KeySpan) -> bool {
        if !self.enabled {
            return true;
        }
        let Some(user) = self.users.get(name) else { return false };
        if user.roles.contains(ROOT) {
            return true;
        }
        let roles = user.roles.iter().filter_map(|role| self.roles.get(role));
        let granted = roles.flatten().filter(|(_, granted)| match access {
            Access::Read => granted.may_read,
            Access::Write => granted.may_write,
        });
        let granted: Vec<&KeySpan> = granted.map(|(span, _)| span).collect();
        let mut at = span.key.clone();
        loop {
            let Some(has) = granted.iter().find(|granted| granted.has(&at)) else { return false };
            match (has.end(), span.end()) {
                (None, _) => return true,
                (Some(covered), Some(end)) if covered >= end => return true,
                (Some(covered), _) => at = covered,
            }
        }
    }

    /// Applies an operation whose user has already been checked. A rejected operation has no
    /// effect.
    pub fn apply(&mut self, index: u64, op: &AuthOp) -> Permitted {
        match op {
            AuthOp::Enable => return self.enable(),
            AuthOp::Disable => {
                if !self.enabled {
                    return Ok(());
                }
                self.enabled = false;
                self.tokens.clear();
            }
            AuthOp::Authenticate { name, letters } => {
                return self.authenticate(index, name, letters);
            }
            AuthOp::AddUser { .. }
            | AuthOp::DeleteUser(_)
            | AuthOp::ChangePassword { .. }
            | AuthOp::GrantRole { .. }
            | AuthOp::RevokeRole { .. } => {
                if !self.change_user(op)? {
                    return Ok(());
                }
            }
            AuthOp::AddRole(_)
            | AuthOp::DeleteRole(_)
            | AuthOp::Grant { .. }
            | AuthOp::Revoke { .. } => self.change_role(op)?,
        }
        self.revision += 1;
        Ok(())
    }

    fn enable(&mut self) -> Permitted {
        if !self.enabled {
            let root = self.users.get(ROOT).ok_or(AuthRejection::NoRootUser)?;
            if !root.roles.contains(ROOT) {
                return Err(AuthRejection::NoRootRole);
            }
        }
        self.enabled = true;
        Ok(())
    }

    fn authenticate(&mut self, index: u64, name: &str, letters: &str) -> Permitted {
        if !self.enabled {
            return Err(AuthRejection::NotEnabled);
        }
        let has_password = self.users.get(name).is_some_and(|user| user.hash.is_some());
        if !has_password {
            return Err(AuthRejection::AuthFailed);
        }
        self.tokens.insert(index, (letters.to_owned(), name.to_owned()));
        Ok(())
    }

    /// Applies a change of a single user. Returns whether the change makes a new auth revision.
    /// Granting a role that the user already has does not change the auth revision. Fails if the
    /// change is rejected.
    fn change_user(&mut self, op: &AuthOp) -> Result<bool, AuthRejection> {
        let keeps_root = |user: &str| self.enabled && user == ROOT;
        let name = match op {
            AuthOp::AddUser { name, hash } => {
                if self.users.contains_key(name) {
                    return Err(AuthRejection::UserExists);
                }
                let user = ModelUser { roles: BTreeSet::new(), hash: hash.clone() };
                self.users.insert(name.clone(), user);
                return Ok(true);
            }
            AuthOp::DeleteUser(name) if keeps_root(name) => {
                return Err(AuthRejection::InvalidManagement);
            }
            AuthOp::RevokeRole { user, role } if keeps_root(user) && role == ROOT => {
                return Err(AuthRejection::InvalidManagement);
            }
            AuthOp::DeleteUser(name) | AuthOp::ChangePassword { name, .. } => name,
            AuthOp::GrantRole { user, .. } | AuthOp::RevokeRole { user, .. } => user,
            _ => return Ok(false),
        };
        let user = self.users.get_mut(name).ok_or(AuthRejection::UserNotFound)?;
        match op {
            AuthOp::GrantRole { role, .. } => {
                if role != ROOT && !self.roles.contains_key(role) {
                    return Err(AuthRejection::RoleNotFound);
                }
                return Ok(user.roles.insert(role.clone()));
            }
            AuthOp::RevokeRole { role, .. } => {
                let had = user.roles.remove(role);
                return if had { Ok(true) } else { Err(AuthRejection::RoleNotGranted) };
            }
            AuthOp::ChangePassword { hash, .. } => {
                // A user that was added without a password stays without one.
                if let Some(has) = &mut user.hash {
                    has.clone_from(hash);
                }
            }
            _ => drop(self.users.remove(name)),
        }
        self.tokens.retain(|_, (_, of)| of != name);
        Ok(true)
    }

    fn change_role(&mut self, op: &AuthOp) -> Permitted {
        match op {
            AuthOp::AddRole(name) => {
                if self.roles.contains_key(name) {
                    return Err(AuthRejection::RoleExists);
                }
                self.roles.insert(name.clone(), BTreeMap::new());
            }
            AuthOp::DeleteRole(name) => {
                if self.enabled && name == ROOT {
                    return Err(AuthRejection::InvalidManagement);
                }
                self.roles.remove(name).ok_or(AuthRejection::RoleNotFound)?;
                self.users.values_mut().for_each(|user| user.roles.retain(|role| role != name));
            }
            AuthOp::Grant { role, span, may_read, may_write } => {
                let role = self.roles.get_mut(role).ok_or(AuthRejection::RoleNotFound)?;
                let granted = Granted { may_read: *may_read, may_write: *may_write };
                role.insert(span.clone(), granted);
            }
            AuthOp::Revoke { role, span } => {
                let role = self.roles.get_mut(role).ok_or(AuthRejection::RoleNotFound)?;
                role.remove(span).ok_or(AuthRejection::PermissionNotGranted)?;
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(spans: &[(&str, &str)]) -> AuthModel {
        let granted = Granted { may_read: true, may_write: false };
        let span = |(key, end): &(&str, &str)| KeySpan::new(key.as_bytes(), end.as_bytes());
        let role = spans.iter().map(|of| (span(of), granted)).collect();
        let user = ModelUser { roles: BTreeSet::from(["r".to_owned()]), hash: None };
        AuthModel {
            enabled: true,
            users: BTreeMap::from([("alice".to_owned(), user)]),
            roles: BTreeMap::from([("r".to_owned(), role)]),
            ..AuthModel::default()
        }
    }

    #[test]
    fn spans_that_touch_cover_what_lies_over_both() {
        let model = model(&[("a", "c"), ("c", "e"), ("x", ""), ("z", "\0")]);
        let may = |key: &str, end: &str| {
            model.may("alice", Access::Read, &KeySpan::new(key.as_bytes(), end.as_bytes()))
        };
        for (key, end) in [("a", "e"), ("b", "d"), ("x", ""), ("z", "\0"), ("zz", "")] {
            assert!(may(key, end), "{key} to {end}");
        }
        for (key, end) in [("a", "f"), ("e", ""), ("x", "y"), ("a", "\0"), ("y", "\0")] {
            assert!(!may(key, end), "{key} to {end}");
        }
        let span = KeySpan::new(b"a", b"");
        assert!(!model.may("alice", Access::Write, &span));
        assert!(!model.may("bob", Access::Read, &span));
    }

    #[test]
    fn a_token_goes_with_its_user_and_an_old_revision_is_refused() {
        let mut model = model(&[("a", "c")]);
        let name = || "alice".to_owned();
        model.users.get_mut("alice").unwrap().hash = Some("h".to_owned());
        let login = AuthOp::Authenticate { name: name(), letters: "abc".to_owned() };
        model.apply(7, &login).unwrap();
        assert_eq!(model.tokens.len(), 1);
        let old = NamedUser { name: name(), revision: model.revision };
        let needs = [(Access::Read, KeySpan::new(b"a", b""))];
        assert_eq!(model.check_keys(&old, &needs), Ok(()));
        model.apply(8, &AuthOp::ChangePassword { name: name(), hash: "i".to_owned() }).unwrap();
        assert!(model.tokens.is_empty());
        assert_eq!(model.check_keys(&old, &needs), Err(AuthRejection::OldRevision));
        assert_eq!(model.check_keys(&NamedUser::default(), &needs), Err(AuthRejection::UserEmpty));
    }
}
