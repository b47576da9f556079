//! What stands between a socket and the reactor: it decides which events of the socket pass.
//!
//! On Linux it is an epoll of its own with the socket in it. An epoll is ready when something in it
//! is, so that the reactor can wait for it like for a socket; and which events count is changed by
//! one system call, without the reactor's knowledge. Changing it reports what is ready already.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

/// Decides which events of a socket the reactor sees.
#[derive(Debug)]
pub(super) struct Gate(OwnedFd);

impl AsRawFd for Gate {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create, modify};

    use super::*;

    impl Gate {
        /// An epoll is readable when something in it is ready, whatever that is ready for.
        pub(in crate::support::socket) const INTEREST: Interest = Interest::READABLE;

        /// Ready when an event has passed, which may be that there is room to write.
        pub(in crate::support::socket) fn poll_writable<'a>(
            gate: &'a AsyncFd<Gate>,
            context: &mut Context<'_>,
        ) -> Poll<io::Result<AsyncFdReadyGuard<'a, Gate>>> {
            gate.poll_read_ready(context)
        }

        /// Lets through that there is something to read.
        pub(in crate::support::socket) fn new(socket: &OwnedFd) -> io::Result<Gate> {
            let epoll = create(CreateFlags::CLOEXEC)?;
            add(&epoll, socket, EventData::new_u64(0), events(true, false))?;
            Ok(Gate(epoll))
        }

        pub(in crate::support::socket) fn set(
            &self,
            socket: &OwnedFd,
            readable: bool,
            writable: bool,
        ) -> io::Result<()> {
            let events = events(readable, writable);
            Ok(modify(&self.0, socket, EventData::new_u64(0), events)?)
        }
    }

    fn events(readable: bool, writable: bool) -> EventFlags {
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN | EventFlags::RDHUP, readable);
        events.set(EventFlags::OUT, writable);
        events
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use super::*;

    /// Here it is the socket itself: every event passes, at the cost of some wake-ups in vain.
    impl Gate {
        pub(in crate::support::socket) const INTEREST: Interest =
            Interest::READABLE.add(Interest::WRITABLE);

        pub(in crate::support::socket) fn poll_writable<'a>(
            gate: &'a AsyncFd<Gate>,
            context: &mut Context<'_>,
        ) -> Poll<io::Result<AsyncFdReadyGuard<'a, Gate>>> {
            gate.poll_write_ready(context)
        }

        pub(in crate::support::socket) fn new(socket: &OwnedFd) -> io::Result<Gate> {
            Ok(Gate(socket.try_clone()?))
        }

        pub(in crate::support::socket) fn set(
            &self,
            _socket: &OwnedFd,
            _readable: bool,
            _writable: bool,
        ) -> io::Result<()> {
            Ok(())
        }
    }
}
