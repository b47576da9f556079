//! The TLS handshake in the form that the client library calls it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use crate::support::socket::Socket;
use crate::support::tls::{Stream, Tls, encrypt};

/// Encrypts a TCP connection after the server has agreed to it.
pub(crate) struct TlsHandshake<'a> {
    pub(crate) tls: &'a Tls,
    pub(crate) host: &'a str,
}

impl<'a> TlsConnect<Socket> for TlsHandshake<'a> {
    type Stream = EncryptedStream;
    type Error = io::Error;
    type Future = BoxFuture<'a, io::Result<EncryptedStream>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(
            async move { encrypt(self.tls, self.host, socket, None).await.map(EncryptedStream) },
        )
    }
}

/// An encrypted connection.
pub(crate) struct EncryptedStream(Box<dyn Stream>);

impl TlsStream for EncryptedStream {
    /// The certificate was verified against the host's name; the password is not bound to it too.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for EncryptedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for EncryptedStream {
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
