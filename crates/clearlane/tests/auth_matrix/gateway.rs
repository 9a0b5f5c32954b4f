//! Tests how the JSON gateway reads the token of a request from its HTTP headers.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::matrix::WRONG_TOKEN;
use crate::server::{PASSWORD, Program, Server};

/// Sets of HTTP headers. `<token>` stands for the token of the user `exact`, and `<wrong>` for a
/// token that was never issued.
const HEADERS: [&[&str]; 15] = [
    &[],
    &["Authorization: <token>"],
    &["authorization: <token>"],
    &["Authorization: Bearer <token>"],
    &["Authorization: bearer <token>"],
    &["Authorization: Basic <token>"],
    &["Authorization: <wrong>"],
    &["Authorization:"],
    &["Token: <token>"],
    &["Grpc-Metadata-Token: <token>"],
    &["Grpc-Metadata-Token:"],
    &["Grpc-Metadata-Authorization: <token>"],
    &["Authorization: <token>", "Grpc-Metadata-Token: <wrong>"],
    &["Authorization: <wrong>", "Grpc-Metadata-Token: <token>"],
    &["Authorization: <token>", "Authorization: <wrong>"],
];

/// Paths and bodies of requests. Each request is sent once without a token and once with a token.
/// `<k/1>` in a body stands for the key `k/1` in base64.
const REQUESTS: [(&str, &str); 16] = [
    ("/v3/kv/range", r#"{"key": "<z>"}"#),
    ("/v3/kv/put", r#"{"key": "<k/1>", "value": "<1>"}"#),
    ("/v3/kv/txn", "{}"),
    ("/v3/kv/compaction", r#"{"revision": "1000000"}"#),
    ("/v3/watch", r#"{"create_request": {"key": "<k/1>"}}"#),
    ("/v3/watch", r#"{"create_request": {"key": "<z>"}}"#),
    ("/v3/lease/keepalive", r#"{"ID": "4711"}"#),
    ("/v3/lease/keepalive", r#"{"ID": "103"}"#),
    ("/v3/lease/leases", "{}"),
    ("/v3/lock/lock", r#"{"name": "<z-lock>", "lease": "100"}"#),
    ("/v3/election/observe", r#"{"name": "<z-vote>"}"#),
    ("/v3/maintenance/snapshot", "{}"),
    ("/v3/maintenance/hashkv", "{}"),
    ("/v3/auth/status", "{}"),
    ("/v3/auth/user/list", "{}"),
    ("/v3/auth/user/get", r#"{"name": "exact"}"#),
];

/// Returns the text of `gateway-3.7.1.txt`: one line for each request, and its response below it.
pub(crate) async fn gateway(program: &Program) -> String {
    let server = Server::start(program, &[]).await;
    let token = server.token_of("exact");
    let mut text = String::new();
    let range = ("/v3/kv/range", r#"{"key": "<k/1>", "count_only": true}"#);
    let log_in = |password| format!(r#"{{"name": "spare", "password": "{password}"}}"#);
    let (right, wrong) = (log_in(PASSWORD), log_in("x"));
    let mut asked: Vec<(&str, &str, &[&str])> =
        HEADERS.iter().map(|headers| (range.0, range.1, *headers)).collect();
    for (path, body) in REQUESTS {
        asked.extend([(path, body, &[][..]), (path, body, &["Authorization: <token>"])]);
    }
    for body in [&right, &wrong] {
        asked.push(("/v3/auth/authenticate", body, &["Authorization: <wrong>"]));
    }
    for (path, body, headers) in asked {
        let sent = headers.iter().map(|header| {
            let header = header.replace("<token>", &token).replace("<wrong>", WRONG_TOKEN);
            format!("{header}\r\n")
        });
        let sent: String = sent.collect();
        let answer = post(server.address(), path, &with_keys(body), &sent).await;
        text += &format!("{path} {body} [{}]\n   {answer}\n\n", headers.join(", "));
    }
    text
}

/// Replaces each text in angle brackets by its base64 form, without the brackets.
fn with_keys(body: &str) -> String {
    let mut parts = body.split(['<', '>']);
    let mut written = parts.next().unwrap_or_default().to_owned();
    while let (Some(key), Some(rest)) = (parts.next(), parts.next()) {
        written += &STANDARD.encode(key);
        written += rest;
    }
    written
}

async fn post(address: &str, path: &str, body: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let len = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = read_until(&mut stream, "\r\n\r\n").await;
    let fields: BTreeMap<String, String> = head
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let len = match fields.get("content-length") {
        Some(len) => len.parse().unwrap(),
        // A response without a content length is sent in chunks. The first chunk is the first
        // message of a stream.
        None => usize::from_str_radix(read_until(&mut stream, "\r\n").await.trim(), 16).unwrap(),
    };
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await.unwrap();
    let status = head.split(' ').nth(1).unwrap();
    let kind = fields.get("content-type").map_or("no type", String::as_str);
    let body = shown(&String::from_utf8(body).unwrap());
    format!("{status} {kind} {body}").trim_end().to_owned()
}

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = String::new();
    while !read.ends_with(end) {
        read.push(stream.read_u8().await.unwrap().into());
    }
    read
}

/// Returns a body without the fields that differ in each run.
fn shown(body: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(body) else { return body.to_owned() };
    remove_changing(&mut value);
    value.to_string()
}

fn remove_changing(value: &mut Value) {
    let Value::Object(fields) = value else { return };
    for name in ["header", "token", "hash", "hash_revision", "authRevision"] {
        fields.remove(name);
    }
    fields.values_mut().for_each(remove_changing);
}
