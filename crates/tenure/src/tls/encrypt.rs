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
    let mut config = configured::with(tls)?;
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

#[cfg(feature = "tls")]
mod configured {
    use std::io::Result;
    use std::sync::Arc;

    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    use super::{Tls, invalid};

    /// Read anew for each connection, so that renewed certificates count.
    pub(super) fn with(tls: &Tls) -> Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        match &tls.ca {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(invalid)?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
            }
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(invalid)?
            .with_root_certificates(roots);
        let Some((cert, key)) = &tls.identity else { return Ok(config.with_no_client_auth()) };
        let name = |error| invalid(format!("cannot read the key `{key}`: {error}"));
        let secret = PrivateKeyDer::from_pem_file(key).map_err(name)?;
        config.with_client_auth_cert(certificates(cert)?, secret).map_err(invalid)
    }

    fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>> {
        let name = |error| invalid(format!("cannot read the certificates in `{path}`: {error}"));
        let found = CertificateDer::pem_file_iter(path).map_err(name)?;
        found.collect::<std::result::Result<_, _>>().map_err(name)
    }
}

fn invalid(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::InvalidInput, reason)
}
