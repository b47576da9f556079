//! Free ports on loopback, each held by one process of this machine at a time.
//!
//! They lie below the range from which the kernel picks ports for outgoing connections: else such a
//! connection might take a server's port between its death and its restart.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::error::{Error, Result};

/// A port nobody listens on, ours until dropped.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    // An abstract socket name lives exactly where port numbers do, in the network namespace, and
    // dies with the process, which no lock file does.
    _claim: UnixDatagram,
}

impl Port {
    pub(crate) fn reserve() -> Result<Self> {
        let (low, high) = range();
        let span = high - low;
        let start = RandomState::new().hash_one(std::process::id()) % u64::from(span);
        let start = u16::try_from(start).unwrap_or(0);
        // From a random port upwards, then round from the lowest.
        (low + start..high).chain(low..low + start).find_map(Self::claim).ok_or_else(|| {
            Error::failed("find a free port", format!("{low}..{high} are all taken"))
        })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    fn claim(number: u16) -> Option<Self> {
        let name = SocketAddr::from_abstract_name(format!("tenure-servers-port-{number}")).ok()?;
        let claim = UnixDatagram::bind_addr(&name).ok()?;
        // Consul's gossip wants the same number for UDP.
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _claim: claim })
    }
}

fn range() -> (u16, u16) {
    let ephemeral = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let first = ephemeral.and_then(|text| text.split_whitespace().next()?.parse::<u16>().ok());
    match first {
        Some(first) if first > LOW + 2000 => (LOW, first.min(HIGH)),
        // A machine that hands out nearly all ports: better a small risk than no port.
        _ => (LOW, HIGH),
    }
}

const LOW: u16 = 12_000;
const HIGH: u16 = 32_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_hand_is_not_given_out_again() {
        let ports: Vec<Port> = (0..50).map(|_| Port::reserve().unwrap()).collect();
        let mut numbers: Vec<u16> = ports.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 50);
        assert!(Port::claim(numbers[0]).is_none());
    }

    #[test]
    fn a_port_somebody_listens_on_is_not_given_out() {
        let port = Port::reserve().unwrap();
        let number = port.number();
        drop(port);
        let stranger = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
        assert!(Port::claim(number).is_none());
        drop(stranger);
    }

    #[test]
    fn ports_lie_below_those_of_outgoing_connections() {
        assert!(Port::reserve().unwrap().number() < 32_768);
    }
}
