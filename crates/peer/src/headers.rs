//! The metadata of calls between members, and its checks. Only the call `members` has no such
//! metadata.
//!
//! ```text
//!   clearlane-cluster: cdf818194e3a8c32      the cluster; must be this member's cluster
//!   clearlane-from: 8e9e05c52164694d         the caller; must not have been removed
//!   clearlane-to: 91bc3c398fb3c146           the receiver; must be this member
//!   clearlane-protocol: 1                    the version; PROTOCOL_MIN to PROTOCOL_MAX
//!   clearlane-peer-urls: http://10.0.0.1:2380   the caller's peer URLs
//! ```
//!
//! An address may be assigned to another host later. Without these checks, a member of one cluster
//! could then put its entries into the log of another cluster.

use clearlane_replica::RequestError;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::{Code, Status};

pub const PROTOCOL_MIN: u32 = 1;
pub const PROTOCOL_MAX: u32 = 1;

const REMOVED_MESSAGE: &str = "the member has been permanently removed from the cluster";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHeaders {
    pub cluster: u64,
    pub from: u64,
    pub to: u64,
    /// The peer URLs of the calling member.
    pub peer_urls: Vec<String>,
}

impl PeerHeaders {
    pub fn write(&self, metadata: &mut MetadataMap) {
        let texts = [
            ("clearlane-cluster", format!("{:x}", self.cluster)),
            ("clearlane-from", format!("{:x}", self.from)),
            ("clearlane-to", format!("{:x}", self.to)),
            ("clearlane-protocol", PROTOCOL_MAX.to_string()),
            ("clearlane-peer-urls", self.peer_urls.join(",")),
        ];
        for (key, text) in texts {
            // The conversion fails only if the text has control characters. Peer URLs have none:
            // this was checked when they were configured. The path of a socket may contain bytes
            // that are not ASCII, so the value is made from bytes.
            if let Ok(text) = AsciiMetadataValue::try_from(text.into_bytes()) {
                metadata.insert(key, text);
            }
        }
    }

    pub fn read(metadata: &MetadataMap) -> Result<PeerHeaders, Status> {
        let text = |key: &'static str| {
            let value = metadata.get(key);
            let value = value.and_then(|value| str::from_utf8(value.as_encoded_bytes()).ok());
            value.ok_or_else(|| {
                Status::failed_precondition(format!(
                    "the call has no {key}: is the caller a member?"
                ))
            })
        };
        let id = |key| {
            let text = text(key)?;
            u64::from_str_radix(text, 16).map_err(|_| {
                Status::failed_precondition(format!("{key} is {text:?}, which is not an ID"))
            })
        };
        let protocol: u32 = text("clearlane-protocol")?.parse().unwrap_or_default();
        check_protocol(protocol, protocol)?;
        let urls = text("clearlane-peer-urls")?;
        Ok(PeerHeaders {
            cluster: id("clearlane-cluster")?,
            from: id("clearlane-from")?,
            to: id("clearlane-to")?,
            peer_urls: urls.split(',').filter(|url| !url.is_empty()).map(str::to_owned).collect(),
        })
    }

    /// Fails if the caller belongs to another cluster, or if the call is for another member.
    pub fn check(&self, cluster: u64, member: u64) -> Result<(), Status> {
        if self.cluster != cluster {
            let (theirs, from) = (self.cluster, self.from);
            return Err(Status::failed_precondition(format!(
                "cluster ID mismatch: member {from:x} is of cluster {theirs:x}, \
                 and member {member:x} of cluster {cluster:x}"
            )));
        }
        if self.to != member {
            let to = self.to;
            return Err(Status::failed_precondition(format!(
                "the call is for member {to:x}, but this is member {member:x}"
            )));
        }
        Ok(())
    }
}

/// Fails if the two members have no protocol version in common. The other member supports the
/// versions `min` to `max`.
pub fn check_protocol(min: u32, max: u32) -> Result<(), Status> {
    if max.min(PROTOCOL_MAX) < min.max(PROTOCOL_MIN) {
        return Err(Status::failed_precondition(format!(
            "no common protocol: the other member knows {min} to {max}, this member \
             {PROTOCOL_MIN} to {PROTOCOL_MAX}"
        )));
    }
    Ok(())
}

/// Returns the status that reports an error to another member. The other member identifies the
/// error by the message of the status.
pub(crate) fn status_of(error: RequestError) -> Status {
    Status::unknown(error.to_string())
}

pub fn removed_status() -> Status {
    Status::new(Code::PermissionDenied, REMOVED_MESSAGE)
}

pub fn is_removed_status(status: &Status) -> bool {
    status.code() == Code::PermissionDenied && status.message() == REMOVED_MESSAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn badge() -> PeerHeaders {
        let peer_urls = vec!["http://a:1".to_owned(), "http://b:2".to_owned()];
        PeerHeaders { cluster: 0xc, from: 1, to: u64::MAX, peer_urls }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut metadata = MetadataMap::new();
        badge().write(&mut metadata);
        assert_eq!(PeerHeaders::read(&metadata).unwrap(), badge());
        metadata.insert("clearlane-protocol", "9".parse().unwrap());
        let error = PeerHeaders::read(&metadata).unwrap_err();
        assert!(error.message().contains("no common protocol"), "{error}");
        let socket =
            PeerHeaders { peer_urls: vec!["unix:///tmp/é/100%/socket".to_owned()], ..badge() };
        let mut metadata = MetadataMap::new();
        socket.write(&mut metadata);
        assert_eq!(PeerHeaders::read(&metadata).unwrap(), socket);
        let error = PeerHeaders::read(&MetadataMap::new()).unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition);
    }

    #[test]
    fn strangers_are_told_why() {
        badge().check(0xc, u64::MAX).unwrap();
        let error = badge().check(0xd, u64::MAX).unwrap_err();
        let words = "member 1 is of cluster c, and member ffffffffffffffff of cluster d";
        assert!(error.message().contains(words), "{error}");
        assert!(badge().check(0xc, 2).is_err());
        assert!(is_removed_status(&removed_status()) && !is_removed_status(&error));
    }

    #[test]
    fn a_common_protocol_is_required() {
        check_protocol(1, 7).unwrap();
        assert!(check_protocol(2, 7).is_err() && check_protocol(0, 0).is_err());
    }
}
