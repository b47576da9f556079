//! Encrypted connections, the same for every backend: rustls with ring, the system's roots or a
//! file of one's own, and a client certificate if the server wants one.

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The PEM files that the URL names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files<'a> {
    /// Whom to trust, instead of the system's roots.
    pub(crate) ca: Option<&'a str>,
    /// Our certificate and its key.
    pub(crate) cert: Option<&'a str>,
    pub(crate) key: Option<&'a str>,
}

/// Encrypts a connection to this host and makes sure that it is that host.
pub(crate) async fn connect(
    files: Files<'_>,
    host: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>> {
    let connector = TlsConnector::from(Arc::new(configure(files)?));
    let name = ServerName::try_from(host.to_owned()).map_err(invalid)?;
    connector.connect(name, stream).await
}

/// Read anew for each connection, so that renewed certificates count.
fn configure(files: Files<'_>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match files.ca {
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
    match (files.cert, files.key) {
        (None, None) => Ok(config.with_no_client_auth()),
        (Some(cert), Some(key)) => {
            let name = |error| invalid(format!("cannot read the key `{key}`: {error}"));
            let secret = PrivateKeyDer::from_pem_file(key).map_err(name)?;
            config.with_client_auth_cert(certificates(cert)?, secret).map_err(invalid)
        }
        _ => Err(invalid("`cert` and `key` have to be given together")),
    }
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>> {
    let name = |error| invalid(format!("cannot read the certificates in `{path}`: {error}"));
    let found = CertificateDer::pem_file_iter(path).map_err(name)?;
    found.collect::<std::result::Result<_, _>>().map_err(name)
}

fn invalid(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::InvalidInput, reason)
}
