//! Free ports on loopback, each reserved by one process of this machine at a time.
//!
//! They are below the range from which the kernel picks ports for outgoing connections: otherwise
//! such a connection might get a server's port between its end and its restart.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::error::{Error, Result};

const LOW: u16 = 12_000;
const HIGH: u16 = 32_000;

/// A port on which no process listens, reserved until it is dropped.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    // An abstract socket name has the same scope as a port number, the network namespace, and
    // unlike a lock file it is free when the process ends.
    _reservation: UnixDatagram,
}

impl Port {
    pub(crate) fn reserve() -> Result<Self> {
        let (low, high) = range();
        let span = high - low;
        let start = RandomState::new().hash_one(std::process::id()) % u64::from(span);
        let start = u16::try_from(start).unwrap_or(0);
        // From a random port upwards, then from the lowest.
        (low + start..high).chain(low..low + start).find_map(Self::reserve_number).ok_or_else(
            || Error::failed("find a free port", format!("{low}..{high} are all taken")),
        )
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    fn reserve_number(number: u16) -> Option<Self> {
        let name = SocketAddr::from_abstract_name(format!("tenure-servers-port-{number}")).ok()?;
        let reservation = UnixDatagram::bind_addr(&name).ok()?;
        // Consul's gossip uses the same number for UDP.
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _reservation: reservation })
    }
}

fn range() -> (u16, u16) {
    let ephemeral = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let first = ephemeral.and_then(|text| text.split_whitespace().next()?.parse::<u16>().ok());
    match first {
        Some(first) if first > LOW + 2000 => (LOW, first.min(HIGH)),
        // This machine uses nearly all ports for outgoing connections: accept the small risk.
        _ => (LOW, HIGH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_not_reserved_again() {
        let ports: Vec<Port> = (0..50).map(|_| Port::reserve().unwrap()).collect();
        let mut numbers: Vec<u16> = ports.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 50);
        assert!(Port::reserve_number(numbers[0]).is_none());
    }

    #[test]
    fn a_port_with_a_listener_is_not_reserved() {
        let port = Port::reserve().unwrap();
        let number = port.number();
        drop(port);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
        assert!(Port::reserve_number(number).is_none());
        drop(listener);
    }

    #[test]
    fn ports_are_below_those_of_outgoing_connections() {
        assert!(Port::reserve().unwrap().number() < 32_768);
    }
}
