//! ZooKeeper: four-letter words, and as much of a session as a lock needs.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{connect, odd};

/// Sends a four-letter word and returns the answer.
///
/// # Errors
/// When the connection fails, or the server is silent for five seconds.
pub fn four_letters(port: u16, word: &str) -> io::Result<String> {
    let mut stream = connect(port)?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The `Mode:` that a serving node names: `standalone`, `leader` or `follower`.
///
/// # Errors
/// When the node is down or does not serve, as without a quorum.
pub fn mode(port: u16) -> io::Result<String> {
    let answer = four_letters(port, "srvr")?;
    let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
    mode.map(str::to_owned).ok_or_else(|| odd(answer.trim()))
}

/// A session. It is not kept alive: it ends with its timeout after the last call.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    xid: i32,
}

impl Session {
    /// Opens a session.
    ///
    /// # Errors
    /// When the node does not answer or does not serve.
    pub fn open(port: u16, timeout: Duration) -> io::Result<Self> {
        let mut session = Self { stream: connect(port)?, xid: 0 };
        let timeout = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let mut request = Vec::new();
        request.extend(0i32.to_be_bytes()); // protocol
        request.extend(0i64.to_be_bytes()); // last zxid seen
        request.extend(timeout.to_be_bytes());
        request.extend(0i64.to_be_bytes()); // a new session
        push_bytes(&mut request, &[0; 16]);
        request.push(0); // read-only
        session.send(&request)?;
        session.receive()?;
        Ok(session)
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
        body.extend(1i32.to_be_bytes()); // one access rule: all for everybody
        body.extend(31i32.to_be_bytes());
        push_bytes(&mut body, b"world");
        push_bytes(&mut body, b"anyone");
        body.extend(flags.to_be_bytes());
        let answer = self.call(CREATE, &body)?;
        Ok(answer.map(|body| take_text(&body).0))
    }

    /// The data of a node and the time it was created, in milliseconds since 1970 by the server's
    /// clock, or the server's error number (-101 for none).
    ///
    /// # Errors
    /// When the connection fails.
    pub fn read(&mut self, path: &str) -> io::Result<Result<(String, i64), i32>> {
        let mut body = Vec::new();
        push_bytes(&mut body, path.as_bytes());
        body.push(0); // no watch
        let answer = self.call(GET_DATA, &body)?;
        Ok(answer.map(|body| {
            let (text, rest) = take_text(&body);
            // czxid, mzxid, ctime
            (text, i64_at(rest, 16))
        }))
    }

    /// Ends the session; its ephemeral nodes go with it.
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
        let answer = self.receive()?;
        // xid, zxid, error
        let error = i32::from_be_bytes(answer[12..16].try_into().map_err(odd)?);
        Ok(if error == 0 { Ok(answer[16..].to_vec()) } else { Err(error) })
    }

    fn send(&mut self, body: &[u8]) -> io::Result<()> {
        let mut packet = Vec::new();
        push_bytes(&mut packet, body);
        self.stream.write_all(&packet)
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = usize::try_from(i32::from_be_bytes(length)).map_err(odd)?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        if length < 16 { Err(odd("a short answer")) } else { Ok(body) }
    }
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

const CREATE: i32 = 1;
const GET_DATA: i32 = 4;
const CLOSE: i32 = -11;
