//! The bell: a datagram socket beside the store, by which another process says "look now". It is a
//! hint: a lost ring costs the time to the next look, never more.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, recv,
    sendto, socket_with,
};

use super::beacon::Session;
use super::place::Place;
use crate::backend::Owner;

/// What a ring says to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// The lock was taken from it by force.
    Evicted,
    /// The lock is offered to it.
    Offered,
}

/// Our own bell.
#[derive(Debug)]
pub(super) struct Bell {
    socket: OwnedFd,
    path: std::path::PathBuf,
}

impl Bell {
    pub(super) fn hang(place: &Place, session: Session) -> io::Result<Bell> {
        let name = session.bell_name();
        let path = place.sessions.join(&name);
        let socket = datagrams()?;
        with_address(&place.sessions, &name, |address| Ok(bind(&socket, address)?))?;
        place.adopt(&path, place.modes.bell)?;
        Ok(Bell { socket, path })
    }

    /// The next ring that was heard, if there is one. Noise is skipped.
    pub(super) fn heard(&self) -> Option<(Owner, Ring)> {
        let mut message = [0; MESSAGE + 1];
        loop {
            let (len, _) = recv(&self.socket, &mut message[..], RecvFlags::DONTWAIT).ok()?;
            if let Some(ring) = decode(&message[..len]) {
                return Some(ring);
            }
        }
    }

    pub(super) fn take_down(self) {
        // Left behind, it goes with the beacon of the session.
        let _left = std::fs::remove_file(&self.path);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Rings the bell of another session. It may have none, or a full one: then it looks by itself.
pub(super) fn ring(place: &Place, session: Session, owner: Owner, ring: Ring) {
    let send = |address: &SocketAddrUnix| {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(sendto(datagrams()?, &encode(owner, ring), flags, address)?)
    };
    let _unheard = with_address(&place.sessions, &session.bell_name(), send);
}

fn datagrams() -> io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    #[cfg(not(target_os = "linux"))]
    let flags = SocketFlags::empty();
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
}

/// Makes the address of a socket in a folder. An address holds about a hundred bytes; a longer path
/// is reached through a descriptor of its folder.
fn with_address<T>(
    folder: &Path,
    name: &str,
    use_it: impl FnOnce(&SocketAddrUnix) -> io::Result<T>,
) -> io::Result<T> {
    match SocketAddrUnix::new(folder.join(name)) {
        Ok(address) => use_it(&address),
        #[cfg(target_os = "linux")]
        Err(rustix::io::Errno::NAMETOOLONG) => {
            use std::os::fd::AsRawFd;
            let folder = std::fs::File::open(folder)?;
            let short = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
            use_it(&SocketAddrUnix::new(short)?)
        }
        Err(errno) => Err(errno.into()),
    }
}

fn encode(owner: Owner, ring: Ring) -> [u8; MESSAGE] {
    let mut message = [0; MESSAGE];
    message[..OWNER].copy_from_slice(&owner_bytes(owner));
    message[OWNER] = match ring {
        Ring::Evicted => b'e',
        Ring::Offered => b'o',
    };
    message
}

fn decode(message: &[u8]) -> Option<(Owner, Ring)> {
    let (ring, owner) = message.split_last()?;
    let ring = match ring {
        b'e' => Ring::Evicted,
        b'o' => Ring::Offered,
        _ => return None,
    };
    Some((owner_from(owner)?, ring))
}

/// An owner as it stands in a row and in a ring.
pub(super) fn owner_bytes(owner: Owner) -> [u8; OWNER] {
    let mut bytes = [0; OWNER];
    bytes[..16].copy_from_slice(&owner.client());
    bytes[16..].copy_from_slice(&owner.number().to_be_bytes());
    bytes
}

pub(super) fn owner_from(bytes: &[u8]) -> Option<Owner> {
    let (client, number) = bytes.split_at_checked(16)?;
    Some(Owner::new(client.try_into().ok()?, u64::from_be_bytes(number.try_into().ok()?)))
}

/// The client's 16 bytes and the number's 8.
const OWNER: usize = 24;
const MESSAGE: usize = OWNER + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_survives_its_encoding_and_noise_is_no_ring() {
        let owner = Owner::new(*b"0123456789abcdef", u64::MAX - 7);
        for ring in [Ring::Evicted, Ring::Offered] {
            assert_eq!(decode(&encode(owner, ring)), Some((owner, ring)));
        }
        let mut wrong = encode(owner, Ring::Offered);
        wrong[MESSAGE - 1] = b'x';
        assert_eq!(decode(&wrong), None);
        assert_eq!(decode(b""), None);
        assert_eq!(decode(b"o"), None);
        assert_eq!(decode(&[b'o'; MESSAGE + 1]), None);
    }
}
