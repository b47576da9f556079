//! PostgreSQL: simple queries.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use super::scram::Scram;
use super::{connect, unexpected};
use crate::secret::{self, Secret};

/// The kinds of authentication messages.
const SASL: u32 = 10;
const SASL_CONTINUE: u32 = 11;
const SASL_FINAL: u32 = 12;

/// A connection as user `postgres` to the database `postgres`.
#[derive(Debug)]
pub struct Postgres {
    stream: TcpStream,
}

impl Postgres {
    /// Connects to a port on loopback, with the password of the cluster that this process runs
    /// there.
    ///
    /// # Errors
    /// When there is no response within five seconds, or the server is still starting.
    pub fn connect(port: u16) -> io::Result<Self> {
        Self::log_in(port, secret::of(port).as_ref().map(Secret::as_str))
    }

    /// Connects with this password, for example through a pooler that is no
    /// [`Proxy`](crate::Proxy).
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn with_password(port: u16, password: &str) -> io::Result<Self> {
        Self::log_in(port, Some(password))
    }

    /// Connects without a password, as a foreign client would.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and when the server requires a password.
    pub fn anonymous(port: u16) -> io::Result<Self> {
        Self::log_in(port, None)
    }

    fn log_in(port: u16, password: Option<&str>) -> io::Result<Self> {
        let mut connection = Self { stream: connect(port)? };
        let parameters = b"\x00\x03\x00\x00user\0postgres\0database\0postgres\0\0";
        connection.send(None, parameters)?;
        let nonce = Secret::new()?;
        let scram = Scram::new(password.unwrap_or_default(), nonce.as_str().to_owned());
        loop {
            let body = match connection.receive()? {
                (b'R', body) => body,
                (b'E', body) => return Err(unexpected(message(&body))),
                _ => continue,
            };
            match (body.first_chunk().copied().map(u32::from_be_bytes), password) {
                (Some(0), _) => break,
                (Some(SASL), Some(_)) => {
                    let first = scram.first();
                    let length = u32::try_from(first.len()).map_err(unexpected)?.to_be_bytes();
                    let parts = [b"SCRAM-SHA-256\0", &length[..], first.as_bytes()];
                    connection.send(Some(b'p'), &parts.concat())?;
                }
                (Some(SASL_CONTINUE), Some(_)) => {
                    let proof = scram.proof(&String::from_utf8_lossy(&body[4..]))?;
                    connection.send(Some(b'p'), proof.as_bytes())?;
                }
                (Some(SASL_FINAL), Some(_)) => {}
                _ => return Err(unexpected("the server wants a password")),
            }
        }
        connection.until_ready()?;
        Ok(connection)
    }

    /// Runs SQL. Returns the first column of every row, empty for NULL.
    ///
    /// # Errors
    /// With the server's message, or when the connection fails or there is no response for five
    /// seconds.
    pub fn query(&mut self, sql: &str) -> io::Result<Vec<String>> {
        self.send(Some(b'Q'), format!("{sql}\0").as_bytes())?;
        self.until_ready()
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let mut message: Vec<u8> = kind.into_iter().collect();
        message.extend(u32::try_from(body.len() + 4).map_err(unexpected)?.to_be_bytes());
        message.extend(body);
        self.stream.write_all(&message)
    }

    /// Reads messages until the server waits for the next query.
    fn until_ready(&mut self) -> io::Result<Vec<String>> {
        let mut rows = Vec::new();
        let mut error = None;
        loop {
            let (kind, body) = match self.receive() {
                Ok(received) => received,
                // A server that shuts down sends an error and closes the connection.
                Err(closed) => return Err(error.unwrap_or(closed)),
            };
            match kind {
                b'D' => rows.push(first_column(&body)),
                b'E' => error = Some(unexpected(message(&body))),
                b'Z' => return error.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    fn receive(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; usize::try_from(length).map_err(unexpected)?.saturating_sub(4)];
        self.stream.read_exact(&mut body)?;
        Ok((head[0], body))
    }
}

/// The first column of a row, which is the count of its columns, then a length and bytes for each.
fn first_column(body: &[u8]) -> String {
    let length = body.get(2..6).and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes);
    let length = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
    let bytes = body.get(6..6 + length).unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// The text of an error: the field `M` among fields that end with a zero byte.
fn message(body: &[u8]) -> String {
    let fields = body.split(|&byte| byte == 0);
    let text = fields.filter_map(|field| field.strip_prefix(b"M")).next().unwrap_or(b"an error");
    String::from_utf8_lossy(text).into_owned()
}
