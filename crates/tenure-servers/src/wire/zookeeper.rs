//! ZooKeeper: four-letter commands, and the part of the session protocol that a lock needs.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{connect, unexpected};

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const GET_DATA: i32 = 4;
const GET_CHILDREN: i32 = 8;
const CLOSE: i32 = -11;

/// Sends a four-letter command and returns the response.
///
/// # Errors
/// When the connection fails, or there is no response for five seconds.
pub fn four_letters(port: u16, word: &str) -> io::Result<String> {
    let mut stream = connect(port)?;
    stream.write_all(word.as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}

/// The `Mode:` that a serving node reports: `standalone`, `leader` or `follower`.
///
/// # Errors
/// When the node is down or does not serve, as without a quorum.
pub fn mode(port: u16) -> io::Result<String> {
    let response = four_letters(port, "srvr")?;
    let mode = response.lines().find_map(|line| line.strip_prefix("Mode: "));
    mode.map(str::to_owned).ok_or_else(|| unexpected(response.trim()))
}

/// A session. It sends no heartbeats: it expires with its timeout after the last call.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    xid: i32,
}

impl Session {
    /// Opens a session.
    ///
    /// # Errors
    /// When the node does not respond or does not serve.
    pub fn open(port: u16, timeout: Duration) -> io::Result<Self> {
        Self::connect(port, timeout, 0, &[0; 16])
    }

    /// Ends the session of another client, as that client would from a new connection. The server
    /// closes the client's old connection first, so the client may reconnect in between: call this
    /// until it fails because the session is over. The password is the one that servers derive from
    /// the id.
    ///
    /// # Errors
    /// When the node does not respond, or the session is over.
    pub fn end(port: u16, id: i64) -> io::Result<()> {
        Self::connect(port, Duration::from_secs(5), id, &password(id))?.close()
    }

    fn connect(port: u16, timeout: Duration, id: i64, password: &[u8]) -> io::Result<Self> {
        let mut session = Self { stream: connect(port)?, xid: 0 };
        let timeout = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let mut request = Vec::new();
        request.extend(0i32.to_be_bytes()); // protocol
        request.extend(0i64.to_be_bytes()); // last zxid seen
        request.extend(timeout.to_be_bytes());
        request.extend(id.to_be_bytes()); // 0 for a new one
        push_bytes(&mut request, password);
        request.push(0); // read-only
        session.send(&request)?;
        let response = session.receive()?;
        // protocol, timeout, id
        if i64_at(&response, 8) == 0 { Err(unexpected("the session is over")) } else { Ok(session) }
    }

    /// Creates a node; `flags` is 1 for ephemeral, 2 for sequential, 3 for both. Returns its path,
    /// or the server's error number (-110 for one that exists).
    ///
    /// # Errors
    /// When the connection fails.
    pub fn create(
        &mut self,
        path: &str,
        data: &str,
        flags: i32,
    ) -> io::Result<Result<String, i32>> {
        let mut body = Vec::new();
        push_bytes(&mut body, path.as_bytes());
        push_bytes(&mut body, data.as_bytes());
        body.extend(1i32.to_be_bytes()); // one access rule: every client may do everything
        body.extend(31i32.to_be_bytes());
        push_bytes(&mut body, b"world");
        push_bytes(&mut body, b"anyone");
        body.extend(flags.to_be_bytes());
        let response = self.call(CREATE, &body)?;
        Ok(response.map(|body| take_text(&body).0))
    }

    /// The data of a node and the time it was created, in milliseconds since 1970 by the server's
    /// clock, or the server's error number (-101 for none).
    ///
    /// # Errors
    /// When the connection fails.
    pub fn read(&mut self, path: &str) -> io::Result<Result<(String, i64), i32>> {
        let response = self.call(GET_DATA, &path_without_watch(path))?;
        Ok(response.map(|body| {
            let (text, rest) = take_text(&body);
            // czxid, mzxid, ctime
            (text, i64_at(rest, 16))
        }))
    }

    /// The session that an ephemeral node belongs to, 0 for a node of another kind, or the server's
    /// error number.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn owner(&mut self, path: &str) -> io::Result<Result<i64, i32>> {
        let response = self.call(GET_DATA, &path_without_watch(path))?;
        // Four ids and times, three versions.
        Ok(response.map(|body| i64_at(take_text(&body).1, 4 * 8 + 3 * 4)))
    }

    /// The names of a node's children, in no order, or the server's error number.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn children(&mut self, path: &str) -> io::Result<Result<Vec<String>, i32>> {
        let response = self.call(GET_CHILDREN, &path_without_watch(path))?;
        Ok(response.map(|body| {
            let mut rest = body.get(4..).unwrap_or_default();
            let mut names = Vec::new();
            while !rest.is_empty() {
                let (name, tail) = take_text(rest);
                names.push(name);
                rest = tail;
            }
            names
        }))
    }

    /// Deletes a node, or returns the server's error number.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn delete(&mut self, path: &str) -> io::Result<Result<(), i32>> {
        let mut body = Vec::new();
        push_bytes(&mut body, path.as_bytes());
        body.extend((-1i32).to_be_bytes()); // any version
        Ok(self.call(DELETE, &body)?.map(drop))
    }

    /// Ends the session, which deletes its ephemeral nodes.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn close(mut self) -> io::Result<()> {
        self.call(CLOSE, &[]).map(drop)
    }

    fn call(&mut self, kind: i32, body: &[u8]) -> io::Result<Result<Vec<u8>, i32>> {
        self.xid += 1;
        let mut request = Vec::new();
        request.extend(self.xid.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(body);
        self.send(&request)?;
        let response = self.receive()?;
        // xid, zxid, error
        let error = i32::from_be_bytes(response[12..16].try_into().map_err(unexpected)?);
        Ok(if error == 0 { Ok(response[16..].to_vec()) } else { Err(error) })
    }

    fn send(&mut self, body: &[u8]) -> io::Result<()> {
        let mut packet = Vec::new();
        push_bytes(&mut packet, body);
        self.stream.write_all(&packet)
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = usize::try_from(i32::from_be_bytes(length)).map_err(unexpected)?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        if length < 16 { Err(unexpected("a short response")) } else { Ok(body) }
    }
}

/// The body of a request that reads a node without setting a watch.
fn path_without_watch(path: &str) -> Vec<u8> {
    let mut body = Vec::new();
    push_bytes(&mut body, path.as_bytes());
    body.push(0);
    body
}

fn push_bytes(buffer: &mut Vec<u8>, bytes: &[u8]) {
    let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
    buffer.extend(length.to_be_bytes());
    buffer.extend(bytes);
}

fn take_text(body: &[u8]) -> (String, &[u8]) {
    let Some((length, rest)) = body.split_first_chunk::<4>() else { return (String::new(), &[]) };
    let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0).min(rest.len());
    (String::from_utf8_lossy(&rest[..length]).into_owned(), &rest[length..])
}

fn i64_at(body: &[u8], at: usize) -> i64 {
    let bytes = body.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, i64::from_be_bytes)
}

/// The password that a server derives from a session's id: 16 bytes of Java's random numbers with a
/// fixed seed.
fn password(id: i64) -> Vec<u8> {
    const FACTOR: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut seed = (id.cast_unsigned() ^ 0xB341_5C00 ^ FACTOR) & MASK;
    let mut bytes = Vec::new();
    for _ in 0..4 {
        seed = (seed.wrapping_mul(FACTOR) + 0xB) & MASK;
        bytes.extend(&(seed >> 16).to_le_bytes()[..4]);
    }
    bytes
}
