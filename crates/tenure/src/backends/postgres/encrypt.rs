//! The handshake of an encrypted connection, as the client library asks for it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use crate::tls::{Stream, Tls, encrypt};

/// Encrypts a connection when the server has agreed to it.
pub(super) struct Encrypt<'a> {
    pub(super) tls: &'a Tls,
    pub(super) host: &'a str,
}

impl<'a> TlsConnect<TcpStream> for Encrypt<'a> {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = BoxFuture<'a, io::Result<Encrypted>>;

    fn connect(self, tcp: TcpStream) -> Self::Future {
        Box::pin(async move { encrypt(self.tls, self.host, tcp, None).await.map(Encrypted) })
    }
}

/// An encrypted connection.
pub(super) struct Encrypted(Box<dyn Stream>);

impl TlsStream for Encrypted {
    /// The server's certificate was proven by its name; the password is not tied to it as well.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
