//! A stream socket that any thread may read and write, and whose reader can be held back.
//!
//! The sockets of tokio read only after the reactor of their runtime has reported that they are
//! readable, and that reactor is woken by everything that arrives. But the thread that sent a
//! request may be about to read the response itself: then waking the reactor's thread costs more
//! than the request. So this socket tries the system call first where that is worth it, and uses
//! the reactor only to wait:
//!
//! - **A write** is tried at once. Only if the socket's buffer is full does it wait.
//! - **A read** waits for the reactor, except after [`HeldBack::wait_readable`] has found that
//!   there is something to read, or after a read that filled its buffer.
//! - **[`SocketHandle::hold_back`]** keeps the reactor from being woken, until its value is
//!   dropped. What arrived meanwhile and was not read wakes it then.
//!
//! On Linux this needs an epoll of its own between the socket and the reactor (see [`Gate`]);
//! elsewhere the reactor is not held back, which costs time only.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use self::gate::Gate;
use crate::support::sync::Mutex;

mod gate;

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Socket(Arc<SocketHandle>);

/// A socket for threads that do not own the [`Socket`].
#[derive(Debug)]
pub(crate) struct SocketHandle {
    stream: OwnedFd,
    /// Ready when the gate lets an event of the socket through.
    gate: AsyncFd<Gate>,
    wanted: Mutex<Wanted>,
    /// Whether the next read is tried without the reactor.
    read_now: AtomicBool,
    /// The reader that waits for the reactor.
    reader: AtomicWaker,
}

/// Which events of the socket the reactor is to be woken by.
#[derive(Debug, Default)]
struct Wanted {
    /// How many threads hold the reactor back.
    held_back: usize,
    /// Whether a write waits for room in the socket's buffer.
    writable: bool,
}

/// Holds the reactor back until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldBack<'a>(&'a SocketHandle);

impl Socket {
    /// Must be called within a runtime, as the other one.
    pub(crate) fn tcp(tcp: TcpStream) -> io::Result<Socket> {
        Socket::new(tcp.into_std()?.into())
    }

    pub(crate) fn unix(unix: UnixStream) -> io::Result<Socket> {
        Socket::new(unix.into_std()?.into())
    }

    #[expect(
        deprecated,
        reason = "its successor is unsafe because a type could change its \
              descriptor; a gate owns one descriptor for its whole life"
    )]
    fn new(stream: OwnedFd) -> io::Result<Socket> {
        let gate = AsyncFd::with_interest(Gate::new(&stream)?, Gate::INTEREST)?;
        let wanted = Mutex::default();
        Ok(Socket(Arc::new(SocketHandle {
            stream,
            gate,
            wanted,
            read_now: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        })))
    }

    pub(crate) fn handle(&self) -> Arc<SocketHandle> {
        self.0.clone()
    }
}

impl SocketHandle {
    /// From now on the reactor is not woken by what arrives: this thread will read it.
    pub(crate) fn hold_back(&self) -> HeldBack<'_> {
        self.want(|wanted| wanted.held_back += 1);
        HeldBack(self)
    }

    /// Changes which events the gate lets through.
    fn want(&self, change: impl FnOnce(&mut Wanted)) {
        let mut wanted = self.wanted.lock();
        let before = (wanted.held_back > 0, wanted.writable);
        change(&mut wanted);
        let after = (wanted.held_back > 0, wanted.writable);
        if before != after {
            // An error would be one of memory or of a wrong descriptor, and there is none of both:
            // the socket is in the gate for as long as this value lives.
            let _never = self.gate.get_ref().set(&self.stream, !after.0, after.1);
        }
    }

    /// Reads into the unfilled part of a buffer, without advancing it.
    fn read(&self, buffer: &mut ReadBuf<'_>) -> io::Result<usize> {
        loop {
            match recv(self, buffer.initialize_unfilled(), RecvFlags::DONTWAIT) {
                Ok((read, _)) => return Ok(read),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Blocks until there is something to read, but not for longer than `limit`.
    fn is_readable(&self, limit: Duration) -> bool {
        let mut sockets = [PollFd::new(self, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        poll(&mut sockets, Some(&timeout)).is_ok_and(|count| count > 0)
    }

    /// Ready when the next read is worth trying; with the reactor's word for it, if that said so.
    fn poll_readable(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<AsyncFdReadyGuard<'_, Gate>>>> {
        if self.read_now.swap(false, Ordering::SeqCst) {
            return Poll::Ready(Ok(None));
        }
        if let Poll::Ready(ready) = self.gate.poll_read_ready(context) {
            return Poll::Ready(ready.map(Some));
        }
        self.reader.register(context.waker());
        // A thread that found something since then did not find the waker.
        if self.read_now.swap(false, Ordering::SeqCst) {
            return Poll::Ready(Ok(None));
        }
        Poll::Pending
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match send(self, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                written => return Ok(written?),
            }
        }
    }
}

impl HeldBack<'_> {
    /// Blocks until there is something to read, but not for longer than `limit`, which has to be
    /// less than a second. `true` if there is; then the next read is tried without the reactor.
    pub(crate) fn wait_readable(&self, limit: Duration) -> bool {
        let readable = self.0.is_readable(limit);
        if readable {
            self.0.read_now.store(true, Ordering::SeqCst);
        }
        readable
    }
}

impl Drop for HeldBack<'_> {
    /// What arrived since the last read has to wake the reader. The gate does not see to that: it
    /// may still have the socket in its list of what is ready, from an event before, and then does
    /// not report it again.
    fn drop(&mut self) {
        self.0.want(|wanted| wanted.held_back -= 1);
        if self.0.is_readable(Duration::ZERO) {
            self.0.read_now.store(true, Ordering::SeqCst);
            self.0.reader.wake();
        }
    }
}

impl AsFd for SocketHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let handle = &self.0;
        let mut ready = None;
        loop {
            ready = ready!(handle.poll_readable(context))?.or(ready);
            match handle.read(buffer) {
                Ok(read) => {
                    if read == buffer.remaining() {
                        // There may be more, which the gate need not report: the reactor was held
                        // back when it arrived.
                        handle.read_now.store(true, Ordering::SeqCst);
                    } else if read > 0 {
                        // The kernel had no more than this: the next read would only find that out.
                        ready.into_iter().for_each(|mut ready| ready.clear_ready());
                    }
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.take().into_iter().for_each(|mut ready| ready.clear_ready());
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let handle = &self.0;
        let is_full = |written: &io::Result<usize>| {
            written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        let mut written = handle.write(bytes);
        if is_full(&written) {
            handle.want(|wanted| wanted.writable = true);
            // There may be room since: the gate reports only what happens from now on.
            written = handle.write(bytes);
            while is_full(&written) {
                let mut ready = ready!(Gate::poll_writable(&handle.gate, context))?;
                // It may also be that there is something to read, which must not be forgotten: the
                // reader may have been polled already.
                handle.read_now.store(true, Ordering::SeqCst);
                handle.reader.wake();
                ready.clear_ready();
                written = handle.write(bytes);
            }
        }
        if handle.wanted.lock().writable {
            handle.want(|wanted| wanted.writable = false);
        }
        Poll::Ready(written)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write)?;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
