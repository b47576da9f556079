//! Connections for HTTP clients, encrypted if the URL says so.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tower_service::Service;

use super::{Stream, Tls, encrypt};

const CONNECT: Duration = Duration::from_secs(1);
const HANDSHAKE: Duration = Duration::from_secs(2);

/// Opens connections.
#[derive(Clone)]
pub(crate) struct Dial {
    tcp: HttpConnector,
    tls: Option<Arc<Tls>>,
    protocol: &'static [u8],
}

impl Dial {
    /// `protocol` selects one on servers that offer several on one port (ALPN).
    pub(crate) fn new(tls: Option<Tls>, protocol: &'static [u8]) -> Dial {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        Dial { tcp, tls: tls.map(Arc::new), protocol }
    }
}

impl Service<Uri> for Dial {
    type Response = HttpStream;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<HttpStream, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.tls.clone();
        let protocol = self.protocol;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let connecting = self.tcp.call(uri);
        Box::pin(async move {
            let tcp = connecting.await?.into_inner();
            let stream: Box<dyn Stream> = match tls {
                None => Box::new(tcp),
                Some(tls) => {
                    let handshake = encrypt(&tls, &host, tcp, Some(protocol));
                    tokio::time::timeout(HANDSHAKE, handshake).await??
                }
            };
            Ok(HttpStream(TokioIo::new(stream)))
        })
    }
}

/// An open connection.
pub(crate) struct HttpStream(TokioIo<Box<dyn Stream>>);

impl Connection for HttpStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for HttpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for HttpStream {
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
