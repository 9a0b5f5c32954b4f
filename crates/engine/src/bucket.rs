//! The ten buckets of etcd, under the names that etcd gives them.
//!
//! The set of buckets is fixed. So code that must be fast uses a bucket as an index into a small
//! array, and no engine hashes a bucket's name during a read.

/// One ordered map of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Bucket {
    /// The alarms that are raised, at most one for each member and kind of alarm.
    Alarm,
    /// The flag that shows whether authentication is enabled, and the auth revision.
    Auth,
    AuthRoles,
    AuthUsers,
    /// The cluster's version, and a downgrade that has been requested.
    Cluster,
    /// The records of all changes to clients' keys. The key of a record is an encoded revision, and
    /// its value is an `mvccpb.KeyValue`. Each record is written once, in revision order.
    Key,
    Lease,
    Members,
    /// Ids of removed members. These ids must not be used again.
    MembersRemoved,
    /// The consistent index and other bookkeeping of the store itself.
    Meta,
}

impl Bucket {
    /// All buckets, in the order of their names.
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

    /// Returns etcd's name of the bucket, which is also the name on disk.
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

    /// Returns the bucket's position in [`Bucket::ALL`].
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
