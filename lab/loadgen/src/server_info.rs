//! Queries a server for its product, version and members.

use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{MemberListRequest, StatusRequest, StatusResponse};
use serde::Serialize;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::server_latency::metrics_page;
use crate::users::Session;
use crate::{Error, Result, connection};

/// The start of a metric that only Clearlane's metrics page has.
const ERA_METRIC: &str = "clearlane_era{era=\"";
const NOT_TOLD: [Code; 2] = [Code::Unimplemented, Code::PermissionDenied];

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerInfo {
    pub endpoint: String,
    /// The product as text: `Clearlane, era 3.2`.
    product: String,
    /// The era, if the server is Clearlane. `None` for other servers, and for all servers with TLS,
    /// because their metrics page is not read.
    pub era: Option<String>,
    pub version: String,
    #[serde(rename = "leader")]
    pub is_leader: bool,
    /// Number of members of the cluster. 0 if the server does not report it.
    pub members: usize,
    pub db_bytes: i64,
}

impl ServerInfo {
    pub(crate) async fn ask(
        endpoint: &Endpoint,
        channel: Channel,
        session: Option<&Session>,
    ) -> Result<ServerInfo> {
        let name = endpoint.uri().to_string();
        let status = Session::request_of(session, StatusRequest {});
        let status = MaintenanceClient::new(channel.clone()).status(status).await;
        let status = match status {
            Ok(status) => status.into_inner(),
            // The server may have only a part of the API, or the user may lack the permission.
            Err(status) if NOT_TOLD.contains(&status.code()) => StatusResponse::default(),
            Err(status) => {
                let why = connection::reason(&status);
                let why = format!("{name}: cannot read its status: {why}");
                return Err(Error::Server(why));
            }
        };
        let request = Session::request_of(session, MemberListRequest { linearizable: false });
        // Some servers of this API do not list members, so an error is ignored.
        let members = ClusterClient::new(channel).member_list(request).await;
        let member = status.header.as_ref().map_or(0, |header| header.member_id);
        let era = era(endpoint).await;
        Ok(ServerInfo {
            product: product(era.as_deref(), &name),
            era,
            version: status.version,
            is_leader: member != 0 && status.leader == member,
            members: members.map_or(0, |list| list.into_inner().members.len()),
            db_bytes: status.db_size,
            endpoint: name,
        })
    }

    /// Returns the era. For a server without an era, returns `server` if it has TLS, and `etcd`
    /// otherwise.
    pub fn short_name(&self) -> &str {
        match &self.era {
            Some(era) => era,
            None if self.endpoint.starts_with("https") => "server",
            None => "etcd",
        }
    }

    pub fn line(&self) -> String {
        let role = if self.is_leader { "leader" } else { "follower" };
        let mib = self.db_bytes as f64 / f64::from(1 << 20);
        format!(
            "{}: {}, version {}, {role} of {} members, store of {mib:.1} MiB",
            self.endpoint, self.product, self.version, self.members
        )
    }
}

fn product(era: Option<&str>, endpoint: &str) -> String {
    match era {
        Some(era) => format!("Clearlane, era {era}"),
        None if endpoint.starts_with("https") => "a server of etcd's API".to_owned(),
        None => "etcd or alike".to_owned(),
    }
}

/// Reads the era from the metrics page. Returns `None` for a server with TLS, and for a server
/// whose page has no era.
async fn era(endpoint: &Endpoint) -> Option<String> {
    let page = metrics_page(endpoint).await?;
    let (_, rest) = page.split_once(ERA_METRIC)?;
    rest.split_once('"').map(|(era, _)| era.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_a_report_is_about() {
        let info = ServerInfo {
            endpoint: "http://a:1/".to_owned(),
            product: product(Some("3.2"), "http://a:1/"),
            era: Some("3.2".to_owned()),
            version: "3.7.1".to_owned(),
            is_leader: true,
            members: 3,
            db_bytes: 3 << 19,
        };
        let line = "http://a:1/: Clearlane, era 3.2, version 3.7.1, leader of 3 members, \
                    store of 1.5 MiB";
        assert_eq!(info.line(), line);
        assert_eq!(product(None, "http://a:1/"), "etcd or alike");
    }
}
