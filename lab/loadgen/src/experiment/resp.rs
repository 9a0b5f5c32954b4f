//! The part of Redis' protocol that the experiment needs. A command is an array of strings. A reply
//! is a status, an error, a number, a string, or an array of these.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{Error, Result};

/// Maximum length of a string or array. A longer one cannot be a reply to the commands that are
/// sent here.
const LENGTH_MAX: usize = 64 << 20;
/// Maximum time to wait for a reply. A Redis process that is stopped accepts connections but does
/// not reply.
const ANSWER_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// A string, a status, or a number as text. `None` if there is no such key.
    Text(Option<Vec<u8>>),
    List(Vec<Reply>),
}

#[derive(Debug)]
pub(super) struct RedisConnection {
    socket: BufReader<TcpStream>,
    /// The encoded command. It is kept so that its memory can be used again.
    buffer: Vec<u8>,
}

impl RedisConnection {
    /// Opens a connection. `address` is HOST:PORT.
    pub(super) async fn open(address: &str) -> Result<RedisConnection> {
        let failed = |error: io::Error| {
            Error::Server(format!("--redis {address}: {error}; must be HOST:PORT"))
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no response");
        let socket = timeout(ANSWER_MAX, TcpStream::connect(address)).await;
        let socket = socket.unwrap_or_else(|_| Err(late())).map_err(failed)?;
        socket.set_nodelay(true).map_err(failed)?;
        Ok(RedisConnection { socket: BufReader::new(socket), buffer: Vec::new() })
    }

    /// Sends a command. Fails if Redis replies with an error.
    pub(super) async fn call(&mut self, words: &[&[u8]]) -> Result<Reply> {
        self.buffer.clear();
        self.buffer.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            self.buffer.extend(format!("${}\r\n", word.len()).bytes());
            self.buffer.extend_from_slice(word);
            self.buffer.extend(b"\r\n");
        }
        let late =
            || Error::Server(format!("redis: no response within {} s", ANSWER_MAX.as_secs()));
        timeout(ANSWER_MAX, self.exchange()).await.map_err(|_| late())?
    }

    async fn exchange(&mut self) -> Result<Reply> {
        self.socket.write_all(&self.buffer).await.map_err(broken)?;
        self.read().await
    }

    /// Reads the next reply. It may also be a message of a subscription, which no command waits
    /// for.
    pub(super) async fn next_reply(&mut self) -> Result<Reply> {
        self.read().await
    }

    async fn read(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.socket.read_line(&mut line).await.map_err(broken)?;
        let Some(line) = line.strip_suffix("\r\n") else {
            return Err(Error::Server("redis: the connection was closed".to_owned()));
        };
        let (kind, rest) = line.split_at_checked(1).unwrap_or(("", ""));
        match (kind, rest.parse::<usize>()) {
            ("+", _) => Ok(Reply::Text(Some(rest.into()))),
            ("-", _) => Err(Error::Server(format!("redis: {rest}"))),
            (":", _) => Ok(Reply::Text(Some(rest.into()))),
            ("$", Err(_)) if rest == "-1" => Ok(Reply::Text(None)),
            ("$", Ok(length @ 0..=LENGTH_MAX)) => {
                let mut text = vec![0; length + 2];
                self.socket.read_exact(&mut text).await.map_err(broken)?;
                text.truncate(length);
                Ok(Reply::Text(Some(text)))
            }
            ("*", Ok(length @ 0..=LENGTH_MAX)) => {
                let mut list = Vec::new();
                for _ in 0..length {
                    list.push(Box::pin(self.read()).await?);
                }
                Ok(Reply::List(list))
            }
            _ => {
                let line = line.escape_debug();
                Err(Error::Server(format!("redis: `{line}` is not a response of Redis")))
            }
        }
    }
}

fn broken(error: io::Error) -> Error {
    Error::Server(format!("redis: {error}"))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const COMMAND: &[u8] = b"*2\r\n$3\r\nGET\r\n$5\r\na key\r\n";

    /// Runs a server that replies to [`COMMAND`] with `answer`. Returns the bytes that the server
    /// has received, and the client's result.
    async fn exchange(answer: &'static str) -> (Vec<u8>, Result<Reply>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it has one").to_string();
        let serving = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.expect("a connection");
            let mut received = vec![0; COMMAND.len()];
            socket.read_exact(&mut received).await.expect("the command");
            socket.write_all(answer.as_bytes()).await.expect("the answer");
            received
        });
        let mut connection = RedisConnection::open(&address).await.expect("it listens");
        let reply = connection.call(&[b"GET", b"a key"]).await;
        (serving.await.expect("it serves"), reply)
    }

    #[tokio::test]
    async fn commands_and_answers_are_as_redis_has_them() {
        let text = |text: &str| Reply::Text(Some(text.into()));
        for (answer, expected) in [
            ("+OK\r\n", Ok(text("OK"))),
            (":-12\r\n", Ok(text("-12"))),
            ("$4\r\na\r\nb\r\n", Ok(text("a\r\nb"))),
            ("$-1\r\n", Ok(Reply::Text(None))),
            ("*2\r\n:1\r\n$0\r\n\r\n", Ok(Reply::List(vec![text("1"), text("")]))),
            ("-ERR no\r\n", Err("redis: ERR no")),
            ("$99999999999\r\n", Err("redis: `$99999999999` is not a response of Redis")),
            ("HTTP/1.1 400\r\n", Err("redis: `HTTP/1.1 400` is not a response of Redis")),
            ("", Err("redis: the connection was closed")),
        ] {
            let (received, reply) = exchange(answer).await;
            assert_eq!(received, COMMAND);
            assert_eq!(reply.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
        }
    }
}
