//! The wake socket of a session: a datagram socket beside the store, to which other processes send
//! wake-ups for owners of the session. A wake-up is a hint: a lost one costs the time until the
//! waiter polls, never more.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[cfg(target_os = "linux")]
use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, recv,
    sendto, socket_with,
};

use super::liveness::Session;
use super::session_folder::replaced_meanwhile;
use super::store_path::StorePath;
use crate::backend::Owner;

/// Length of an owner: 16 bytes of the client and 8 of the number.
const OWNER: usize = 24;
/// Length of a wake-up: an owner and a reason.
const MESSAGE: usize = OWNER + 1;

/// What a wake-up tells its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeReason {
    /// The lock of the owner was evicted.
    Evicted,
    /// The lock is offered to the owner.
    Offered,
}

/// The socket on which this client's session receives wake-ups.
#[derive(Debug)]
pub(super) struct WakeSocket {
    socket: OwnedFd,
    name: String,
}

impl WakeSocket {
    pub(super) fn bind(path: &StorePath, session: Session) -> io::Result<WakeSocket> {
        let sessions = &path.sessions;
        let mode = sessions.modes.wake_socket;
        let created = WakeSocket { socket: datagram_socket()?, name: session.socket_name() };
        // Before it is bound: from then on it is visible, and the umask alone may allow more.
        #[cfg(target_os = "linux")]
        rustix::fs::fchmod(&created.socket, Mode::from_raw_mode(mode))?;
        let (path, folder) = sessions.new_socket(&created.name)?;
        bind(&created.socket, &SocketAddrUnix::new(path)?)?;
        drop(folder);
        let (path, found) = sessions.socket(&created.name)?;
        created.verify(&SocketAddrUnix::new(path)?)?;
        sessions.set_socket_rights(&found, mode)?;
        Ok(created)
    }

    /// Checks that the socket that was found under the name is this one: a random message that is
    /// sent there is received here. A user that may write in the folder could have replaced it.
    fn verify(&self, address: &SocketAddrUnix) -> io::Result<()> {
        let sent = uuid::Uuid::new_v4();
        send(address, sent.as_bytes())?;
        let mut received = [0; 16];
        let outcome = recv(&self.socket, &mut received[..], RecvFlags::DONTWAIT);
        if outcome.is_ok_and(|(len, _)| received[..len] == sent.as_bytes()[..]) {
            Ok(())
        } else {
            Err(replaced_meanwhile())
        }
    }

    /// The next wake-up that has come, if there is one. Skips messages that are none.
    pub(super) fn receive(&self) -> Option<(Owner, WakeReason)> {
        let mut message = [0; MESSAGE + 1];
        loop {
            let (len, _) = recv(&self.socket, &mut message[..], RecvFlags::DONTWAIT).ok()?;
            if let Some(wake_up) = decode(&message[..len]) {
                return Some(wake_up);
            }
        }
    }

    /// Removes the socket. If that fails, it is removed together with the liveness file.
    pub(super) fn remove(self, path: &StorePath) {
        path.sessions.remove(&self.name);
    }
}

impl AsFd for WakeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Wakes an owner of another session. Fails if that session has no socket, or a full one: then the
/// owner polls.
pub(super) fn wake(
    path: &StorePath,
    session: Session,
    owner: Owner,
    reason: WakeReason,
) -> io::Result<()> {
    let (address, _open) = path.sessions.socket(&session.socket_name())?;
    send(&SocketAddrUnix::new(address)?, &encode(owner, reason))
}

fn send(address: &SocketAddrUnix, message: &[u8]) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendto(datagram_socket()?, message, flags, address)?;
    Ok(())
}

fn datagram_socket() -> io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    #[cfg(not(target_os = "linux"))]
    let flags = SocketFlags::empty();
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
}

fn encode(owner: Owner, reason: WakeReason) -> [u8; MESSAGE] {
    let mut message = [0; MESSAGE];
    message[..OWNER].copy_from_slice(&owner_bytes(owner));
    message[OWNER] = match reason {
        WakeReason::Evicted => b'e',
        WakeReason::Offered => b'o',
    };
    message
}

fn decode(message: &[u8]) -> Option<(Owner, WakeReason)> {
    let (reason, owner) = message.split_last()?;
    let reason = match reason {
        b'e' => WakeReason::Evicted,
        b'o' => WakeReason::Offered,
        _ => return None,
    };
    Some((owner_from(owner)?, reason))
}

/// An owner as it is written in a row and in a wake-up.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_survives_its_encoding_and_other_messages_are_ignored() {
        let owner = Owner::new(*b"0123456789abcdef", u64::MAX - 7);
        for reason in [WakeReason::Evicted, WakeReason::Offered] {
            assert_eq!(decode(&encode(owner, reason)), Some((owner, reason)));
        }
        let mut wrong = encode(owner, WakeReason::Offered);
        wrong[MESSAGE - 1] = b'x';
        assert_eq!(decode(&wrong), None);
        assert_eq!(decode(b""), None);
        assert_eq!(decode(b"o"), None);
        assert_eq!(decode(&[b'o'; MESSAGE + 1]), None);
    }
}
