//! `--initial-cluster`: the first members of a new cluster, or the members that a joining member
//! queries.
//!
//! ```text
//!   a=http://10.0.0.1:2380,b=http://10.0.0.2:2380,b=http://10.0.1.2:2380
//!   └ name and address      └ a member with two addresses is listed twice
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use clearlane_proto::peerpb::MembersReply;
use clearlane_replica::membership::{self, Member};

use super::error::{Error, Result};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InitialClusterState {
    #[default]
    New,
    Existing,
}

impl FromStr for InitialClusterState {
    type Err = Error;

    fn from_str(text: &str) -> Result<InitialClusterState> {
        match text {
            "new" => Ok(InitialClusterState::New),
            "existing" => Ok(InitialClusterState::Existing),
            other => Err(Error::BadState(other.to_owned())),
        }
    }
}

/// The peer addresses of each member, by the member's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitialCluster(BTreeMap<String, Vec<String>>);

impl FromStr for InitialCluster {
    type Err = Error;

    fn from_str(text: &str) -> Result<InitialCluster> {
        let mut members: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let bad = || Error::BadEntry(entry.to_owned());
            let (name, url) = entry.split_once('=').ok_or_else(bad)?;
            membership::addresses(&[url.to_owned()]).map_err(|_| bad())?;
            members.entry(name.to_owned()).or_default().push(url.to_owned());
        }
        members.values_mut().for_each(|urls| urls.sort_unstable());
        Ok(InitialCluster(members))
    }
}

impl fmt::Display for InitialCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = self.0.iter().flat_map(|(name, urls)| urls.iter().map(move |url| (name, url)));
        let entries: Vec<String> = pairs.map(|(name, url)| format!("{name}={url}")).collect();
        f.write_str(&entries.join(","))
    }
}

impl InitialCluster {
    pub fn single(name: &str, peer_urls: &[String]) -> InitialCluster {
        InitialCluster(BTreeMap::from([(name.to_owned(), peer_urls.to_vec())]))
    }

    /// Returns the first members of a new cluster. Fails if `name` with the addresses `own` is not
    /// one of these members.
    pub(super) fn first(&self, name: &str, own: &[String], token: &str) -> Result<Vec<Member>> {
        self.check_own(name, own)?;
        let members = self.0.iter().map(|(name, urls)| {
            let peer_urls = membership::addresses(urls)
                .map_err(|_| Error::BadUrls { flag: "initial-cluster" })?;
            let id = membership::member_id(&peer_urls, token, None);
            Ok(Member { id, peer_urls, name: name.clone(), ..Member::default() })
        });
        members.collect()
    }

    pub(super) fn check_own(&self, name: &str, own: &[String]) -> Result<()> {
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, urls) in &self.0 {
            for url in urls {
                if let Some(other) = owners.insert(url, name).filter(|other| other != name) {
                    let (one, other) = (other.to_owned(), name.clone());
                    return Err(Error::DuplicateUrl { url: url.clone(), one, other });
                }
            }
        }
        let Some(listed) = self.0.get(name) else {
            return Err(Error::NotListed { name: name.to_owned(), has: self.to_string() });
        };
        let mut sorted = listed.clone();
        sorted.sort_unstable();
        if sorted != own {
            let (listed, own) = (sorted.join(","), own.join(","));
            return Err(Error::UrlsMismatch { name: name.to_owned(), listed, own });
        }
        Ok(())
    }

    pub(crate) fn urls_of(&self, name: &str) -> Option<&[String]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// Returns the peer addresses of the members other than `name`, each with the member's name.
    pub(super) fn others(&self, name: &str) -> Vec<(String, String)> {
        let others = self.0.iter().filter(|(other, _)| *other != name);
        let each = |(name, urls): (&String, &Vec<String>)| {
            urls.iter().map(|url| (name.clone(), url.clone())).collect::<Vec<_>>()
        };
        others.flat_map(each).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the member with the addresses `own`. Fails if there is not exactly one such member,
    /// or if `--initial-cluster` differs from the cluster's list of members.
    pub(super) fn find_own<'f>(
        &self,
        found: &'f MembersReply,
        own: &[String],
    ) -> Result<&'f Member> {
        let has = || {
            let all = found.members.iter().map(|member| member.peer_urls.join(","));
            all.collect::<Vec<_>>().join(" ")
        };
        let mut at_home = found.members.iter().filter(|member| {
            let mut urls = member.peer_urls.clone();
            urls.sort_unstable();
            urls == own
        });
        let (Some(member), None) = (at_home.next(), at_home.next()) else {
            return Err(Error::NotAdded { own: own.join(","), has: has() });
        };
        let is_listed = |member: &&Member| {
            let mut lists = self.0.values();
            lists.any(|urls| member.peer_urls.iter().any(|url| urls.contains(url)))
        };
        let listed = found.members.iter().filter(is_listed).count();
        if (listed, self.0.len()) != (found.members.len(), found.members.len()) {
            return Err(Error::MembersMismatch { listed: self.to_string(), has: has() });
        }
        Ok(member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(urls: &[&str]) -> Vec<String> {
        urls.iter().map(|url| (*url).to_owned()).collect()
    }

    #[test]
    fn a_list_is_read() {
        let text = "b=http://b:1, a=http://a:1,b=http://a:2";
        let cluster: InitialCluster = text.parse().unwrap();
        assert_eq!(cluster.to_string(), "a=http://a:1,b=http://a:2,b=http://b:1");
        for wrong in ["a", "a=nonsense", "a=http://a:1,=", "a=http://a:1/path"] {
            let message = wrong.parse::<InitialCluster>().unwrap_err().to_string();
            assert!(message.contains("is not name=http://host:port"), "{message}");
        }
        assert_eq!(
            "existing".parse::<InitialClusterState>().unwrap(),
            InitialClusterState::Existing
        );
        assert!("old".parse::<InitialClusterState>().is_err());
    }

    #[test]
    fn the_first_members_have_etcds_numbers() {
        let text = "a=http://127.0.0.1:12380,b=http://127.0.0.1:22380,c=http://127.0.0.1:32380";
        let cluster: InitialCluster = text.parse().unwrap();
        let own = urls(&["http://127.0.0.1:22380"]);
        let first = cluster.first("b", &own, "etcd-cluster-1").unwrap();
        let ids: Vec<u64> = first.iter().map(|member| member.id).collect();
        assert_eq!(ids, [0x8211_f1d0_f64f_3269, 0x91bc_3c39_8fb3_c146, 0xfd42_2379_fda5_0e48]);
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let refusal = |text: &str, name: &str, own: &[&str]| {
            let cluster: InitialCluster = text.parse().unwrap();
            cluster.first(name, &urls(own), "t").unwrap_err().to_string()
        };
        let words = refusal("a=http://a:1,b=http://b:1", "c", &["http://c:1"]);
        assert!(
            words.contains("no entry for --name c; it has: a=http://a:1,b=http://b:1"),
            "{words}"
        );
        let words = refusal("a=http://a:1,b=http://a:1", "a", &["http://a:1"]);
        assert!(words.contains("http://a:1 belongs to both a and b"), "{words}");
        let words = refusal("a=http://a:1", "a", &["http://a:2"]);
        assert!(words.contains("has a=http://a:1 but missing from"), "{words}");
    }

    #[test]
    fn a_member_finds_itself_among_those_that_are_there() {
        let cluster: InitialCluster = "a=http://a:1,b=http://b:1".parse().unwrap();
        let member = |id, url: &str| Member { id, peer_urls: urls(&[url]), ..Member::default() };
        let found = |members| MembersReply { cluster_id: 9, members, ..MembersReply::default() };
        let own = urls(&["http://b:1"]);
        let both = found(vec![member(1, "http://a:1"), member(2, "http://b:1")]);
        assert_eq!(cluster.find_own(&both, &own).unwrap().id, 2);
        let alone = found(vec![member(1, "http://a:1")]);
        assert!(matches!(cluster.find_own(&alone, &own), Err(Error::NotAdded { .. })));
        let mut more = both;
        more.members.push(member(3, "http://c:1"));
        assert!(matches!(cluster.find_own(&more, &own), Err(Error::MembersMismatch { .. })));
    }
}
