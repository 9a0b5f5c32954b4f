//! The server under load: its addresses, TLS, and the user of the requests.
//!
//! Connections use the addresses in turn. Each server is queried for its product, version and
//! members ([`server_info`](crate::server_info)), so that the report identifies the measured
//! servers.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use crate::connection::{self, Endpoints};
use crate::server_info::ServerInfo;
use crate::tls::TlsFiles;
use crate::users::{Session, User};
use crate::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Target {
    /// The servers' addresses for clients, which connections use in turn
    #[arg(long, visible_alias = "endpoint", value_name = "ADDRESS,...", value_delimiter = ',')]
    #[arg(default_value = "http://127.0.0.1:2379")]
    pub endpoints: Vec<String>,
    /// Sends all requests to the leader
    #[arg(long)]
    pub target_leader: bool,
    /// The certificates of the authorities that have signed the server's certificate
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// This client's certificate
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// The private key of this client's certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// The user of the requests, if authentication is enabled
    #[arg(long, value_name = "NAME:PASSWORD")]
    pub user: Option<User>,
    /// Seed of random times, keys and values; the same seed repeats them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// The servers under load, after each server has answered a first request.
#[derive(Clone, Debug)]
pub struct OpenTarget {
    pub endpoints: Endpoints,
    pub session: Option<Arc<Session>>,
    pub servers: Vec<ServerInfo>,
}

impl OpenTarget {
    /// Connects once to each server, and reads its product, version and members. If there is a
    /// user, also logs in as this user and gets a token.
    pub async fn open(endpoints: Endpoints, user: Option<User>) -> Result<OpenTarget> {
        let channels = connection::open(&endpoints, endpoints.list().len() as u64).await?;
        let session = match user {
            Some(user) => Some(Arc::new(Session::open(channels[0].clone(), user).await?)),
            None => None,
        };
        let mut servers = Vec::new();
        for (endpoint, channel) in endpoints.list().iter().zip(channels) {
            servers.push(ServerInfo::ask(endpoint, channel, session.as_deref()).await?);
        }
        Ok(OpenTarget { endpoints, session, servers })
    }
}

impl Target {
    pub fn endpoints(&self) -> Result<Endpoints> {
        let has_tls = |text: &String| text.starts_with("https://") || !text.contains("://");
        if (self.cacert.is_some() || self.cert.is_some()) && !self.endpoints.iter().any(has_tls) {
            let why = "no address of --endpoints starts with https://";
            return Err(Error::Local(format!("--cacert and --cert have no effect: {why}")));
        }
        let pair = self.cert.as_deref().zip(self.key.as_deref());
        let tls = TlsFiles::read(self.cacert.as_deref(), pair)?;
        let of_channels = tls.as_ref().map(TlsFiles::of_channels);
        let parse = |text: &String| connection::endpoint_with(text, of_channels.as_ref());
        let endpoints = self.endpoints.iter().map(parse).collect::<Result<_>>()?;
        let of_connections = tls.as_ref().map(TlsFiles::of_connections).transpose()?;
        Ok(Endpoints::new(endpoints)?.with_tls(of_connections))
    }

    /// Returns the address, for commands that load exactly one server and have no user. Fails if
    /// there are several addresses, a user, or `--target-leader`.
    pub fn endpoint(&self) -> Result<Endpoints> {
        for (flag, is_set) in
            [("--user", self.user.is_some()), ("--target-leader", self.target_leader)]
        {
            if is_set {
                let why = "this command loads one server, without a user";
                return Err(Error::Local(format!("{flag}: {why}")));
            }
        }
        let endpoints = self.endpoints()?;
        match endpoints.list().len() {
            1 => Ok(endpoints),
            there => Err(Error::Local(format!(
                "--endpoints: there are {there} addresses; this command takes one"
            ))),
        }
    }

    pub async fn open(&self) -> Result<OpenTarget> {
        let mut open = OpenTarget::open(self.endpoints()?, self.user.clone()).await?;
        if self.target_leader {
            let leader = open.servers.iter().position(|server| server.is_leader);
            let leader = leader.ok_or_else(|| {
                let asked = self.endpoints.join(", ");
                Error::Server(format!("--target-leader: none of {asked} is the leader"))
            })?;
            open.endpoints = open.endpoints.only(leader);
            open.servers = vec![open.servers.swap_remove(leader)];
        }
        Ok(open)
    }
}
