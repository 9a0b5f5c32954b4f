//! Why a request is rejected, in etcd's words, and which errors stop a member.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AuthRejection {
    /// A user name in a request is empty. Also returned if no token and no client certificate names
    /// the user who sends the request.
    #[error("etcdserver: user name is empty")]
    UserEmpty,
    #[error("etcdserver: user name already exists")]
    UserExists,
    #[error("etcdserver: user name not found")]
    UserNotFound,
    #[error("etcdserver: role name is empty")]
    RoleEmpty,
    #[error("etcdserver: role name already exists")]
    RoleExists,
    #[error("etcdserver: role name not found")]
    RoleNotFound,
    #[error("etcdserver: role is not granted to the user")]
    RoleNotGranted,
    #[error("etcdserver: permission not given")]
    PermissionNotGiven,
    #[error("etcdserver: permission is not granted to the role")]
    PermissionNotGranted,
    /// A granted range is empty or starts with an empty key. Also returned if a change would delete
    /// the user `root` or the role `root`, or revoke that role from that user, while authentication
    /// is enabled.
    #[error("etcdserver: invalid auth management")]
    InvalidManagement,
    #[error("etcdserver: root user does not exist")]
    NoRootUser,
    #[error("etcdserver: root user does not have root role")]
    NoRootRole,
    #[error("etcdserver: authentication is not enabled")]
    NotEnabled,
    #[error("etcdserver: authentication failed, invalid user ID or password")]
    AuthFailed,
    #[error("auth: authentication failed, password was given for no password user")]
    NoPasswordUser,
    #[error("etcdserver: permission denied")]
    PermissionDenied,
    #[error("etcdserver: invalid auth token")]
    InvalidToken,
    /// Users or roles have changed since the request was checked or its token was signed.
    #[error("etcdserver: revision of auth store is old")]
    OldRevision,
    /// This member has only the public key, so it cannot sign tokens.
    #[error("auth: token signing attempted with verify-only key")]
    VerifyOnly,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] clearlane_mvcc::Error),
    #[error("the record of {what} is damaged: {why}")]
    Damaged { what: String, why: String },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn damaged(what: impl Into<String>, why: impl ToString) -> Error {
        Error::Damaged { what: what.into(), why: why.to_string() }
    }
}
