//! Arbitrary strings in place of addresses, lists of members and feature gates. Such strings arrive
//! in flags, in requests that change members, and from other members.

use clearlane::config::address::{Url, listen_addresses};
use clearlane::config::feature_gates::FeatureGates;
use clearlane::data::InitialCluster;
use clearlane_replica::membership;

pub fn target(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let words: Vec<String> = text.split(',').map(str::to_owned).collect();
    let urls: Vec<Url> = words.iter().filter_map(|word| Url::parse(word).ok()).collect();
    for url in &urls {
        assert_eq!(Url::parse(&url.to_string()).as_ref(), Ok(url));
        let _ = (url.host(), url.to_bind_address());
    }
    let _ = listen_addresses(&urls);
    if let Ok(sorted) = membership::addresses(&words) {
        assert_eq!(membership::addresses(&sorted).as_ref(), Ok(&sorted));
        let _ = membership::member_id(&sorted, "token", None);
    }
    if let Ok(cluster) = text.parse::<InitialCluster>() {
        let again = cluster.to_string().parse::<InitialCluster>();
        assert_eq!(again.as_ref().ok(), Some(&cluster), "{cluster} was written");
    }
    if let Ok(gates) = FeatureGates::parse(&text) {
        let _ = (gates.check_dependencies(), gates.warnings().count());
    }
}
