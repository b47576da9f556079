//! Just enough of each server's protocol to ask whether it works: blocking, bounded, without any
//! client library. For probes, leaders and tests; not for locks.

pub mod http;
pub mod mysql;
pub mod postgres;
pub mod redis;
mod scram;
pub mod zookeeper;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// A connection to a port on loopback of which no single call lasts longer than five seconds: a
/// paused server accepts and never answers.
pub(crate) fn connect(port: u16) -> io::Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn odd(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

const LIMIT: Duration = Duration::from_secs(5);
