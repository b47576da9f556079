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
    /// Leave with this code; the signal that ended the command, or 0.
    Exit { code: i32, signal: i32 },
    /// The lock is held: from now on watch over its end.
    Held,
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
        let (kind, numbers) = message.encode();
        let mut packet = [kind, 0, 0, 0, 0, 0, 0, 0, 0];
        packet[1..5].copy_from_slice(&numbers[0].to_ne_bytes());
        packet[5..9].copy_from_slice(&numbers[1].to_ne_bytes());
        let _gone_or_full = send(&self.0, &packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// The next message, if one is there.
    pub(super) fn next(&self) -> News<R> {
        let mut packet = [0_u8; 9];
        match recv(&self.0, &mut packet, RecvFlags::DONTWAIT) {
            Ok((9, _)) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return News::Nothing,
            // A packet of another length is never sent, an error means that nothing more will come.
            Ok(_) | Err(_) => return News::Gone,
        }
        let [kind, a, b, c, d, e, f, g, h] = packet;
        let numbers = [i32::from_ne_bytes([a, b, c, d]), i32::from_ne_bytes([e, f, g, h])];
        R::decode(kind, numbers).map_or(News::Nothing, News::Message)
    }
}

impl<S, R> AsFd for End<S, R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A kind and two numbers: all that has to be said.
pub(super) trait Message: Sized {
    fn encode(&self) -> (u8, [i32; 2]);
    fn decode(kind: u8, numbers: [i32; 2]) -> Option<Self>;
}

impl Message for ToKeeper {
    fn encode(&self) -> (u8, [i32; 2]) {
        match *self {
            ToKeeper::Continue => (b'C', [0, 0]),
            ToKeeper::Signal(signal) => (b'S', [signal, 0]),
        }
    }

    fn decode(kind: u8, [first, _]: [i32; 2]) -> Option<ToKeeper> {
        match kind {
            b'C' => Some(ToKeeper::Continue),
            b'S' => Some(ToKeeper::Signal(first)),
            _ => None,
        }
    }
}

impl Message for ToFront {
    fn encode(&self) -> (u8, [i32; 2]) {
        match *self {
            ToFront::Exit { code, signal } => (b'X', [code, signal]),
            ToFront::Held => (b'H', [0, 0]),
            ToFront::Started(group) => (b'P', [group, 0]),
            ToFront::Stopped(signal) => (b'Z', [signal, 0]),
        }
    }

    fn decode(kind: u8, [first, second]: [i32; 2]) -> Option<ToFront> {
        match kind {
            b'X' => Some(ToFront::Exit { code: first, signal: second }),
            b'H' => Some(ToFront::Held),
            b'P' => Some(ToFront::Started(first)),
            b'Z' => Some(ToFront::Stopped(first)),
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
        let sent = [
            ToFront::Held,
            ToFront::Started(71),
            ToFront::Stopped(20),
            ToFront::Exit { code: 143, signal: 15 },
        ];
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
