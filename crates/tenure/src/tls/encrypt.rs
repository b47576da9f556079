//! The handshake, for clients that bring their own connection.

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::Tls;

/// What a connection runs over, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Encrypts a connection to this host and makes sure that it is that host.
#[cfg(feature = "tls")]
pub(crate) async fn encrypt(
    tls: &Tls,
    host: &str,
    tcp: TcpStream,
    protocol: Option<&[u8]>,
) -> Result<Box<dyn Stream>> {
    // Files are read elsewhere than on the client's only thread.
    let tls = tls.clone();
    let loaded = tokio::task::spawn_blocking(move || tls.kept.config(&tls)).await;
    let mut config = (*loaded.map_err(invalid)??).clone();
    config.alpn_protocols.extend(protocol.map(<[u8]>::to_vec));
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let name = tokio_rustls::rustls::pki_types::ServerName::try_from(host.to_owned());
    let stream = connector.connect(name.map_err(invalid)?, tcp).await?;
    Ok(Box::new(stream))
}

/// Never reached: nobody can ask for it.
#[cfg(not(feature = "tls"))]
pub(crate) async fn encrypt(
    _: &Tls,
    _: &str,
    _: TcpStream,
    _: Option<&[u8]>,
) -> Result<Box<dyn Stream>> {
    Err(invalid("tenure was built without TLS"))
}

pub(super) fn invalid(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::InvalidInput, reason)
}
