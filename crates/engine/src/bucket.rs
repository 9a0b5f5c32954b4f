//! The buckets: etcd's ten, by etcd's names.
//!
//! The set is closed, so that a bucket is an index into a small array wherever it matters, and
//! no engine ever hashes a name on a read.

/// One ordered map of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Bucket {
    /// Alarms that are raised, one per member and kind.
    Alarm,
    /// Whether authentication is on, and its revision.
    Auth,
    AuthRoles,
    AuthUsers,
    /// The cluster's version and a pending downgrade.
    Cluster,
    /// The records: revision key to `mvccpb.KeyValue`. Written once each, in revision order.
    Key,
    Lease,
    Members,
    /// Ids of members that were removed, and must not come back.
    MembersRemoved,
    /// The consistent index and other marks of the store itself.
    Meta,
}

impl Bucket {
    /// In the order of their names.
    pub const ALL: [Bucket; 10] = [
        Bucket::Alarm,
        Bucket::Auth,
        Bucket::AuthRoles,
        Bucket::AuthUsers,
        Bucket::Cluster,
        Bucket::Key,
        Bucket::Lease,
        Bucket::Members,
        Bucket::MembersRemoved,
        Bucket::Meta,
    ];

    /// etcd's name, on disk.
    pub const fn name(self) -> &'static str {
        match self {
            Bucket::Alarm => "alarm",
            Bucket::Auth => "auth",
            Bucket::AuthRoles => "authRoles",
            Bucket::AuthUsers => "authUsers",
            Bucket::Cluster => "cluster",
            Bucket::Key => "key",
            Bucket::Lease => "lease",
            Bucket::Members => "members",
            Bucket::MembersRemoved => "members_removed",
            Bucket::Meta => "meta",
        }
    }

    /// The position in [`Bucket::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::Bucket;

    #[test]
    fn order_index_and_names_agree() {
        for (position, bucket) in Bucket::ALL.into_iter().enumerate() {
            assert_eq!(bucket.index(), position);
        }
        assert!(Bucket::ALL.windows(2).all(|pair| pair[0].name() < pair[1].name()));
    }
}
