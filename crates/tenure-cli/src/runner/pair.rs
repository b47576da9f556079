//! The line between front and keeper. Its end is the notice of the other's death.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// What the front tells the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToKeeper {
    /// The job was continued, and the command should be.
    Continue,
    /// The front received this signal: pass it on.
    Signal(i32),
}

/// What the keeper tells the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToFront {
    /// Leave with this code.
    Exit(i32),
    /// The lock is held: from now on watch over its end.
    Held,
    /// The command has ended with this code, and the lock is kept for a while yet.
    Kept(i32),
    /// Leave with this code at once: the keeper stays behind.
    Leave(i32),
    /// The command runs, in this process group.
    Started(i32),
    /// The command was stopped by this signal.
    Stopped(i32),
}

/// One end of the line, which sends `S` and receives `R`.
pub(super) struct End<S, R>(OwnedFd, PhantomData<(S, R)>);

/// What can be read from the line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News<R> {
    /// The other end is gone.
    Gone,
    Message(R),
    Nothing,
}

/// The two ends.
pub(super) fn pair() -> io::Result<(End<ToKeeper, ToFront>, End<ToFront, ToKeeper>)> {
    let (unix, packets) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (front, keeper) = socketpair(unix, packets, SocketFlags::CLOEXEC, None)?;
    Ok((End(front, PhantomData), End(keeper, PhantomData)))
}

impl<S: Message, R: Message> End<S, R> {
    /// Sends, and never waits: the other may be stopped. There is room for hundreds of messages;
    /// that the other is gone is learnt by reading.
    pub(super) fn send(&self, message: S) {
        let (kind, number) = message.encode();
        let [a, b, c, d] = number.to_ne_bytes();
        let packet = [kind, a, b, c, d];
        let _gone_or_full = send(&self.0, &packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// The next message, if one is there.
    pub(super) fn next(&self) -> News<R> {
        let mut packet = [0_u8; 5];
        match recv(&self.0, &mut packet, RecvFlags::DONTWAIT) {
            Ok((5, _)) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return News::Nothing,
            // A packet of another length is never sent, an error means that nothing more will come.
            Ok(_) | Err(_) => return News::Gone,
        }
        let [kind, a, b, c, d] = packet;
        R::decode(kind, i32::from_ne_bytes([a, b, c, d])).map_or(News::Nothing, News::Message)
    }
}

impl<S, R> AsFd for End<S, R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A kind and a number: all that has to be said.
pub(super) trait Message: Sized {
    fn encode(&self) -> (u8, i32);
    fn decode(kind: u8, number: i32) -> Option<Self>;
}

impl Message for ToKeeper {
    fn encode(&self) -> (u8, i32) {
        match *self {
            ToKeeper::Continue => (b'C', 0),
            ToKeeper::Signal(signal) => (b'S', signal),
        }
    }

    fn decode(kind: u8, number: i32) -> Option<ToKeeper> {
        match kind {
            b'C' => Some(ToKeeper::Continue),
            b'S' => Some(ToKeeper::Signal(number)),
            _ => None,
        }
    }
}

impl Message for ToFront {
    fn encode(&self) -> (u8, i32) {
        match *self {
            ToFront::Exit(code) => (b'X', code),
            ToFront::Held => (b'H', 0),
            ToFront::Kept(code) => (b'K', code),
            ToFront::Leave(code) => (b'L', code),
            ToFront::Started(group) => (b'P', group),
            ToFront::Stopped(signal) => (b'Z', signal),
        }
    }

    fn decode(kind: u8, number: i32) -> Option<ToFront> {
        match kind {
            b'X' => Some(ToFront::Exit(number)),
            b'H' => Some(ToFront::Held),
            b'K' => Some(ToFront::Kept(number)),
            b'L' => Some(ToFront::Leave(number)),
            b'P' => Some(ToFront::Started(number)),
            b'Z' => Some(ToFront::Stopped(number)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_and_the_end_is_seen_after_them() {
        let (front, keeper) = pair().unwrap();
        assert_eq!(front.next(), News::Nothing);
        let sent = [ToFront::Held, ToFront::Started(71), ToFront::Stopped(20), ToFront::Exit(143)];
        sent.iter().for_each(|message| keeper.send(*message));
        front.send(ToKeeper::Signal(2));
        assert_eq!(keeper.next(), News::Message(ToKeeper::Signal(2)));
        drop(keeper);
        for message in sent {
            assert_eq!(front.next(), News::Message(message));
        }
        assert_eq!(front.next(), News::Gone);
    }

    #[test]
    fn sending_to_a_stopped_process_does_not_block() {
        let (front, keeper) = pair().unwrap();
        for _ in 0..100_000 {
            keeper.send(ToFront::Held);
        }
        assert_eq!(front.next(), News::Message(ToFront::Held));
    }
}
