//! Golden scripts that show which configuration results from flags, environment and config files.
//! Also tests of the help page with all flags.
//!
//! ```text
//!   > env ETCD_NAME=a          sets a variable for the next start
//!   > file c.yaml "name: a"    creates a file for the next start
//!   > start --name=b           prints the differences from a start without settings, or the error
//! ```
//!
//! To update the expectations: `UPDATE_GOLDENFILES=1 cargo test -p clearlane --test program
//! config`.

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::{fs, io};

use clearlane::command_line::{self, Invocation};
use clearlane::config::{Config, ConfigError, HttpConfig, page, table};
use clearlane::data::MemberConfig;
use clearlane_net::listener::ListenAddress;
use clearlane_net::tls::{CertificateFiles, FlagPath, TlsInfo};
use goldenscript::{Command, Context, Runner};

#[derive(Default)]
struct Script {
    environment: Vec<(String, String)>,
    files: Vec<(String, String)>,
}

impl Script {
    fn start(&self, arguments: &[String]) -> String {
        let open = |path: &Path| {
            let found = self.files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| text.clone()).ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        let pair = |(name, value): &(String, String)| (name.into(), value.into());
        match read(arguments, &self.environment.iter().map(pair).collect::<Vec<_>>(), &open) {
            Ok(Invocation::Help(_)) => "help\n".to_owned(),
            Ok(Invocation::Tool(call)) => format!("{call:?}\n"),
            Ok(Invocation::Member(config)) => differences(&config),
            Err(error) => {
                let message = error.to_string();
                let first = message.lines().next().unwrap_or_default();
                let usage = if message.contains("\nUsage: ") { ", with usage" } else { "" };
                format!("exit {}{usage}: {first}\n", error.status)
            }
        }
    }
}

fn read(
    arguments: &[String],
    environment: &[(OsString, OsString)],
    open: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<Invocation, ConfigError> {
    let arguments: Vec<_> = arguments.iter().map(Into::into).collect();
    command_line::read(&arguments, environment, open)
}

fn no_file(_: &Path) -> io::Result<String> {
    Err(io::ErrorKind::NotFound.into())
}

fn plain() -> Config {
    match read(&[], &[], &no_file).unwrap() {
        Invocation::Member(config) => *config,
        other => panic!("{other:?}"),
    }
}

/// Returns the addresses as text, with a remark at each address with TLS.
fn entrances(all: &[ListenAddress]) -> String {
    let texts = all.iter().map(|entrance| match (entrance.is_plain, entrance.is_secure) {
        (true, true) => format!("{:?} with TLS and without", entrance.address),
        (_, true) => format!("{:?} with TLS", entrance.address),
        _ => format!("{:?}", entrance.address),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Returns the TLS settings of the connections to clients, or of the connections between members,
/// as text.
fn side(side: &TlsInfo) -> String {
    let TlsInfo {
        server_certificate: own,
        client_certificate: calling,
        trusted_ca: trusted,
        crl: revoked,
        allowed,
        self_signed: made,
        checks_address,
    } = side;
    let pair = |pair: &Option<CertificateFiles>| {
        pair.as_ref().map(|pair| (pair.certificate.path.clone(), pair.key.path.clone()))
    };
    let path = |named: &Option<FlagPath>| named.as_ref().map(|named| named.path.clone());
    format!(
        "own {:?}, calling {:?}, CA {:?}, CRL {:?}, {allowed:?}, {made:?}, address {checks_address}",
        pair(own),
        pair(calling),
        path(trusted),
        path(revoked)
    )
}

fn raft_line(member: &MemberConfig) -> String {
    format!(
        "RaftConfig {{ heartbeat: {:?}, election_timeout: {:?}, snapshot_count: {}, \
         catch_up_entries: {}, segments_max: {:?}, learners_max: {} }}",
        member.heartbeat,
        member.election_timeout,
        member.replica.snapshot_count,
        member.replica.catch_up_entries,
        member.wal.segments_max,
        member.learners_max
    )
}

fn lines(config: &Config) -> Vec<String> {
    let Config { member, log, .. } = config;
    let mut lines = vec![
        format!("name: {}", member.name),
        format!("data: {:?}, log: {:?}", member.data_dir, member.wal_dir),
        format!(
            "clients: [{}], told {:?}",
            entrances(&config.listen_clients),
            config.advertise_clients
        ),
        format!("peers: [{}], told {:?}", entrances(&config.listen_peers), member.peer_urls),
        format!("metrics: [{}]", entrances(&config.http.listen_metrics)),
        format!("TLS of clients: {}", side(&config.tls.clients)),
        format!("TLS of peers: {}", side(&config.tls.peers)),
        format!("{:?}", config.tls.protocol),
        format!("members: {}", member.initial_cluster),
        format!("{:?}, token: {:?}", member.initial_cluster_state, member.cluster_token),
        raft_line(member),
        format!(
            "engine: {}, batch: {:?}, {}",
            member.engine_kind, member.backend.batch_interval, member.backend.batch_limit
        ),
        format!("era: {}, read_mode: {:?}", member.era, member.replica.read_mode),
        format!("quota: {}", member.replica.quota_bytes),
        format!("{:?}", HttpConfig { listen_metrics: Vec::new(), ..config.http.clone() }),
        format!("{:?}", config.limits),
        format!("net threads: {}", config.net_threads),
        format!("{:?}", config.checks),
        format!("{:?}", config.rpc.connections),
        format!("{:?}", member.replica.compaction),
        format!("auth: {:?}", member.replica.auth),
        format!("http: {:?}", config.listen_clients_http),
        format!("log: {} {:?} {:?}", log.level, log.format, log.outputs),
        format!("{:?}", log.rotation),
        format!("discovery: {:?}", config.discovery),
        format!("{:?}", config.peer_connections),
        format!(
            "syncs: {}, pre-vote: {}, advances elections: {}, defragments at: {:?}",
            member.engine.syncs,
            member.replica.raft.pre_vote,
            config.advances_election,
            member.replica.defragment_at
        ),
        format!(
            "gateway: {}, shares ports: {}, locks memory: {}",
            config.rpc.serves_gateway, config.shares_ports, config.locks_memory
        ),
    ];
    lines.extend(config.warnings.iter().map(|warning| format!("warning: {warning}")));
    lines
}

fn differences(config: &Config) -> String {
    let plain = lines(&plain());
    let differ = lines(config).into_iter().filter(|line| !plain.contains(line));
    let text: String = differ.map(|line| line + "\n").collect();
    if text.is_empty() { "as by default\n".to_owned() } else { text }
}

/// Splits a line into words. A word with spaces is in quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), None::<String>, false);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '\\' if is_quoted => match letters.next().unwrap() {
                'n' => word.get_or_insert_default().push('\n'),
                other => word.get_or_insert_default().push(other),
            },
            ' ' if !is_quoted => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

impl Runner for Script {
    type Command = Command;

    fn run(&mut self, command: &Command, _context: &Context) -> Result<String, Box<dyn Error>> {
        let words = words(&command.name);
        match words.split_first().ok_or("an empty line")? {
            (name, variables) if name == "env" => {
                for variable in variables {
                    let (name, value) = variable.split_once('=').ok_or("env NAME=VALUE")?;
                    self.environment.push((name.to_owned(), value.to_owned()));
                }
                Ok(String::new())
            }
            (name, [file, text]) if name == "file" => {
                self.files.push((file.clone(), text.clone()));
                Ok(String::new())
            }
            (name, arguments) if name == "start" => {
                let printed = self.start(arguments);
                *self = Script::default();
                Ok(printed)
            }
            (other, _) => Err(format!("cannot do {other} like this").into()),
        }
    }
}

#[test]
fn scripts() {
    for entry in fs::read_dir("tests/config").unwrap() {
        let path = entry.unwrap().path();
        goldenscript::run(&mut Script::default(), path).unwrap();
    }
}

#[test]
fn by_default_it_is_what_etcd_does() {
    let printed = lines(&plain()).join("\n");
    for part in [
        "name: default",
        "data: \"default.etcd\"",
        "clients: [Tcp(127.0.0.1:2379)], told [\"http://localhost:2379\"]",
        "peers: [Tcp(127.0.0.1:2380)], told [\"http://localhost:2380\"]",
        "snapshot_count: 10000, catch_up_entries: 5000, segments_max: Some(5), learners_max: 1",
        "txn_ops_max: 128, request_bytes_max: 1572864",
    ] {
        assert!(printed.contains(part), "{part} is not in\n{printed}");
    }
    assert!(!printed.contains("warning"), "{printed}");
}

#[test]
fn the_table_holds_what_it_says() {
    let mut names = BTreeSet::new();
    for flag in table::all() {
        assert!(names.insert(flag.name), "--{} is there twice", flag.name);
        assert_eq!(flag.kind.check(flag.default), Ok(()), "--{}", flag.name);
        assert!(flag.help.ends_with('.'), "--{}: {}", flag.name, flag.help);
        assert!(flag.is_default(flag.default));
    }
}

#[test]
fn the_page_of_flags_is_printed_from_the_table() {
    let path = "../../docs/flags.md";
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        fs::write(path, page::page()).unwrap();
    }
    assert_eq!(fs::read_to_string(path).unwrap(), page::page(), "see docs/flags.md");
}

fn help(arguments: &[&str]) -> String {
    let arguments: Vec<_> = arguments.iter().map(|word| (*word).to_owned()).collect();
    match read(&arguments, &[], &no_file).unwrap() {
        Invocation::Help(text) => text,
        other => panic!("{other:?}"),
    }
}

/// Undoes the line wrapping of a text.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_help_has_every_flag_in_its_group() {
    let help = in_one_line(&help(&["--help"]));
    let mut left = help.as_str();
    let mut next = |text: &str| {
        let (_, behind) = left.split_once(text).unwrap_or_else(|| panic!("no {text} in\n{left}"));
        left = behind;
    };
    for section in table::SECTIONS {
        next(&format!(" {}: ", section.title));
        for flag in section.flags {
            next(&format!("--{}", flag.name));
            next(flag.help);
            if let Some(why) = flag.ignored {
                next(&format!("NOT {}: {why}.", if flag.is_planned { "YET" } else { "HONOURED" }));
            }
        }
    }
}

#[test]
fn each_command_has_its_help() {
    for (command, part) in [
        (&["snapshot", "save"][..], "[OPTIONS] <ENDPOINT> <FILE>"),
        (&["snapshot", "status"], "<FILE>"),
        (&["snapshot", "restore"], "--bump-revision <number>"),
        (&["snapshot"], "restore"),
        (&["defrag"], "--data-dir <text>"),
        (&["hashkv"], "[possible values: simple, json, table, fields]"),
        (&["migrate"], "[possible values: 3.5, 3.6, 3.7]"),
        (&["wal", "dump"], "<DIR>"),
        (&["gateway"], "start"),
        (&["gateway", "start"], "--retry-delay <duration>"),
        (&["grpc-proxy"], "start"),
        (&["grpc-proxy", "start"], "--discovery-srv <text>"),
        (&["version"], "Print the version"),
        (&["completions"], "[possible values: bash, elvish, fish, powershell, zsh]"),
        (&["man"], "manual page"),
    ] {
        for flag in ["--help", "-h", "-help"] {
            let help = in_one_line(&help(&[command, &[flag]].concat()));
            assert!(help.contains(part), "{command:?} {flag}: {help}");
        }
    }
}

/// None of these files causes a panic, and each error names the position in the file.
#[test]
fn hostile_files_are_refused() {
    let long = "x".repeat(200_000);
    let deep = "[".repeat(50_000);
    let nulls = "name: \0";
    for (text, printed) in [
        (format!("{long}: 1"), "c.yaml:1: "),
        (format!("# a comment\n{long}"), "c.yaml:2: "),
        (format!("name: a\nera: {long}"), "c.yaml:2: invalid value "),
        (format!("name: a\npeer-transport-security:\n  {long}"), "c.yaml:3: "),
        (format!("name: {deep}"), "c.yaml:1: "),
        (nulls.to_owned(), "c.yaml:1: "),
    ] {
        let open = |_: &Path| Ok(text.clone());
        let error = read(&["--config-file=c.yaml".to_owned()], &[], &open).unwrap_err();
        assert!(error.to_string().starts_with(printed), "{:.200}", error.to_string());
    }
}
