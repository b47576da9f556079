//! The channel between launcher and supervisor: a socket pair that carries small messages both
//! ways. When one process ends, the kernel closes its endpoint, and the other process reads that.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// A message of the launcher to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToSupervisor {
    /// The job was continued: continue the command as well.
    Continue,
    /// The input of `tenure hold` has ended.
    InputEnded,
    /// The launcher received this signal: forward it to the command.
    Signal(i32),
}

/// A message of the supervisor to the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToLauncher {
    /// Exit with this code as soon as the supervisor has ended.
    Exit(i32),
    /// The lock is held: from now on watch the deadline of its lease.
    Held,
    /// The command has ended with this code, and the lock is kept for some time (`--at-least`).
    Kept(i32),
    /// Exit with this code at once, without waiting for the supervisor, which goes on in the
    /// background.
    Detach(i32),
    /// The command runs, in this process group.
    Started(i32),
    /// This signal stopped the command.
    Stopped(i32),
    /// The lock was lost, and its command has ended: the lock is waited for again (`tenure elect`).
    Waiting,
}

/// One end of the channel, which sends `S` and receives `R`.
pub(super) struct Endpoint<S, R>(OwnedFd, PhantomData<(S, R)>);

/// The result of reading from the channel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received<R> {
    /// The other process has closed its end.
    Closed,
    Message(R),
    Nothing,
}

/// The endpoints of launcher and supervisor.
pub(super) type Pair = (Endpoint<ToSupervisor, ToLauncher>, Endpoint<ToLauncher, ToSupervisor>);

/// Makes a channel.
pub(super) fn pair() -> io::Result<Pair> {
    let flags = SocketFlags::CLOEXEC;
    let (launcher, supervisor) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok((Endpoint(launcher, PhantomData), Endpoint(supervisor, PhantomData)))
}

impl<S: Message, R: Message> Endpoint<S, R> {
    /// Sends a message without blocking: the other process may be stopped. The socket buffers
    /// hundreds of messages, more than a job ever sends. A closed channel is detected by reading.
    pub(super) fn send(&self, message: S) {
        let (kind, number) = message.encode();
        let [a, b, c, d] = number.to_ne_bytes();
        let packet = [kind, a, b, c, d];
        let _closed_or_full = send(&self.0, &packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Reads the next message without blocking.
    pub(super) fn next(&self) -> Received<R> {
        let mut packet = [0_u8; 5];
        match recv(&self.0, &mut packet, RecvFlags::DONTWAIT) {
            Ok((5, _)) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Received::Nothing,
            // A packet of another length is never sent, and an error means that no more will come.
            Ok(_) | Err(_) => return Received::Closed,
        }
        let [kind, a, b, c, d] = packet;
        let message = R::decode(kind, i32::from_ne_bytes([a, b, c, d]));
        message.map_or(Received::Nothing, Received::Message)
    }
}

impl<S, R> AsFd for Endpoint<S, R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A message as a packet: its kind and one number.
pub(super) trait Message: Sized {
    fn encode(&self) -> (u8, i32);
    fn decode(kind: u8, number: i32) -> Option<Self>;
}

impl Message for ToSupervisor {
    fn encode(&self) -> (u8, i32) {
        match *self {
            ToSupervisor::Continue => (b'C', 0),
            ToSupervisor::InputEnded => (b'E', 0),
            ToSupervisor::Signal(signal) => (b'S', signal),
        }
    }

    fn decode(kind: u8, number: i32) -> Option<ToSupervisor> {
        match kind {
            b'C' => Some(ToSupervisor::Continue),
            b'E' => Some(ToSupervisor::InputEnded),
            b'S' => Some(ToSupervisor::Signal(number)),
            _ => None,
        }
    }
}

impl Message for ToLauncher {
    fn encode(&self) -> (u8, i32) {
        match *self {
            ToLauncher::Exit(code) => (b'X', code),
            ToLauncher::Held => (b'H', 0),
            ToLauncher::Kept(code) => (b'K', code),
            ToLauncher::Detach(code) => (b'L', code),
            ToLauncher::Started(group) => (b'P', group),
            ToLauncher::Stopped(signal) => (b'Z', signal),
            ToLauncher::Waiting => (b'W', 0),
        }
    }

    fn decode(kind: u8, number: i32) -> Option<ToLauncher> {
        match kind {
            b'X' => Some(ToLauncher::Exit(number)),
            b'H' => Some(ToLauncher::Held),
            b'K' => Some(ToLauncher::Kept(number)),
            b'L' => Some(ToLauncher::Detach(number)),
            b'P' => Some(ToLauncher::Started(number)),
            b'Z' => Some(ToLauncher::Stopped(number)),
            b'W' => Some(ToLauncher::Waiting),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_and_before_the_close() {
        let (launcher, supervisor) = pair().unwrap();
        assert_eq!(launcher.next(), Received::Nothing);
        let sent = [
            ToLauncher::Held,
            ToLauncher::Started(71),
            ToLauncher::Stopped(20),
            ToLauncher::Exit(143),
        ];
        sent.iter().for_each(|message| supervisor.send(*message));
        launcher.send(ToSupervisor::Signal(2));
        assert_eq!(supervisor.next(), Received::Message(ToSupervisor::Signal(2)));
        drop(supervisor);
        for message in sent {
            assert_eq!(launcher.next(), Received::Message(message));
        }
        assert_eq!(launcher.next(), Received::Closed);
    }

    #[test]
    fn sending_to_a_stopped_process_does_not_block() {
        let (launcher, supervisor) = pair().unwrap();
        for _ in 0..100_000 {
            supervisor.send(ToLauncher::Held);
        }
        assert_eq!(launcher.next(), Received::Message(ToLauncher::Held));
    }
}
