//! Tests of members that find each other in another cluster: `--discovery-token`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clearlane_net::free_ports;
use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{MemberListRequest, PutRequest, RangeRequest};
use tokio::time::sleep;
use tonic::transport::{Channel, Endpoint};

const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

struct Member {
    dir: PathBuf,
    name: String,
    client: u16,
    peer: u16,
    flags: Vec<String>,
    process: Option<Child>,
}

impl Member {
    fn new(dir: &Path, name: &str, flags: &[String]) -> Member {
        let ports = free_ports(2).unwrap();
        Member {
            dir: dir.to_owned(),
            name: name.to_owned(),
            client: ports[0],
            peer: ports[1],
            flags: flags.to_vec(),
            process: None,
        }
    }

    fn start(&mut self) {
        let url = |port| format!("http://127.0.0.1:{port}");
        let (client, peer) = (url(self.client), url(self.peer));
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_clearlane"));
        command.env_clear().stdout(Stdio::null()).stderr(log);
        command.args(["--name", &self.name, "--data-dir"]).arg(self.dir.join(&self.name));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(&self.flags);
        self.process = Some(command.spawn().unwrap());
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap()
    }

    /// Waits until the member responds.
    async fn ready(&mut self) -> Channel {
        let begin = Instant::now();
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", self.client)).unwrap();
        loop {
            if let Ok(channel) = endpoint.connect().await
                && KvClient::new(channel.clone()).range(get("probe")).await.is_ok()
            {
                return channel;
            }
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none() && begin.elapsed() < TIMEOUT, "{ended:?}: {}", self.log());
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the process ends by itself.
    async fn ended(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.process.as_mut().unwrap().try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < TIMEOUT, "{}", self.log());
            sleep(POLL_INTERVAL).await;
        }
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            process.wait().unwrap();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

fn get(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() }
}

fn put(key: &str, value: &str) -> PutRequest {
    let (key, value) = (key.to_owned().into(), value.to_owned().into());
    PutRequest { key, value, ..PutRequest::default() }
}

fn flags_of(token: &str, service: u16) -> Vec<String> {
    // No process listens at the first address, so the member must try the second one.
    let endpoints = format!("--discovery-endpoints=127.0.0.1:1,127.0.0.1:{service}");
    vec![endpoints, format!("--discovery-token={token}")]
}

#[tokio::test]
async fn members_find_each_other_and_no_more_than_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let mut service = Member::new(dir.path(), "service", &[]);
    service.start();
    let registry = service.ready().await;
    let mut registry = KvClient::new(registry);
    registry.put(put("/_etcd/registry/abc/_config/size", "3")).await.unwrap();
    registry.put(put("/_etcd/registry/bad/_config/size", "none")).await.unwrap();

    let flags = flags_of("abc", service.client);
    let mut members: Vec<Member> =
        ["a", "b", "c"].iter().map(|name| Member::new(dir.path(), name, &flags)).collect();
    // The discovery service has no users. So the last member needs no token, although its flag
    // names a user.
    members[2].flags.push("--discovery-user=ulrike:password".to_owned());
    members.iter_mut().for_each(Member::start);
    let mut channels = Vec::new();
    for member in &mut members {
        channels.push(member.ready().await);
    }
    KvClient::new(channels[0].clone()).put(put("key", "value")).await.unwrap();
    let found = KvClient::new(channels[2].clone()).range(get("key")).await.unwrap().into_inner();
    assert_eq!(found.kvs[0].value, "value");
    let listed = ClusterClient::new(channels[1].clone())
        .member_list(MemberListRequest { linearizable: true })
        .await
        .unwrap()
        .into_inner();
    let mut names: Vec<&str> = listed.members.iter().map(|member| member.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "c"]);

    for (name, token, message) in [
        ("late", "abc", "discovery: cluster is full: 3 members have registered"),
        ("lost", "xyz", "discovery: size key not found: write the number of members to"),
        ("odd", "bad", "discovery: size key is bad: /_etcd/registry/bad/_config/size must be"),
    ] {
        let mut member = Member::new(dir.path(), name, &flags_of(token, service.client));
        member.start();
        assert_eq!(member.ended().await.code(), Some(1));
        assert!(member.log().contains(message), "{}", member.log());
    }

    // A member with data needs no discovery service.
    service.kill();
    members[1].kill();
    members[1].start();
    members[1].ready().await;
    assert!(members[1].log().contains("discovery is ignored"), "{}", members[1].log());
}
