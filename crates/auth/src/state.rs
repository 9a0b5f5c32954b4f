//! Users and roles as of one position of the log, and the permissions of a user.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use clearlane_engine::Bucket;
use clearlane_mvcc::ReadTxn;
use clearlane_proto::authpb::permission::Type;
use clearlane_proto::authpb::{Permission, Role, User};
use prost::Message;

use crate::error::{AuthRejection, Error, Result};
use crate::key_ranges::{End, KeyRanges, OPEN_END};

pub(crate) const ENABLED_KEY: &[u8] = b"authEnabled";
pub(crate) const REVISION_KEY: &[u8] = b"authRevision";
/// The name of the role that may do everything, and of the user that must have this role while
/// authentication is enabled.
pub const ROOT: &str = "root";

type Checked<T> = std::result::Result<T, AuthRejection>;

/// The user on whose behalf a request is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthInfo {
    pub username: Arc<str>,
    /// The auth revision when the request named the user. For a JSON web token, this is the
    /// revision when the token was signed. Checks of permissions for keys fail if it is older than
    /// [`AuthState::revision`].
    pub revision: u64,
}

/// Users and roles. A state is immutable: a change creates the next state.
#[derive(Clone, Debug, Default)]
pub struct AuthState {
    pub enabled: bool,
    /// Starts at 1 and grows by one with each change, except for the few changes that `changes.rs`
    /// lists.
    pub revision: u64,
    pub(crate) users: BTreeMap<String, Arc<UserEntry>>,
    pub(crate) roles: BTreeMap<String, Arc<Role>>,
}

/// A user, and the key ranges of all its roles. The ranges are merged when they are first needed.
#[derive(Clone)]
pub(crate) struct UserEntry {
    pub(crate) user: User,
    ranges: OnceLock<UserRanges>,
}

#[derive(Clone, Debug, Default)]
struct UserRanges {
    read: KeyRanges,
    write: KeyRanges,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The output omits the password hash.
impl fmt::Debug for UserEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserEntry").field("roles", &self.user.roles).finish_non_exhaustive()
    }
}

impl UserEntry {
    pub(crate) fn new(user: User) -> UserEntry {
        UserEntry { user, ranges: OnceLock::new() }
    }

    pub(crate) fn has_role(&self, role: &str) -> bool {
        self.user.roles.iter().any(|has| has == role)
    }

    pub(crate) fn has_no_password(&self) -> bool {
        self.user.options.is_some_and(|options| options.no_password)
    }
}

impl AuthState {
    pub(crate) fn load(read: &(dyn ReadTxn + '_)) -> Result<AuthState> {
        let mut state = AuthState { enabled: false, revision: 1, ..AuthState::default() };
        if let Some(flag) = read.get(Bucket::Auth, ENABLED_KEY)? {
            state.enabled = flag[..] == [1];
        }
        if let Some(bytes) = read.get(Bucket::Auth, REVISION_KEY)? {
            let number = <[u8; 8]>::try_from(&bytes[..]).map(u64::from_be_bytes);
            state.revision =
                number.map_err(|_| Error::damaged("authRevision", "it is not 8 bytes long"))?;
        }
        for (name, user) in load_all::<User>(read, Bucket::AuthUsers)? {
            state.users.insert(name, Arc::new(UserEntry::new(user)));
        }
        for (name, role) in load_all::<Role>(read, Bucket::AuthRoles)? {
            state.roles.insert(name, Arc::new(role));
        }
        Ok(state)
    }

    /// Fails unless there is a user `root` with the role `root`. This ensures that at least one
    /// user may change users and roles after authentication is enabled.
    pub(crate) fn check_can_enable(&self) -> Checked<()> {
        let root = self.users.get(ROOT).ok_or(AuthRejection::NoRootUser)?;
        if root.has_role(ROOT) { Ok(()) } else { Err(AuthRejection::NoRootRole) }
    }

    pub(crate) fn find_user(&self, name: &str) -> Checked<&UserEntry> {
        self.users.get(name).map(|user| &**user).ok_or(AuthRejection::UserNotFound)
    }

    pub(crate) fn find_role(&self, name: &str) -> Checked<&Role> {
        self.roles.get(name).map(|role| &**role).ok_or(AuthRejection::RoleNotFound)
    }

    /// Returns the names of a user's roles, sorted. Fails if the user does not exist.
    pub fn roles_of(&self, name: &str) -> Checked<Vec<String>> {
        Ok(self.find_user(name)?.user.roles.clone())
    }

    /// Returns the permissions of a role. Fails if the role does not exist. For the role `root`,
    /// returns one permission to read and write all keys, regardless of its grants.
    pub fn permissions_of(&self, role: &str) -> Checked<Vec<Permission>> {
        let found = self.find_role(role)?;
        if role != ROOT {
            return Ok(found.key_permission.clone());
        }
        let (perm_type, range_end) = (Type::Readwrite as i32, OPEN_END.into());
        Ok(vec![Permission { perm_type, range_end, ..Permission::default() }])
    }

    pub fn user_names(&self) -> Vec<String> {
        self.users.keys().cloned().collect()
    }

    pub fn role_names(&self) -> Vec<String> {
        self.roles.keys().cloned().collect()
    }

    /// Returns true if the permissions of the user's roles cover all keys of the range. The caller
    /// must check for the role `root`, which needs no permissions.
    pub(crate) fn has_access(
        &self,
        user: &UserEntry,
        access: Access,
        key: &[u8],
        range_end: &[u8],
    ) -> bool {
        self.ranges_of(user, access).contain(key, range_end)
    }

    /// Returns the end of the permitted range that contains the key, or `None` if no permission of
    /// the user's roles covers the key. The caller must check for the role `root`.
    pub(crate) fn permitted_until(
        &self,
        user: &UserEntry,
        access: Access,
        key: &[u8],
    ) -> Option<End> {
        self.ranges_of(user, access).end_of(key).cloned()
    }

    fn ranges_of<'u>(&self, user: &'u UserEntry, access: Access) -> &'u KeyRanges {
        let ranges = user.ranges.get_or_init(|| self.merge_ranges(&user.user));
        match access {
            Access::Read => &ranges.read,
            Access::Write => &ranges.write,
        }
    }

    fn merge_ranges(&self, user: &User) -> UserRanges {
        let of = |access: Type| {
            let roles = user.roles.iter().filter_map(|name| self.roles.get(name));
            let granted = roles.flat_map(|role| &role.key_permission).filter(move |permission| {
                let granted = Type::try_from(permission.perm_type);
                granted.is_ok_and(|granted| granted == access || granted == Type::Readwrite)
            });
            KeyRanges::new(granted.map(|permission| (&permission.key, &permission.range_end)))
        };
        UserRanges { read: of(Type::Read), write: of(Type::Write) }
    }

    /// Discards the merged ranges of all users with this role. Must be called when the role
    /// changes.
    pub(crate) fn forget_ranges_of_role(&mut self, role: &str) {
        for entry in self.users.values_mut().filter(|entry| entry.has_role(role)) {
            *entry = Arc::new(UserEntry::new(entry.user.clone()));
        }
    }
}

fn load_all<M: Message + Default>(
    read: &(dyn ReadTxn + '_),
    bucket: Bucket,
) -> Result<Vec<(String, M)>> {
    let (mut found, mut failure) = (Vec::new(), None);
    read.scan(bucket, &mut |name, value| {
        let name = String::from_utf8_lossy(name).into_owned();
        match M::decode(value.to_bytes()) {
            Ok(message) => {
                found.push((name, message));
                ControlFlow::Continue(())
            }
            Err(error) => {
                let what = format!("{name} in bucket {}", bucket.name());
                failure = Some(Error::damaged(what, error));
                ControlFlow::Break(())
            }
        }
    })?;
    failure.map_or(Ok(found), Err)
}
