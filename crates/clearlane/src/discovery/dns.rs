//! Finds the members of a new cluster in the SRV records of a domain: `--discovery-srv`.
//!
//! ```text
//!   _etcd-server-ssl._tcp.example.com   SRV 0 0 2380 a.example.com ─▶ https://a.example.com:2380
//!   _etcd-server._tcp.example.com       SRV 0 0 2380 b.example.com ─▶ http://b.example.com:2380
//! ```
//!
//! A record with this member's scheme and address gives this member its URL. Until the other
//! members start, their names are numbers. The DNS servers are read from `/etc/resolv.conf`.
//!
//! The proxies find the client addresses of the members in the same way, in the records
//! `_etcd-client-ssl._tcp` and `_etcd-client._tcp`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use simple_dns::rdata::{RData, SRV};
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::time::timeout;

use crate::data::{self, InitialCluster};

const RESOLVER_CONFIG: &str = "/etc/resolv.conf";
const PORT: u16 = 53;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of queries to each server for one name.
const ATTEMPTS: usize = 2;
const DATAGRAM_BYTES_MAX: usize = 4096;

#[derive(Clone, Debug)]
pub struct DnsDiscovery {
    pub domain: String,
    /// The suffix of the service's name, after a dash. It may be empty.
    pub service_suffix: String,
    /// The DNS servers. If empty, the system's servers are queried.
    pub servers: Vec<SocketAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    #[error("--discovery-srv: {0}")]
    NoRecords(String),
    #[error("--discovery-srv: {RESOLVER_CONFIG}: {0}")]
    NoServers(io::Error),
    #[error(
        "cannot find local etcd member {name:?} in SRV records: none of their targets is at \
         --initial-advertise-peer-urls {own}; they are {found}"
    )]
    NotListed { name: String, own: String, found: String },
    #[error("--discovery-srv: {0}")]
    BadUrl(data::Error),
}

/// The target of an SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub host: String,
    pub port: u16,
    /// A target with a lower number is preferred.
    pub priority: u16,
    /// The target's share of the connections, relative to targets of the same priority.
    pub weight: u16,
}

impl Target {
    /// Returns the target as HOST:PORT.
    pub fn address(&self) -> String {
        let Target { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// The client address of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTarget {
    /// `https` or `http`.
    pub scheme: &'static str,
    pub target: Target,
}

impl DnsDiscovery {
    /// Finds the cluster. Fails if no record has the scheme and an address of one of `peer_urls`,
    /// the URLs of the member `name`.
    pub async fn find_cluster(
        &self,
        name: &str,
        peer_urls: &[String],
    ) -> Result<InitialCluster, DnsError> {
        let servers = self.servers()?;
        let own = resolve_urls(peer_urls).await;
        let (mut entries, mut failures) = (Vec::new(), Vec::new());
        let mut others = 0;
        for (scheme, service) in [("https", "etcd-server-ssl"), ("http", "etcd-server")] {
            let records = self.records(service);
            let targets = match lookup(&servers, &records).await {
                Ok(targets) => targets,
                Err(error) => {
                    failures.push(format!("{records}: {error}"));
                    continue;
                }
            };
            tracing::info!(records, ?targets, "found SRV records");
            for target in targets {
                let Target { host, port, .. } = &target;
                let addresses = match lookup_host((host.as_str(), *port)).await {
                    Ok(addresses) => addresses.collect::<Vec<_>>(),
                    Err(error) => {
                        failures.push(format!("{records}: {host}: {error}"));
                        continue;
                    }
                };
                let is_own = |(own_scheme, at): &(String, SocketAddr)| {
                    own_scheme == scheme && addresses.contains(at)
                };
                let member = if own.iter().any(is_own) {
                    name.to_owned()
                } else {
                    others += 1;
                    format!("{}", others - 1)
                };
                entries.push(format!("{member}={scheme}://{}", target.address()));
            }
        }
        if entries.is_empty() {
            return Err(DnsError::NoRecords(failures.join("; ")));
        }
        for failure in failures {
            tracing::warn!(failure, "some SRV records were not found");
        }
        let found = entries.join(",");
        let cluster: InitialCluster = found.parse().map_err(DnsError::BadUrl)?;
        if cluster.urls_of(name).is_none() {
            let (name, own) = (name.to_owned(), peer_urls.join(","));
            return Err(DnsError::NotListed { name, own, found });
        }
        Ok(cluster)
    }

    /// Finds the client addresses of the members: first the addresses with TLS, then the others.
    /// Fails if there are no addresses.
    pub async fn find_clients(&self) -> Result<Vec<ClientTarget>, DnsError> {
        let servers = self.servers()?;
        let (mut found, mut failures) = (Vec::new(), Vec::new());
        for (scheme, service) in [("https", "etcd-client-ssl"), ("http", "etcd-client")] {
            let records = self.records(service);
            match lookup(&servers, &records).await {
                Ok(targets) => {
                    tracing::info!(records, ?targets, "found SRV records");
                    found.extend(targets.into_iter().map(|target| ClientTarget { scheme, target }));
                }
                Err(error) => failures.push(format!("{records}: {error}")),
            }
        }
        if found.is_empty() { Err(DnsError::NoRecords(failures.join("; "))) } else { Ok(found) }
    }

    /// Returns the name of a service's records.
    fn records(&self, service: &str) -> String {
        let suffix = match self.service_suffix.as_str() {
            "" => String::new(),
            suffix => format!("-{suffix}"),
        };
        format!("_{service}{suffix}._tcp.{}", self.domain.trim_matches('.'))
    }

    fn servers(&self) -> Result<Vec<SocketAddr>, DnsError> {
        match self.servers.is_empty() {
            true => system_servers().map_err(DnsError::NoServers),
            false => Ok(self.servers.clone()),
        }
    }
}

/// Returns each URL's scheme with each address of its host. Skips a URL whose host cannot be
/// resolved.
async fn resolve_urls(urls: &[String]) -> Vec<(String, SocketAddr)> {
    let mut resolved = Vec::new();
    for url in urls {
        let Some((scheme, rest)) = url.split_once("://") else { continue };
        match lookup_host(rest).await {
            Ok(addresses) => resolved.extend(addresses.map(|at| (scheme.to_owned(), at))),
            Err(error) => tracing::warn!(url, %error, "the host of this member is not known"),
        }
    }
    resolved
}

fn system_servers() -> io::Result<Vec<SocketAddr>> {
    let text = std::fs::read_to_string(RESOLVER_CONFIG)?;
    let servers = servers_in(&text);
    if servers.is_empty() { Err(io::Error::other("it has no nameserver")) } else { Ok(servers) }
}

fn servers_in(text: &str) -> Vec<SocketAddr> {
    let addresses = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_server = words.next() == Some("nameserver");
        // An address may end with the zone of a network interface, which is not used.
        let address = words.next().filter(|_| is_server)?.split('%').next()?;
        address.parse::<IpAddr>().ok()
    });
    addresses.map(|ip| SocketAddr::new(ip, PORT)).collect()
}

/// Queries the servers in turn, each up to twice, until one responds. Any complete response ends
/// the search, even if it reports an error or has no SRV records.
async fn lookup(servers: &[SocketAddr], name: &str) -> Result<Vec<Target>, String> {
    let query = query(name).map_err(|error| error.to_string())?;
    let mut failures = Vec::new();
    for _ in 0..ATTEMPTS {
        for server in servers {
            match timeout(ANSWER_TIMEOUT, ask(*server, &query)).await {
                Ok(Ok(answer)) => return targets(&answer, name),
                Ok(Err(error)) => failures.push(format!("{server}: {error}")),
                Err(_) => failures.push(format!("{server}: no response in {ANSWER_TIMEOUT:?}")),
            }
        }
    }
    Err(failures.join("; "))
}

fn query(name: &str) -> Result<Vec<u8>, simple_dns::SimpleDnsError> {
    // The ID is random, and `ask` ignores a response with another ID.
    let mut id = [0; 2];
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), name);
    id.copy_from_slice(&random.to_ne_bytes()[..2]);
    let mut packet = Packet::new_query(u16::from_ne_bytes(id));
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name)?;
    packet.questions.push(Question::new(
        name,
        QTYPE::TYPE(TYPE::SRV),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    packet.build_bytes_vec()
}

/// Returns the response to a query. Uses TCP if the response does not fit into a datagram.
async fn ask(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => ([0; 4], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let answer = &buffer[..length];
        if answer.get(..2) != query.get(..2) {
            continue;
        }
        let is_cut =
            Packet::parse(answer).is_ok_and(|packet| packet.has_flags(PacketFlag::TRUNCATION));
        return if is_cut { ask_over_tcp(server, query).await } else { Ok(answer.to_vec()) };
    }
}

async fn ask_over_tcp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], query].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Returns the targets in a response, in the order of their priority. Fails if there are none.
fn targets(answer: &[u8], name: &str) -> Result<Vec<Target>, String> {
    let packet = Packet::parse(answer).map_err(|error| error.to_string())?;
    match packet.rcode() {
        RCODE::NoError => {}
        RCODE::NameError => return Err("no such host".to_owned()),
        other => return Err(format!("the server returned {other:?}")),
    }
    let target = |srv: &SRV<'_>| {
        let host = srv.target.to_string().trim_end_matches('.').to_owned();
        Target { host, port: srv.port, priority: srv.priority, weight: srv.weight }
    };
    let mut found: Vec<Target> = packet
        .answers
        .iter()
        .filter_map(|record| match &record.rdata {
            RData::SRV(srv) => Some(target(srv)),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        return Err(format!("{name} has no SRV records"));
    }
    found.sort_by_key(|target| target.priority);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use simple_dns::ResourceRecord;

    use super::*;

    /// Starts a DNS server that returns `records`, and an error for a name without records. The
    /// last digit of a port is also the record's priority, and the other digits are its weight. If
    /// `is_cut` is true, the server sends records over TCP only.
    async fn serve(records: Vec<(&'static str, &'static str, u16)>, is_cut: bool) -> SocketAddr {
        let (datagrams, streams) = loop {
            let streams = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            // If another program uses this port for datagrams, the loop tries another port.
            if let Ok(datagrams) = UdpSocket::bind(streams.local_addr().unwrap()).await {
                break (datagrams, streams);
            }
        };
        let at = datagrams.local_addr().unwrap();
        let for_streams = records.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = datagrams.recv_from(&mut buffer).await {
                let answer = answer(&buffer[..length], &records, is_cut);
                datagrams.send_to(&answer, from).await.unwrap();
            }
        });
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = streams.accept().await {
                let length = stream.read_u16().await.unwrap();
                let mut query = vec![0; usize::from(length)];
                stream.read_exact(&mut query).await.unwrap();
                let answer = answer(&query, &for_streams, false);
                stream.write_u16(answer.len() as u16).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        });
        at
    }

    fn answer(query: &[u8], records: &[(&str, &str, u16)], is_cut: bool) -> Vec<u8> {
        let query = Packet::parse(query).unwrap();
        let asked = query.questions[0].qname.to_string();
        let mut reply = Packet::new_reply(query.id());
        for (name, host, port) in records.iter().filter(|(name, ..)| *name == asked) {
            let target = Name::new_unchecked(host);
            let srv = SRV { priority: *port % 10, weight: *port / 10, port: *port, target };
            let name = Name::new_unchecked(name);
            reply.answers.push(ResourceRecord::new(name, CLASS::IN, 9, RData::SRV(srv)));
        }
        if is_cut {
            reply.answers.clear();
            reply.set_flags(PacketFlag::TRUNCATION);
        } else if reply.answers.is_empty() {
            *reply.rcode_mut() = RCODE::NameError;
        }
        reply.build_bytes_vec().unwrap()
    }

    fn discovery(server: SocketAddr, suffix: &str) -> DnsDiscovery {
        DnsDiscovery {
            domain: "example.com".to_owned(),
            service_suffix: suffix.to_owned(),
            servers: vec![server],
        }
    }

    async fn found(server: SocketAddr, suffix: &str, own: &str) -> Result<String, String> {
        let found = discovery(server, suffix).find_cluster("me", &[own.to_owned()]).await;
        found.map(|cluster| cluster.to_string()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn members_are_the_targets_of_both_services() {
        for is_cut in [false, true] {
            let server = serve(
                vec![
                    ("_etcd-server._tcp.example.com", "127.0.0.1", 2380),
                    ("_etcd-server._tcp.example.com", "127.0.0.2", 2380),
                    ("_etcd-server-ssl._tcp.example.com", "127.0.0.3", 2390),
                    ("_etcd-server-blue._tcp.example.com", "127.0.0.4", 2380),
                ],
                is_cut,
            )
            .await;
            let cluster = found(server, "", "http://127.0.0.2:2380").await.unwrap();
            assert_eq!(
                cluster,
                "0=https://127.0.0.3:2390,1=http://127.0.0.1:2380,me=http://127.0.0.2:2380"
            );
            let cluster = found(server, "blue", "http://127.0.0.4:2380").await.unwrap();
            assert_eq!(cluster, "me=http://127.0.0.4:2380");
        }
    }

    #[tokio::test]
    async fn what_is_missing_is_told() {
        let server = serve(vec![("_etcd-server._tcp.example.com", "127.0.0.1", 2380)], false).await;
        let error = found(server, "", "http://127.0.0.9:2380").await.unwrap_err();
        assert!(
            error.starts_with("cannot find local etcd member \"me\" in SRV records: ")
                && error.ends_with("they are 0=http://127.0.0.1:2380"),
            "{error}"
        );
        // A URL with the right address and the wrong scheme matches no record.
        assert!(found(server, "", "https://127.0.0.1:2380").await.is_err());
        let error = found(server, "none", "http://127.0.0.1:2380").await.unwrap_err();
        assert!(error.contains("_etcd-server-none._tcp.example.com: no such host"), "{error}");
    }

    #[tokio::test]
    async fn clients_connect_to_the_targets_of_both_services() {
        let server = serve(
            vec![
                ("_etcd-client._tcp.example.com", "127.0.0.1", 2379),
                ("_etcd-client._tcp.example.com", "::1", 2371),
                ("_etcd-client-ssl._tcp.example.com", "127.0.0.3", 2375),
                ("_etcd-client-blue._tcp.example.com", "127.0.0.4", 2370),
            ],
            false,
        )
        .await;
        let found = discovery(server, "").find_clients().await.unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|ClientTarget { scheme, target }| {
                (*scheme, target.address(), target.priority, target.weight)
            })
            .collect();
        assert_eq!(
            found,
            [
                ("https", "127.0.0.3:2375".to_owned(), 5, 237),
                ("http", "[::1]:2371".to_owned(), 1, 237),
                ("http", "127.0.0.1:2379".to_owned(), 9, 237),
            ]
        );
        let found = discovery(server, "blue").find_clients().await.unwrap();
        assert_eq!(found[0].target.address(), "127.0.0.4:2370");
        let error = discovery(server, "none").find_clients().await.unwrap_err().to_string();
        assert_eq!(
            error,
            "--discovery-srv: _etcd-client-ssl-none._tcp.example.com: no such host; \
             _etcd-client-none._tcp.example.com: no such host"
        );
    }

    #[test]
    fn servers_are_those_of_the_system() {
        let text =
            "# nameserver 1.1.1.1\nsearch a b\nnameserver 10.0.0.2\nnameserver fe80::1%eth0\n";
        let servers: Vec<String> = servers_in(text).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["10.0.0.2:53", "[fe80::1]:53"]);
    }
}
