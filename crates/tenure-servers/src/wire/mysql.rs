//! MariaDB and MySQL: text queries. The login at MariaDB sends a proof of the password; the one at
//! MySQL uses its Unix socket, where the password may be sent in clear text.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use sha1::{Digest, Sha1};

use super::{LIMIT, connect, unexpected};
use crate::node::Node;
use crate::secret::{self, Secret};

const OK: u8 = 0x00;
const END: u8 = 0xfe;
const ERR: u8 = 0xff;
const SWITCH_AUTH: u8 = 0xfe;
/// The server requests the password itself.
const FULL_AUTHENTICATION: [u8; 2] = [0x01, 0x04];
/// Long password, connect with database, protocol 4.1, transactions, secure connection, plugins.
const CAPABILITIES: u32 = 0x1 | 0x8 | 0x200 | 0x2000 | 0x8000 | 0x8_0000;
use crate::servers;

/// A TCP or Unix stream.
trait Stream: Read + Write + Debug + Send {}

impl<S: Read + Write + Debug + Send> Stream for S {}

/// A connection as user `root` to the database `test`.
#[derive(Debug)]
pub struct Mysql {
    stream: Box<dyn Stream>,
    sequence: u8,
}

impl Mysql {
    /// Connects to a node, which is a MariaDB or a MySQL, as its administrator.
    ///
    /// # Errors
    /// When there is no response within five seconds, or the server refuses the login.
    pub fn admin(node: &Node) -> io::Result<Self> {
        match node.server {
            "mysql" => Self::over_socket(node, &servers::mysql::password(node)?),
            _ => Self::connect(node.port()),
        }
    }

    /// Connects to a port on loopback, with the password of the MariaDB that this process runs
    /// there.
    ///
    /// # Errors
    /// When there is no response within five seconds, or the server refuses the login.
    pub fn connect(port: u16) -> io::Result<Self> {
        let mut connection = Self { stream: Box::new(connect(port)?), sequence: 0 };
        let secret = secret::of(port);
        connection.log_in(Login::Native(secret.as_ref().map_or("", Secret::as_str)))?;
        Ok(connection)
    }

    /// Connects without a password, as a foreign client would.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn anonymous(port: u16) -> io::Result<Self> {
        let mut connection = Self { stream: Box::new(connect(port)?), sequence: 0 };
        connection.log_in(Login::Native(""))?;
        Ok(connection)
    }

    /// Connects to the Unix socket, by a path through `/proc/self/fd`: the path of a socket has at
    /// most 107 bytes.
    fn over_socket(node: &Node, password: &str) -> io::Result<Self> {
        let folder = File::open(node.dir().join("data"))?;
        let path = format!("/proc/self/fd/{}/{}", folder.as_raw_fd(), servers::mysqld::SOCKET);
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let mut connection = Self { stream: Box::new(stream), sequence: 0 };
        connection.log_in(Login::ClearText(password))?;
        Ok(connection)
    }

    fn log_in(&mut self, login_by: Login<'_>) -> io::Result<()> {
        let greeting = self.receive()?;
        if greeting.first() == Some(&ERR) {
            return Err(unexpected(message(&greeting)));
        }
        // Over the Unix socket the proof is wrong on purpose, so that the server requests the
        // password itself.
        let (proof, plugin, password) = match login_by {
            Login::Native(password) => {
                let proof = native_proof(password, &challenge(&greeting)?);
                (proof, "mysql_native_password", "")
            }
            Login::ClearText(password) => (vec![1; 32], "caching_sha2_password", password),
        };
        let mut login = Vec::new();
        login.extend(CAPABILITIES.to_le_bytes());
        login.extend((1u32 << 24).to_le_bytes()); // largest packet
        login.push(45); // utf8mb4
        login.extend([0; 23]);
        login.extend(b"root\0");
        login.push(u8::try_from(proof.len()).map_err(unexpected)?);
        login.extend(&proof);
        login.extend(format!("test\0{plugin}\0").as_bytes());
        self.send(&login)?;
        let mut response = self.receive()?;
        if response.first() == Some(&SWITCH_AUTH) {
            // It may contain another challenge, after the name of the plugin.
            let again = match (login_by, response.splitn(2, |&byte| byte == 0).nth(1)) {
                (Login::Native(password), Some(other)) if !password.is_empty() => {
                    native_proof(password, other.get(..20).unwrap_or_default())
                }
                _ => proof,
            };
            self.send(&again)?;
            response = self.receive()?;
        }
        if response == FULL_AUTHENTICATION {
            self.send(format!("{password}\0").as_bytes())?;
            response = self.receive()?;
        }
        match response.first() {
            Some(&OK) => Ok(()),
            _ => Err(unexpected(message(&response))),
        }
    }

    /// Runs one statement. Returns the first column of every row, empty for NULL.
    ///
    /// # Errors
    /// With the server's message, or when the connection fails or there is no response for five
    /// seconds.
    pub fn query(&mut self, sql: &str) -> io::Result<Vec<String>> {
        self.sequence = 0;
        self.send(format!("\x03{sql}").as_bytes())?;
        let head = self.receive()?;
        match head.first() {
            Some(&OK) => return Ok(Vec::new()),
            Some(&ERR) => return Err(unexpected(message(&head))),
            _ => {}
        }
        // Descriptions of the columns, an end packet, rows, an end packet.
        self.until_end()?;
        let rows = self.until_end()?;
        Ok(rows.iter().map(|row| first_column(row)).collect())
    }

    fn until_end(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut packets = Vec::new();
        loop {
            let packet = self.receive()?;
            match packet.first() {
                Some(&END) if packet.len() < 9 => return Ok(packets),
                Some(&ERR) => return Err(unexpected(message(&packet))),
                _ => packets.push(packet),
            }
        }
    }

    fn send(&mut self, body: &[u8]) -> io::Result<()> {
        let mut packet = u32::try_from(body.len()).map_err(unexpected)?.to_le_bytes()[..3].to_vec();
        packet.push(self.sequence);
        packet.extend(body);
        self.sequence = self.sequence.wrapping_add(1);
        self.stream.write_all(&packet)
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head)?;
        self.sequence = head[3].wrapping_add(1);
        let length = u32::from_le_bytes([head[0], head[1], head[2], 0]);
        let mut body = vec![0; usize::try_from(length).map_err(unexpected)?];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }
}

/// How a password is sent.
#[derive(Clone, Copy)]
enum Login<'a> {
    /// As a proof for the server's challenge; empty without a password.
    Native(&'a str),
    /// In clear text, over the Unix socket.
    ClearText(&'a str),
}

/// The challenge of twenty bytes in the server's greeting: eight after its version and the number
/// of the connection, the others after its capabilities and ten unused bytes.
fn challenge(greeting: &[u8]) -> io::Result<Vec<u8>> {
    let version = greeting.iter().skip(1).position(|&byte| byte == 0);
    let first = version.map(|end| end + 2 + 4).ok_or_else(|| unexpected("no greeting"))?;
    let part = |from: usize, length| greeting.get(from..from + length);
    match (part(first, 8), part(first + 8 + 1 + 2 + 1 + 2 + 2 + 1 + 10, 12)) {
        (Some(one), Some(two)) => Ok([one, two].concat()),
        _ => Err(unexpected("no challenge in the greeting")),
    }
}

/// SHA1(password) xor SHA1(challenge, SHA1(SHA1(password))).
fn native_proof(password: &str, challenge: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let once = Sha1::digest(password);
    let stored = Sha1::digest(once);
    let mask = Sha1::new().chain_update(challenge).chain_update(stored).finalize();
    once.iter().zip(mask).map(|(a, b)| a ^ b).collect()
}

/// The first column of a row. A column is its length in one byte (values here are short) and its
/// bytes; 251 stands for NULL.
fn first_column(row: &[u8]) -> String {
    let Some((&length, rest)) = row.split_first() else { return String::new() };
    let bytes = rest.get(..usize::from(length)).unwrap_or_default();
    String::from_utf8_lossy(if length < 251 { bytes } else { &[] }).into_owned()
}

/// The text of an error packet, which is a kind, a number of two bytes, `#`, a state of five bytes,
/// then the text.
fn message(packet: &[u8]) -> String {
    String::from_utf8_lossy(packet.get(9..).unwrap_or_default()).into_owned()
}
