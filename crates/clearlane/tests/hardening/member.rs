//! A member in a separate process. It has two ports for clients, one with TLS and one without, and
//! a port for members. The clients write raw bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_net::tls::protocol::ProtocolConfig;
use clearlane_net::tls::{Dialer, TlsInfo};
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;
use tonic::transport::Endpoint;

use crate::authority::Authority;
use crate::program::{RunningProgram, TIMEOUT, member};

/// The interval between two checks.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct HardenedMember {
    pub(crate) dir: TempDir,
    pub(crate) program: RunningProgram,
    ca: Authority,
    pub(crate) plain: String,
    pub(crate) secure: String,
}

impl HardenedMember {
    pub(crate) fn start(more: &[&str]) -> HardenedMember {
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::new(dir.path(), "ca");
        let pair = ca.pair("server", &["127.0.0.1", "localhost"]);
        let mut command = member(&dir.path().join("data"), &[]);
        command.args([
            "--listen-client-urls=http://127.0.0.1:0,https://127.0.0.1:0",
            "--log-level=debug",
            &format!("--cert-file={}", pair.certificate.path.display()),
            &format!("--key-file={}", pair.key.path.display()),
        ]);
        let mut program = RunningProgram::start(command.args(more));
        let (mut plain, mut secure) = (String::new(), String::new());
        while plain.is_empty() || secure.is_empty() {
            let line = program.json("serving client traffic");
            let address = line["address"].as_str().unwrap().to_owned();
            match line["msg"].as_str().unwrap().contains("insecurely") {
                true => plain = address,
                false => secure = address,
            }
        }
        HardenedMember { dir, program, ca, plain, secure }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(&self.plain)
    }

    pub(crate) fn connect_secure(&self) -> TcpStream {
        connect(&self.secure)
    }

    /// Checks that well-behaved clients are served.
    pub(crate) fn others_are_served(&self) {
        let range = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let plain = Endpoint::from_shared(format!("http://{}", self.plain)).unwrap();
            let plain = plain.connect().await.unwrap();
            let info = TlsInfo { trusted_ca: Some(self.ca.named()), ..TlsInfo::default() };
            let dialer = Dialer::new(&info, &ProtocolConfig::default()).unwrap();
            let secure = dialer.connect(&format!("https://{}", self.secure)).await.unwrap();
            for channel in [plain, secure] {
                let mut client = KvClient::new(channel);
                let served = client.range(range.clone());
                tokio::time::timeout(TIMEOUT, served).await.unwrap().unwrap();
            }
        });
    }

    pub(crate) fn handshake(&self) -> std::io::Result<SecureStream> {
        self.dialer().handshake()
    }

    pub(crate) fn dialer(&self) -> SecureDialer {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.ca.certificate()).unwrap()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        SecureDialer { address: self.secure.clone(), config: Arc::new(config) }
    }
}

pub(crate) type SecureStream = StreamOwned<ClientConnection, TcpStream>;

/// A client that connects to the port with TLS.
pub(crate) struct SecureDialer {
    address: String,
    config: Arc<ClientConfig>,
}

impl SecureDialer {
    pub(crate) fn handshake(&self) -> std::io::Result<SecureStream> {
        let mut stream = self.connect();
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        stream.sock.set_read_timeout(Some(PAUSE))?;
        Ok(stream)
    }

    /// Starts a handshake. Returns once the server has responded to the hello.
    pub(crate) fn begin(&self) -> SecureStream {
        let mut stream = self.connect();
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock).unwrap();
        }
        assert_eq!(stream.sock.peek(&mut [0]).unwrap(), 1);
        stream
    }

    fn connect(&self) -> SecureStream {
        let name = ServerName::try_from("localhost").unwrap();
        let client = ClientConnection::new(Arc::clone(&self.config), name).unwrap();
        let stream = StreamOwned::new(client, connect(&self.address));
        stream.sock.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }
}

pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PAUSE)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Returns the data up to the end of the connection, or `None` if it has not ended.
pub(crate) fn ended(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => Some(all),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => None,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Some(all),
            _ => panic!("{error}"),
        },
    }
}

/// Waits until the server has closed the connection.
pub(crate) fn end(stream: &mut TcpStream) {
    let begin = Instant::now();
    while ended(stream).is_none() {
        assert!(begin.elapsed() < TIMEOUT, "it is open still");
    }
}

/// Writes one byte from time to time, until the server has closed the connection.
pub(crate) fn trickle(mut stream: TcpStream, bytes: &[u8]) {
    let begin = Instant::now();
    for byte in bytes.iter().cycle() {
        assert!(begin.elapsed() < TIMEOUT, "it is open still");
        if stream.write_all(&[*byte]).is_err() || ended(&mut stream).is_some() {
            return;
        }
    }
}
