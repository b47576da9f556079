//! The handshake, for clients that bring their own connection.

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncRead, AsyncWrite};

use super::Tls;

/// What a connection runs over, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Encrypts a connection to this host and verifies that it is that host.
#[cfg(feature = "tls")]
pub(crate) async fn encrypt(
    tls: &Tls,
    host: &str,
    stream: impl Stream + 'static,
    protocol: Option<&[u8]>,
) -> Result<Box<dyn Stream>> {
    // Files are read on another thread: the client has only one for all its tasks.
    let tls = tls.clone();
    let loaded = tokio::task::spawn_blocking(move || tls.kept.config(&tls)).await;
    let mut config = (*loaded.map_err(invalid)??).clone();
    config.alpn_protocols.extend(protocol.map(<[u8]>::to_vec));
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let name = tokio_rustls::rustls::pki_types::ServerName::try_from(host.to_owned());
    let stream = connector.connect(name.map_err(invalid)?, stream).await?;
    Ok(Box::new(stream))
}

/// Never reached: `Tls::take` fails in a build without the feature `tls`.
#[cfg(not(feature = "tls"))]
pub(crate) async fn encrypt(
    _: &Tls,
    _: &str,
    _: impl Stream + 'static,
    _: Option<&[u8]>,
) -> Result<Box<dyn Stream>> {
    Err(invalid("tenure was built without TLS"))
}

pub(super) fn invalid(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::InvalidInput, reason)
}
