//! A stream socket that any thread may read and write.
//!
//! The sockets of tokio read only after the reactor of their runtime has reported that they are
//! readable. But the thread of that reactor may be asleep while the thread that polls could read
//! the response itself. So this one tries the system call first where that is worth it, and uses
//! the reactor only to wait:
//!
//! - **A write** is tried at once. Only if the socket's buffer is full does it wait.
//! - **A read** waits for the reactor, except after [`SocketHandle::wait_readable`] has found that
//!   there is something to read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Socket(Arc<SocketHandle>);

/// A socket for threads that do not own the [`Socket`].
#[derive(Debug)]
pub(crate) struct SocketHandle {
    stream: StreamSocket,
    /// Whether the next read is tried without the reactor.
    read_now: AtomicBool,
}

#[derive(Debug)]
enum StreamSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl From<TcpStream> for Socket {
    fn from(tcp: TcpStream) -> Socket {
        Socket::new(StreamSocket::Tcp(tcp))
    }
}

impl From<UnixStream> for Socket {
    fn from(unix: UnixStream) -> Socket {
        Socket::new(StreamSocket::Unix(unix))
    }
}

impl Socket {
    fn new(stream: StreamSocket) -> Socket {
        Socket(Arc::new(SocketHandle { stream, read_now: AtomicBool::new(false) }))
    }

    pub(crate) fn handle(&self) -> Arc<SocketHandle> {
        self.0.clone()
    }
}

impl SocketHandle {
    /// Blocks until there is something to read, but not for longer than `limit`, which has to be
    /// less than a second. `true` if there is; then the next read is tried without the reactor.
    pub(crate) fn wait_readable(&self, limit: Duration) -> bool {
        let mut sockets = [PollFd::new(self, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        let readable = poll(&mut sockets, Some(&timeout)).is_ok_and(|count| count > 0);
        if readable {
            self.read_now.store(true, Ordering::Relaxed);
        }
        readable
    }

    fn poll_ready(&self, interest: Interest, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match (&self.stream, interest.is_readable()) {
            (StreamSocket::Tcp(tcp), true) => tcp.poll_read_ready(context),
            (StreamSocket::Tcp(tcp), false) => tcp.poll_write_ready(context),
            (StreamSocket::Unix(unix), true) => unix.poll_read_ready(context),
            (StreamSocket::Unix(unix), false) => unix.poll_write_ready(context),
        }
    }

    /// A system call that the reactor has reported to be worth it. If it would block, the next one
    /// waits for the reactor again.
    fn try_io<T>(&self, interest: Interest, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match &self.stream {
            StreamSocket::Tcp(tcp) => tcp.try_io(interest, call),
            StreamSocket::Unix(unix) => unix.try_io(interest, call),
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
}

impl AsFd for SocketHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            StreamSocket::Tcp(tcp) => tcp.as_fd(),
            StreamSocket::Unix(unix) => unix.as_fd(),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let handle = &self.0;
        if handle.read_now.swap(false, Ordering::Relaxed) {
            match handle.read(buffer) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        loop {
            ready!(handle.poll_ready(Interest::READABLE, context))?;
            let mut short = None;
            let read = handle.try_io(Interest::READABLE, || {
                let read = handle.read(buffer)?;
                if 0 < read && read < buffer.remaining() {
                    // The kernel had no more than this: the next read would only find that out.
                    short = Some(read);
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Ok(read)
            });
            match (read, short) {
                (Ok(read), _) | (_, Some(read)) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                (Err(error), None) if error.kind() == io::ErrorKind::WouldBlock => {}
                (Err(error), None) => return Poll::Ready(Err(error)),
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
        let write = || {
            let sent = send(handle, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            sent.map_err(io::Error::from)
        };
        let mut written = write();
        loop {
            match written {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => written = write(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(handle.poll_ready(Interest::WRITABLE, context))?;
                    written = handle.try_io(Interest::WRITABLE, write);
                }
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write)?;
        Poll::Ready(Ok(()))
    }
}
