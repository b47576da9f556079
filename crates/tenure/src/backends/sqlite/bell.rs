//! The bell: a datagram socket beside the store, by which another process says "look now". It is a
//! hint: a lost ring costs the time to the next look, never more.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[cfg(target_os = "linux")]
use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, recv,
    sendto, socket_with,
};

use super::beacon::Session;
use super::place::Place;
use super::sessions::swapped;
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
    name: String,
}

impl Bell {
    pub(super) fn hang(place: &Place, session: Session) -> io::Result<Bell> {
        let (sessions, name) = (&place.sessions, session.bell_name());
        let bell = Bell { socket: datagrams()?, name };
        // Else it had more rights until it gets its own; the umask can only take some away.
        #[cfg(target_os = "linux")]
        rustix::fs::fchmod(&bell.socket, Mode::from_raw_mode(sessions.modes.bell))?;
        let (path, folder) = sessions.new_socket(&bell.name)?;
        bind(&bell.socket, &SocketAddrUnix::new(path)?)?;
        drop(folder);
        let (path, made) = sessions.socket(&bell.name)?;
        bell.prove(&SocketAddrUnix::new(path)?)?;
        sessions.hand_over_socket(&made, sessions.modes.bell)?;
        Ok(bell)
    }

    /// Shows that what was found under our name is this socket: a word that is sent there comes in
    /// here. Whoever may write in the folder could have put another socket in its place.
    fn prove(&self, address: &SocketAddrUnix) -> io::Result<()> {
        let word = uuid::Uuid::new_v4();
        send(address, word.as_bytes())?;
        let mut heard = [0; 16];
        let received = recv(&self.socket, &mut heard[..], RecvFlags::DONTWAIT);
        match received.is_ok_and(|(len, _)| heard[..len] == word.as_bytes()[..]) {
            true => Ok(()),
            false => Err(swapped()),
        }
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

    /// Left behind, it goes with the beacon of the session.
    pub(super) fn take_down(self, place: &Place) {
        place.sessions.remove(&self.name);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Rings the bell of another session. It may have none, or a full one: then it looks by itself.
pub(super) fn ring(place: &Place, session: Session, owner: Owner, ring: Ring) -> io::Result<()> {
    let (path, _open) = place.sessions.socket(&session.bell_name())?;
    send(&SocketAddrUnix::new(path)?, &encode(owner, ring))
}

fn send(address: &SocketAddrUnix, message: &[u8]) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendto(datagrams()?, message, flags, address)?;
    Ok(())
}

fn datagrams() -> io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    #[cfg(not(target_os = "linux"))]
    let flags = SocketFlags::empty();
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
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
