//! The calling and the called member: what each call between members carries in its metadata, and
//! what is checked.
//!
//! ```text
//!   clearlane-cluster: cdf818194e3a8c32      both must be of this cluster
//!   clearlane-from: 8e9e05c52164694d         must not have been removed
//!   clearlane-to: 91bc3c398fb3c146           must be this member
//!   clearlane-protocol: 1                    must be one that is spoken here
//!   clearlane-peer-urls: http://10.0.0.1:2380
//! ```
//!
//! Addresses are given to another host after a while: without these checks a member of one cluster
//! would put its entries into another's log.

use clearlane_server::RequestError;
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
    /// Of the member that calls.
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
            // An address has no control characters: it was checked when it was given. The path of a
            // socket may be more than ASCII.
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
                Status::failed_precondition(format!("no {key} in the call: is this a member?"))
            })
        };
        let id = |key| {
            let text = text(key)?;
            u64::from_str_radix(text, 16)
                .map_err(|_| Status::failed_precondition(format!("{key} is {text}: no id")))
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

    /// Fails if the call is for another cluster or member.
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
                "member {to:x} is called, and this is {member:x}"
            )));
        }
        Ok(())
    }
}

/// Fails if the other side knows no protocol that is known here.
pub fn check_protocol(min: u32, max: u32) -> Result<(), Status> {
    if max.min(PROTOCOL_MAX) < min.max(PROTOCOL_MIN) {
        return Err(Status::failed_precondition(format!(
            "no common protocol: there it is {min} to {max}, here {PROTOCOL_MIN} to {PROTOCOL_MAX}"
        )));
    }
    Ok(())
}

/// Other members read the error from the text.
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
        let told = PeerHeaders::read(&metadata).unwrap_err();
        assert!(told.message().contains("no common protocol"), "{told}");
        let socket =
            PeerHeaders { peer_urls: vec!["unix:///tmp/é/100%/socket".to_owned()], ..badge() };
        let mut metadata = MetadataMap::new();
        socket.write(&mut metadata);
        assert_eq!(PeerHeaders::read(&metadata).unwrap(), socket);
        let told = PeerHeaders::read(&MetadataMap::new()).unwrap_err();
        assert_eq!(told.code(), Code::FailedPrecondition);
    }

    #[test]
    fn strangers_are_told_why() {
        badge().check(0xc, u64::MAX).unwrap();
        let told = badge().check(0xd, u64::MAX).unwrap_err();
        let words = "member 1 is of cluster c, and member ffffffffffffffff of cluster d";
        assert!(told.message().contains(words), "{told}");
        assert!(badge().check(0xc, 2).is_err());
        assert!(is_removed_status(&removed_status()) && !is_removed_status(&told));
    }

    #[test]
    fn a_common_protocol_is_required() {
        check_protocol(1, 7).unwrap();
        assert!(check_protocol(2, 7).is_err() && check_protocol(0, 0).is_err());
    }
}
