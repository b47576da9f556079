//! Enough of each server's wire protocol for readiness checks, finding the leader, and tests.
//! Blocking, with time limits, without any client library. Not for locks.

pub mod http;
pub mod mysql;
pub mod postgres;
pub mod redis;
mod scram;
pub mod zookeeper;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(5);

/// Connects to a port on loopback. Each call on the connection is limited to five seconds, because
/// a paused server accepts and never responds.
pub(crate) fn connect(port: u16) -> io::Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// An error for a response that this crate does not expect, or for an error of the server.
fn unexpected(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}
