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
const WAKE_UP: usize = OWNER + 1;
/// How many wake-ups a message has at most.
pub(super) const LONGEST_MESSAGE: usize = 256;

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

    /// The wake-ups of the next message that has come, if there is one; none of a message that is
    /// of another form.
    pub(super) fn receive(&self) -> Option<Vec<(Owner, WakeReason)>> {
        let mut message = [0; LONGEST_MESSAGE * WAKE_UP + 1];
        let (len, _) = recv(&self.socket, &mut message[..], RecvFlags::DONTWAIT).ok()?;
        Some(decode(&message[..len]))
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

/// Sends wake-ups to owners of another session, in one message. Fails if that session has no
/// socket, or a full one: then the owners poll.
pub(super) fn wake(
    path: &StorePath,
    session: Session,
    wake_ups: &[(Owner, WakeReason)],
) -> io::Result<()> {
    let (address, _open) = path.sessions.socket(&session.socket_name())?;
    send(&SocketAddrUnix::new(address)?, &encode(wake_ups))
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

fn encode(wake_ups: &[(Owner, WakeReason)]) -> Vec<u8> {
    let mut message = Vec::with_capacity(wake_ups.len() * WAKE_UP);
    for (owner, reason) in wake_ups {
        message.extend_from_slice(&owner_bytes(*owner));
        message.push(match reason {
            WakeReason::Evicted => b'e',
            WakeReason::Offered => b'o',
        });
    }
    message
}

fn decode(message: &[u8]) -> Vec<(Owner, WakeReason)> {
    let wake_ups = message.chunks(WAKE_UP).map(|wake_up| {
        let (reason, owner) = wake_up.split_last()?;
        let reason = match reason {
            b'e' => WakeReason::Evicted,
            b'o' => WakeReason::Offered,
            _ => return None,
        };
        Some((owner_from(owner)?, reason))
    });
    wake_ups.collect::<Option<_>>().unwrap_or_default()
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
        let owner = |number| Owner::new(*b"0123456789abcdef", u64::MAX - number);
        let wake_ups = [(owner(7), WakeReason::Evicted), (owner(8), WakeReason::Offered)];
        for part in [&wake_ups[..1], &wake_ups[1..], &wake_ups] {
            assert_eq!(decode(&encode(part)), part);
        }
        let mut wrong = encode(&wake_ups);
        *wrong.last_mut().unwrap() = b'x';
        assert_eq!(decode(&wrong), []);
        assert_eq!(decode(b""), []);
        assert_eq!(decode(b"o"), []);
        assert_eq!(decode(&[b'o'; WAKE_UP + 1]), []);
    }
}
