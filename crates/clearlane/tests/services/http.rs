//! Tests of the port for clients with requests other than gRPC. The requests are written by hand
//! and sent over real sockets.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::http_support::{Reply, Running, Whole, connect};

#[test]
fn health_is_told_in_etcds_words() {
    let running = Running::start();
    let cases = [
        ("GET /health", 200, r#"{"health":"true","reason":""}"#),
        ("GET /health?serializable=true", 200, r#"{"health":"true","reason":""}"#),
        ("POST /health", 405, "Method Not Allowed\n"),
        ("GET /livez", 200, "ok\n"),
        ("GET /livez?verbose", 200, "[+]serializable_read ok\nok\n"),
        ("GET /livez/serializable_read", 200, "ok\n"),
        ("GET /livez/linearizable_read", 404, "404 page not found\n"),
        ("GET /readyz", 200, "ok\n"),
        ("GET /readyz/non_learner?verbose=1", 200, "[+]non_learner ok\nok\n"),
        (
            "GET /readyz?verbose&exclude=linearizable_read",
            200,
            "[+]data_corruption ok\n[+]serializable_read ok\n[+]non_learner ok\nok\n",
        ),
        ("POST /readyz", 405, "Method Not Allowed\n"),
        ("GET /debug/pprof/", 404, "404 page not found\n"),
        ("GET /debug/pprof/heap", 404, "404 page not found\n"),
        ("POST /debug/vars", 405, "Method Not Allowed\n"),
        ("GET /nothing", 404, "404 page not found\n"),
        ("GET /", 404, "404 page not found\n"),
    ];
    for (request, status, body) in cases {
        let reply = running.ask(request, "", "");
        assert_eq!((reply.status, &reply.body[..]), (status, body), "{request}");
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"), "{request}");
        assert_eq!(reply.header("access-control-allow-origin"), Some("*"), "{request}");
    }
    let reply = running.ask("OPTIONS /v3/kv/put", "Origin: http://somewhere\r\n", "");
    assert_eq!((reply.status, &reply.body[..]), (200, ""));
    let methods = reply.header("access-control-allow-methods");
    assert_eq!(methods, Some("POST, GET, OPTIONS, PUT, DELETE"));
    let headers = reply.header("access-control-allow-headers");
    assert_eq!(headers, Some("accept, content-type, authorization"));
    let reply = running.ask("GET /version", "", "");
    assert!(reply.body.starts_with(r#"{"etcdserver":"3.7.1","etcdcluster":""#), "{}", reply.body);
    assert_eq!(reply.header("content-type"), Some("application/json"));
}

#[test]
fn a_host_or_an_origin_that_is_not_in_the_list_is_turned_away() {
    let running = Running::open_to(&["localhost", "::1"], &["http://good"]);
    let reply = running.ask("GET /health", "", "");
    assert_eq!(reply.status, 200, "the requests of these tests name localhost");
    assert_eq!(reply.header("access-control-allow-origin"), None);
    for host in ["evil:1", "", "[::2]:1"] {
        let head = format!("GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(Reply::parse(&running.raw(head.as_bytes())).status, 421, "{host}");
    }
    let head = b"GET /health HTTP/1.1\r\nHost: [::1]:9\r\nConnection: close\r\n\r\n";
    assert_eq!(Reply::parse(&running.raw(head)).status, 200);
    let good = running.ask("GET /health", "Origin: http://good\r\n", "");
    assert_eq!(good.header("access-control-allow-origin"), Some("http://good"));
    let bad = running.ask("GET /health", "Origin: http://bad\r\n", "");
    assert_eq!(bad.header("access-control-allow-origin"), None);
}

#[test]
fn the_gateway_speaks_etcds_json() {
    let running = Running::start();
    let header = |revision: u32| {
        let ids = r#""cluster_id":"14841639068965178418","member_id":"10276657743932975437""#;
        format!(r#""header":{{{ids},"revision":"{revision}","raft_term":"2"}}"#)
    };
    let kv = |created, modified, version, value| {
        format!(
            r#"{{"key":"YQ==","create_revision":"{created}","mod_revision":"{modified}","version":"{version}","value":"{value}"}}"#
        )
    };
    let cases = [
        ("put", r#"{"key":"YQ==","value":"MQ=="}"#, format!("{{{}}}", header(2))),
        (
            "put",
            r#"{"key":"YQ==","value":"Mg==","prevKv":true,"bogus":[{}]}"#,
            format!(r#"{{{},"prev_kv":{}}}"#, header(3), kv(2, 2, 1, "MQ==")),
        ),
        (
            "range",
            r#"{"key":"AA","range_end":"AA==","limit":"1","sort_order":"DESCEND","sort_target":3}"#,
            format!(r#"{{{},"kvs":[{}],"count":"1"}}"#, header(3), kv(2, 3, 2, "Mg==")),
        ),
        (
            "txn",
            r#"{"compare":[{"target":"CREATE","key":"YQ==","createRevision":"2"}],
                "success":[{"requestPut":{"key":"Yg==","value":"MQ=="}}]}"#,
            format!(
                r#"{{{},"succeeded":true,"responses":[{{"response_put":{{"header":{{"revision":"4"}}}}}}]}}"#,
                header(4)
            ),
        ),
        ("deleterange", r#"{"key":"Yg=="}"#, format!(r#"{{{},"deleted":"1"}}"#, header(5))),
        ("compaction", r#"{"revision":2}"#, format!("{{{}}}", header(5))),
    ];
    for (rpc, request, answer) in cases {
        let reply = running.ask(&format!("POST /v3/kv/{rpc}"), "", request);
        assert_eq!((reply.status, &reply.body), (200, &answer), "{rpc} {request}");
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(reply.header("grpc-metadata-content-type"), Some("application/grpc"));
    }
    let old = running.ask("POST /v3beta/kv/range", "", r#"{"key":"YQ=="}"#);
    assert_eq!(old.status, 200);
}

/// A large response is sent in chunks, and its text must be complete. The length of the values is
/// not a multiple of the size of a chunk.
#[test]
fn a_large_answer_is_the_same_text_in_chunks() {
    let running = Running::start();
    let value = |number: usize| "QUFB".repeat(100_000 + number);
    for number in 0..5 {
        let put = format!(r#"{{"key":"YWE{number}","value":"{}"}}"#, value(number));
        assert_eq!(running.ask("POST /v3/kv/put", "", &put).status, 200);
    }
    let ids = r#""cluster_id":"14841639068965178418","member_id":"10276657743932975437""#;
    let header = format!(r#""header":{{{ids},"revision":"6","raft_term":"2"}}"#);
    let kvs = (0..5).map(|number| {
        let revision = number + 2;
        let revisions = format!(r#""create_revision":"{revision}","mod_revision":"{revision}""#);
        let value = value(number);
        format!(r#"{{"key":"YWE{number}",{revisions},"version":"1","value":"{value}"}}"#)
    });
    let kvs = kvs.collect::<Vec<_>>().join(",");

    let asked = r#"{"key":"AA==","range_end":"AA=="}"#;
    let reply = running.ask("POST /v3/kv/range", "", asked);
    assert_eq!((reply.status, reply.header("transfer-encoding")), (200, Some("chunked")));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("grpc-metadata-content-type"), Some("application/grpc"));
    assert!(reply.body == format!(r#"{{{header},"kvs":[{kvs}],"count":"5"}}"#));

    let sorted =
        r#"{"key":"AA==","range_end":"AA==","sort_order":"ASCEND","sort_target":"VERSION"}"#;
    assert!(running.ask("POST /v3/kv/range", "", sorted).body == reply.body);

    let ranges = format!(r#"{{"success":[{{"request_range":{asked}}}]}}"#);
    let txn = running.ask("POST /v3/kv/txn", "", &ranges);
    let inner = format!(r#"{{"header":{{"revision":"6"}},"kvs":[{kvs}],"count":"5"}}"#);
    let responses = format!(r#""succeeded":true,"responses":[{{"response_range":{inner}}}]"#);
    assert!(txn.body == format!("{{{header},{responses}}}"), "{}", &txn.body[..300]);

    // HTTP/1.0 has no chunks, so the connection closes after the response.
    let length = asked.len();
    let head = format!("POST /v3/kv/range HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{asked}");
    let old = Reply::parse(&running.raw(head.as_bytes()));
    assert_eq!((old.status, old.header("transfer-encoding")), (200, None));
    assert!(old.body == reply.body);
}

#[test]
fn a_connection_goes_on_behind_a_large_answer() {
    let running = Running::start();
    let put = format!(r#"{{"key":"YQ==","value":"{}"}}"#, "QUFB".repeat(200_000));
    assert_eq!(running.ask("POST /v3/kv/put", "", &put).status, 200);
    let ask = |asked: &str, more: &str| {
        let length = asked.len();
        let head = "POST /v3/kv/range HTTP/1.1\r\nHost: localhost:1\r\n";
        format!("{head}{more}Content-Length: {length}\r\n\r\n{asked}")
    };
    let large = ask(r#"{"key":"YQ=="}"#, "");
    let small = ask(r#"{"key":"YQ==","count_only":true}"#, "Connection: close\r\n");
    let replies = running.raw(format!("{large}{small}").as_bytes());
    let replies = String::from_utf8(replies).unwrap();
    let (first, second) = replies.split_once("\r\n0\r\n\r\n").unwrap();
    let first = Reply::parse(format!("{first}\r\n0\r\n\r\n").as_bytes());
    assert!(first.body.ends_with(r#"QUFB"}],"count":"1"}"#));
    let second = Reply::parse(second.as_bytes());
    assert!(second.body.ends_with(r#","count":"1"}"#), "{second:?}");
    // A small response has a known length.
    assert_eq!(second.header("content-length"), Some(&second.body.len().to_string()[..]));
}

#[test]
fn the_gateway_refuses_as_etcd_does() {
    let running = Running::start();
    let error_body =
        |code: u32, message: &str| format!(r#"{{"code":{code},"message":"{message}"}}"#);
    let no_key = error_body(3, "etcdserver: key is not provided");
    let future = error_body(11, "etcdserver: mvcc: required revision is a future revision");
    let cases = [
        ("POST /v3/kv/range", "{}", 400, no_key.clone()),
        ("POST /v3/kv/range", "", 400, no_key),
        ("POST /v3/kv/range", r#"{"key":"YQ==","revision":99}"#, 400, future),
        ("GET /v3/kv/range", "", 501, error_body(12, "Method Not Allowed")),
        ("POST /v3/kv/nothing", "{}", 404, error_body(5, "Not Found")),
        ("POST /v3/kv/rangestream", "{}", 404, error_body(5, "Not Found")),
        ("POST /v3/", "{}", 404, error_body(5, "Not Found")),
    ];
    for (request, body, status, answer) in cases {
        let reply = running.ask(request, "", body);
        assert_eq!((reply.status, &reply.body), (status, &answer), "{request} {body}");
    }
    let not_base64 = running.ask("POST /v3/kv/range", "", r#"{"key":"!!"}"#);
    assert_eq!(not_base64.status, 400);
    assert!(
        not_base64.body.starts_with(r#"{"code":3,"message":"proto: (line 1:"#),
        "{not_base64:?}"
    );
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for malformed in ["not json", "{", r#"{"key":"YQ=="} {}"#, &deep, r#"{"a":"#, "\u{0}"] {
        let reply = running.ask("POST /v3/kv/range", "", malformed);
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(reply.body.starts_with(r#"{"code":3,"#), "{reply:?}");
    }
    let unserved = running.ask("POST /v3/lock/lock", "", "{}");
    assert_eq!((unserved.status, &unserved.body), (501, &error_body(12, "")));
}

#[test]
fn streams_are_lines_and_end_with_what_went_wrong() {
    let running = Running::start();
    let reply = running.ask("POST /v3/lease/keepalive", "", r#"{"ID":7} {"ID":"8"}"#);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(
        reply.body,
        "{\"result\":{\"ID\":\"7\",\"TTL\":\"60\"}}\n{\"result\":{\"ID\":\"8\",\"TTL\":\"60\"}}\n"
    );
    let reply = running.ask("POST /v3/lease/keepalive", "", r#"{"ID":7}{"ID":13}{"ID":8}"#);
    assert_eq!(
        (reply.status, &reply.body[..]),
        (
            200,
            "{\"result\":{\"ID\":\"7\",\"TTL\":\"60\"}}\n{\"error\":{\"code\":5,\"message\":\"not that one\"}}\n"
        )
    );
    let reply = running.ask("POST /v3/lease/keepalive", "", r#"{"ID":13}"#);
    let alone = "{\"error\":{\"code\":5,\"message\":\"not that one\"}}\n";
    assert_eq!((reply.status, &reply.body[..]), (404, alone), "nothing came before");
    for malformed in ["[", "{", "nonsense", "}", r#"{"ID":"x"}"#] {
        let reply = running.ask("POST /v3/lease/keepalive", "", malformed);
        assert!(matches!(reply.status, 400 | 499), "{malformed}: {reply:?}");
    }
}

#[test]
fn a_stream_goes_both_ways_at_a_time() {
    let running = Running::start();
    let mut connection = running.connect();
    connection
        .write_all(
            b"POST /v3/lease/keepalive HTTP/1.1\r\nHost: localhost\r\n\
              Transfer-Encoding: chunked\r\n\r\n",
        )
        .unwrap();
    let mut seen = String::new();
    for id in 1..=3 {
        let message = format!("{{\"ID\":{id}}}");
        // The message is sent in single bytes. It is complete when its last brace has arrived.
        for byte in message.bytes() {
            connection.write_all(&[b'1', b'\r', b'\n', byte, b'\r', b'\n']).unwrap();
        }
        let expected = format!("{{\"result\":{{\"ID\":\"{id}\",\"TTL\":\"60\"}}}}\n");
        while !seen.ends_with(&format!("{expected}\r\n")) {
            let mut piece = [0; 512];
            let length = connection.read(&mut piece).unwrap();
            assert!(length > 0, "closed after {seen}");
            seen.push_str(std::str::from_utf8(&piece[..length]).unwrap());
        }
    }
    connection.write_all(b"0\r\n\r\n").unwrap();
    let mut rest = String::new();
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    while !rest.ends_with("0\r\n\r\n") {
        let mut piece = [0; 512];
        let length = connection.read(&mut piece).unwrap();
        assert!(length > 0, "closed after {rest}");
        rest.push_str(std::str::from_utf8(&piece[..length]).unwrap());
    }
}

#[test]
fn a_token_and_marked_headers_are_metadata_of_the_call() {
    let running = Running::start();
    let headers = "Authorization: secret\r\nGrpc-Metadata-Token: other\r\n\
                   Grpc-Metadata-Te: x\r\nX-Else: 1\r\n";
    let reply = running.ask("POST /v3/lease/timetolive", headers, "{}");
    assert_eq!(reply.status, 401);
    let message = r#"{"code":16,"message":"authorization=secret token=other x-else="}"#;
    assert_eq!(reply.body, message);
}

#[test]
fn what_is_no_request_costs_no_other() {
    let running = Running::start();
    let garbage: [&[u8]; 5] = [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v3/kv/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    ];
    for bytes in garbage {
        let reply = running.raw(bytes);
        let reply = String::from_utf8_lossy(&reply);
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 4"), "{reply}");
    }
    let huge = format!("X-Huge: {}\r\n", "x".repeat(1 << 20));
    let mut connection = running.connect();
    // The server may close the connection during the write, so an error is ignored.
    let _ = connection.write_all(format!("GET /health HTTP/1.1\r\n{huge}\r\n").as_bytes());
    let mut reply = Vec::new();
    let _ = connection.read_to_end(&mut reply);
    let reply = String::from_utf8_lossy(&reply);
    assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 431"), "{reply}");
    assert_eq!(running.ask("GET /health", "", "").status, 200);
}

#[test]
fn a_body_has_a_limit() {
    let running = Running::start();
    let value = "A".repeat(5 << 20);
    let put = format!(r#"{{"key":"YQ==","value":"{value}"}}"#);
    let reply = running.ask("POST /v3/kv/put", "", &put);
    assert_eq!(reply.status, 429, "{reply:?}");
    // This body is within the gateway's limit for JSON, but it results in a request that is too
    // large.
    let value = "AAAA".repeat(600 << 10);
    let put = format!(r#"{{"key":"YQ==","value":"{value}"}}"#);
    let reply = running.ask("POST /v3/kv/put", "", &put);
    assert_eq!(reply.status, 400, "{reply:?}");
    assert_eq!(reply.body, r#"{"code":3,"message":"etcdserver: request is too large"}"#);
    // The message of this stream has no end, so the server must reject it at a limit.
    let endless = format!(r#"{{"ID":"{}"#, "7".repeat(5 << 20));
    let reply = running.ask("POST /v3/lease/keepalive", "", &endless);
    assert_eq!(reply.status, 429, "{reply:?}");
    assert_eq!(running.ask("GET /health", "", "").status, 200);
}

#[test]
fn requests_in_one_piece_are_answered_in_their_order() {
    let running = Running::start();
    let mut together = String::new();
    for key in ["YQ==", "Yg==", "Yw=="] {
        let body = format!(r#"{{"key":"{key}"}}"#);
        together.push_str(&format!(
            "POST /v3/kv/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
    }
    together.push_str("GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let replies = String::from_utf8(running.raw(together.as_bytes())).unwrap();
    let order: Vec<usize> =
        ["\"revision\":\"2\"", "\"revision\":\"3\"", "\"revision\":\"4\"", "ok\n"]
            .into_iter()
            .map(|words| replies.find(words).unwrap_or_else(|| panic!("{words} in {replies}")))
            .collect();
    assert!(order.is_sorted(), "{replies}");
}

/// The page of metrics is rendered only once for all requests that wait for it. A request must get
/// the page even if other clients close their connections while they wait for the same page.
#[test]
fn many_pages_of_metrics_at_once_are_few() {
    let running = Running::start();
    let mut connection = running.connect();
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let others: Vec<_> = (0..20).map(|_| running.connect()).collect();
    for mut other in &others {
        other.write_all(request.as_bytes()).unwrap();
    }
    connection
        .write_all(request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut page = String::new();
    connection.read_to_string(&mut page).unwrap();
    assert!(page.contains("\netcd_server_has_leader 1\n"), "{page}");
    // A request that is dropped while it waits does not prevent the page for others.
    drop(others);
    assert!(running.ask("GET /metrics", "", "").body.contains("\netcd_server_has_leader 1\n"));
}

/// One client has closed its side of the connection after its request, and still gets the response.
/// Other clients close the whole connection during their request, and the server must still serve
/// new clients.
#[test]
fn half_a_connection_is_enough_for_an_answer() {
    let running = Running::without_gateway();
    let mut connection = running.connect();
    connection.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    connection.shutdown(Shutdown::Write).unwrap();
    let mut reply = String::new();
    connection.read_to_string(&mut reply).unwrap();
    assert!(reply.ends_with("\r\n\r\nok\n"), "{reply}");
    let head = "POST /v3/kv/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{";
    for cut in [head, "GE"] {
        let mut connection = running.connect();
        connection.write_all(cut.as_bytes()).unwrap();
    }
    assert_eq!(running.ask("GET /health", "", "").status, 200);
    assert_eq!(running.ask("POST /v3/kv/put", "", "{}").status, 404, "the API is elsewhere");
}

/// A stream ends when its client closes the connection, even if the server sends nothing on it. The
/// client has sent the whole request, a part of it, or the request and one more byte.
#[test]
fn a_stream_without_a_reader_ends() {
    let running = Running::start();
    for (gone, body) in
        ["8\r\n{\"ID\":7}\r\n0\r\n\r\n", "8\r\n{\"ID\":7}\r\n", "8\r\n{\"ID\":7}\r\n0\r\n\r\nG"]
            .into_iter()
            .enumerate()
    {
        let mut connection = running.connect();
        let head = "POST /v3/lease/keepalive HTTP/1.1\r\nHost: localhost\r\n\
                    Grpc-Metadata-Never-Ends: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
        connection.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut seen = String::new();
        while !seen.contains("result") {
            let mut piece = [0; 512];
            let length = connection.read(&mut piece).unwrap();
            seen.push_str(std::str::from_utf8(&piece[..length]).unwrap());
        }
        drop(connection);
        let labels = "grpc_method=\"LeaseKeepAlive\",grpc_service=\"etcdserverpb.Lease\"";
        let cancelled = format!(
            "grpc_server_handled_total{{grpc_code=\"Canceled\",{labels},grpc_type=\"bidi_stream\"}} {}\n",
            gone + 1
        );
        let begin = Instant::now();
        while !running.ask("GET /metrics", "", "").body.contains(&cancelled) {
            assert!(begin.elapsed() < Duration::from_secs(60), "the stream goes on: {body:?}");
            std::thread::yield_now();
        }
    }
}

#[test]
fn alarms_make_a_member_ill() {
    let whole = Whole::start();
    let raise = |alarm: &str, action: &str| {
        let body = format!(r#"{{"action":"{action}","alarm":"{alarm}","memberID":"7"}}"#);
        assert_eq!(whole.ask("POST /v3/maintenance/alarm", &body).status, 200);
    };
    let health_reply = |request: &str| {
        let reply = whole.ask(request, "");
        (reply.status, reply.body)
    };
    raise("NOSPACE", "ACTIVATE");
    let no_space = "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n".to_owned();
    assert_eq!(health_reply("GET /health"), (503, no_space));
    let well = r#"{"health":"true","reason":""}"#.to_owned();
    assert_eq!(health_reply("GET /health?exclude=NOSPACE"), (200, well.clone()));
    assert_eq!(health_reply("GET /readyz"), (200, "ok\n".to_owned()), "a full disk is no reason");
    raise("CORRUPT", "ACTIVATE");
    let report = "[-]data_corruption failed: alarm activated: CORRUPT\n\
                  [+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\n\
                  \n";
    assert_eq!(health_reply("GET /readyz"), (503, report.to_owned()));
    assert_eq!(health_reply("GET /livez"), (200, "ok\n".to_owned()));
    let page = whole.ask("GET /metrics", "").body;
    let alarm = "etcd_debugging_server_alarms{alarm_type=\"CORRUPT\",server_id=\"7\"} 1\n";
    assert!(page.contains(alarm));
    raise("CORRUPT", "DEACTIVATE");
    raise("NOSPACE", "DEACTIVATE");
    assert_eq!(health_reply("GET /health"), (200, well));
}

/// The client ends the body of its request immediately, as curl does, and the watch continues.
#[test]
fn a_watch_comes_line_by_line() {
    let whole = Whole::start();
    let mut connection = connect(whole.address);
    let body = r#"{"create_request":{"key":"YQ=="}}"#;
    let head = "POST /v3/watch HTTP/1.1\r\nHost: localhost\r\nContent-Length:";
    connection.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    let mut seen = String::new();
    let mut read_until = |words: &str| {
        while !seen.contains(words) {
            let mut piece = [0; 1024];
            let length = connection.read(&mut piece).unwrap();
            assert!(length > 0, "closed after {seen}");
            seen.push_str(std::str::from_utf8(&piece[..length]).unwrap());
        }
    };
    read_until("\"created\":true}}\n");
    for value in ["MQ==", "Mg=="] {
        let put = format!(r#"{{"key":"YQ==","value":"{value}"}}"#);
        assert_eq!(whole.ask("POST /v3/kv/put", &put).status, 200);
        read_until(&format!("\"value\":\"{value}\"}}}}]}}}}\n"));
    }
    assert!(whole.ask("GET /metrics", "").body.contains("etcd_debugging_mvcc_watcher_total 1\n"));
}
