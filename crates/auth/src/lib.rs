//! May this user do that? Users, roles, permissions and tokens: etcd's `server/auth`.
