//! Whether a server's certificate is to be trusted: by the usual rules, and one more. PostgreSQL's
//! manual, and many others, make a certificate that signs itself and is an authority too; the usual
//! rules refuse it for a server. If that very certificate is what `ca` names, it is trusted.

use std::io;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::encrypt::invalid;

/// How the usual rules refuse an authority as a server. The type of that error is not public.
const IS_AUTHORITY: &str = "CaUsedAsEndEntity";

#[derive(Debug)]
pub(super) struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    /// The certificates that the option `ca` names.
    pinned: Vec<CertificateDer<'static>>,
}

impl Verifier {
    pub(super) fn new(
        roots: RootCertStore,
        pinned: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> io::Result<Verifier> {
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        Ok(Verifier { usual: usual.build().map_err(invalid)?, pinned })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let usual =
            self.usual.verify_server_cert(end_entity, intermediates, name, ocsp_response, now);
        // Dates are checked before this, so that one that has expired has another error.
        let is_authority = matches!(
            &usual,
            Err(Error::InvalidCertificate(CertificateError::Other(error)))
                if format!("{error:?}").contains(IS_AUTHORITY)
        );
        if !is_authority {
            return usual;
        }
        if !self.pinned.iter().any(|pinned| pinned == end_entity) {
            return Err(Error::General(
                "the server's certificate is an authority itself: name it by the option `ca`, or \
                 give the server one that an authority has signed"
                    .to_owned(),
            ));
        }
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}
