//! PostgreSQL: simple queries, without a password.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use super::{connect, odd};

/// A connection as user `postgres` to the database `postgres`.
#[derive(Debug)]
pub struct Postgres {
    stream: TcpStream,
}

impl Postgres {
    /// Connects to a port on loopback.
    ///
    /// # Errors
    /// When nobody answers within five seconds, or the server is still starting.
    pub fn connect(port: u16) -> io::Result<Self> {
        let mut connection = Self { stream: connect(port)? };
        let parameters = b"\x00\x03\x00\x00user\0postgres\0database\0postgres\0\0";
        connection.send(None, parameters)?;
        connection.until_ready()?;
        Ok(connection)
    }

    /// Runs SQL; returns the first column of every row, empty for NULL.
    ///
    /// # Errors
    /// With the server's message, or when the connection fails or is silent for five seconds.
    pub fn query(&mut self, sql: &str) -> io::Result<Vec<String>> {
        self.send(Some(b'Q'), format!("{sql}\0").as_bytes())?;
        self.until_ready()
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let mut message: Vec<u8> = kind.into_iter().collect();
        message.extend(u32::try_from(body.len() + 4).map_err(odd)?.to_be_bytes());
        message.extend(body);
        self.stream.write_all(&message)
    }

    /// Reads messages until the server waits for the next query.
    fn until_ready(&mut self) -> io::Result<Vec<String>> {
        let mut rows = Vec::new();
        let mut error = None;
        loop {
            let mut head = [0; 5];
            if let Err(closed) = self.stream.read_exact(&mut head) {
                // While it starts or stops, the server says so and hangs up.
                return Err(error.unwrap_or(closed));
            }
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
            let mut body = vec![0; usize::try_from(length).map_err(odd)?.saturating_sub(4)];
            self.stream.read_exact(&mut body)?;
            match head[0] {
                b'D' => rows.push(first_column(&body)),
                b'E' => error = Some(odd(message(&body))),
                b'R' if body != [0; 4] => return Err(odd("the server wants a password")),
                b'Z' => return error.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }
}

/// A row is the count of its columns, then a length and the bytes for each.
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
