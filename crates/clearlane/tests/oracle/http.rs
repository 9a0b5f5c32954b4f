//! A minimal HTTP/1.1 client for single requests.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::recording::HttpAnswer;
use crate::wire::PATIENCE;

/// Sends a request on a new connection, which the server closes after its response.
pub(crate) async fn ask(address: SocketAddr, line: &str, body: &str) -> Result<HttpAnswer, String> {
    let request = format!(
        "{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let asked = async {
        let mut connection = TcpStream::connect(address).await?;
        connection.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(PATIENCE, asked).await.map_err(|_| "no answer")?;
    let answer = answer.map_err(|error| error.to_string())?;
    let answer = String::from_utf8(answer).map_err(|error| error.to_string())?;
    parse(&answer).ok_or_else(|| format!("not HTTP: {answer:?}"))
}

fn parse(answer: &str) -> Option<HttpAnswer> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let (first, headers) = head.split_once("\r\n")?;
    let status = first.strip_prefix("HTTP/1.1 ")?.split(' ').next()?.parse().ok()?;
    let header = |name: &str| {
        headers.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    let body = match header("transfer-encoding") {
        Some("chunked") => joined(body)?,
        _ => body.to_owned(),
    };
    let content_type = header("content-type").unwrap_or_default().to_owned();
    Some(HttpAnswer { status, content_type, body })
}

/// Joins the chunks of a body. Each chunk follows its length in hex, and the last chunk is empty.
/// Returns `None` if the body is incomplete or malformed.
fn joined(mut chunks: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (len, rest) = chunks.split_once("\r\n")?;
        let len = usize::from_str_radix(len, 16).ok()?;
        if len == 0 {
            return Some(body);
        }
        body.push_str(rest.get(..len)?);
        chunks = rest.get(len..)?.strip_prefix("\r\n")?;
    }
}
