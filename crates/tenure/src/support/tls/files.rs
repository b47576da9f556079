//! What the PEM files of a URL say, read again when they have changed: renewed certificates count
//! for the next connection, and unchanged ones cost nothing.

use std::fmt;
use std::io::Result;
use std::sync::Arc;
use std::time::Duration;

use rustls_native_certs::CertificateResult;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::Tls;
use super::encrypt::invalid;
use super::verifier::Verifier;
use crate::support::clock::{Clock, Moment};
use crate::support::sync::Mutex;

/// For how long the system's roots are kept.
const SYSTEM_ROOTS: Duration = Duration::from_secs(600);

/// What was read last, shared by the clones of a [`Tls`].
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Option<Loaded>>>);

struct Loaded {
    stamps: Vec<Stamp>,
    at: Moment,
    config: Arc<ClientConfig>,
}

/// When a file was changed last, and its size, as text to compare; `None` if it cannot be seen.
type Stamp = Option<String>;

impl Kept {
    /// The files as they are now. Blocks.
    pub(super) fn config(&self, tls: &Tls) -> Result<Arc<ClientConfig>> {
        // Before reading, so that a change while it reads is noticed the next time.
        let stamps = stamps(tls);
        let at = Clock::Boot.now();
        let mut kept = self.0.lock();
        // Where the system has its roots is not known here: those are read again after a while.
        let fresh = |loaded: &&Loaded| {
            loaded.stamps == stamps && (tls.ca.is_some() || at < loaded.at + SYSTEM_ROOTS)
        };
        if let Some(loaded) = kept.as_ref().filter(fresh) {
            return Ok(loaded.config.clone());
        }
        let config = Arc::new(load(tls)?);
        *kept = Some(Loaded { stamps, at, config: config.clone() });
        Ok(config)
    }
}

/// Without the key.
impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

fn stamps(tls: &Tls) -> Vec<Stamp> {
    let identity = tls.identity.iter().flat_map(|(cert, key)| [cert, key]);
    let stamp = |path: &String| {
        let seen = std::fs::metadata(path).ok()?;
        Some(format!("{:?} {}", seen.modified().ok()?, seen.len()))
    };
    tls.ca.iter().chain(identity).map(stamp).collect()
}

fn load(tls: &Tls) -> Result<ClientConfig> {
    let roots = match &tls.ca {
        Some(path) => roots_of(path)?,
        None => roots_of_system(rustls_native_certs::load_native_certs())?,
    };
    let pinned = match &tls.ca {
        Some(path) => certificates(path)?,
        None => Vec::new(),
    };
    let provider = Arc::new(ring::default_provider());
    let verifier = Verifier::new(roots, pinned, provider.clone())?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(invalid)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let Some((cert, key)) = &tls.identity else { return Ok(config.with_no_client_auth()) };
    let name = |error| invalid(format!("cannot read the key `{key}`: {error}"));
    let secret = PrivateKeyDer::from_pem_file(key).map_err(name)?;
    config.with_client_auth_cert(certificates(cert)?, secret).map_err(invalid)
}

fn roots_of(path: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(invalid)?;
    }
    if roots.is_empty() {
        return Err(invalid(format!("no certificate was found in `{path}`")));
    }
    Ok(roots)
}

/// Some of them may be unreadable or malformed. Without any, every server would seem to be signed
/// by an unknown authority.
fn roots_of_system(found: CertificateResult) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if !roots.is_empty() {
        return Ok(roots);
    }
    let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
    Err(invalid(format!(
        "no root certificate was found on this system{why}; install them, or name a file by the \
         option `ca` or in SSL_CERT_FILE"
    )))
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>> {
    let name = |error| invalid(format!("cannot read the certificates in `{path}`: {error}"));
    let found = CertificateDer::pem_file_iter(path).map_err(name)?;
    found.collect::<std::result::Result<_, _>>().map_err(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(ca: &std::path::Path) -> Tls {
        Tls { ca: Some(ca.display().to_string()), ..Tls::default() }
    }

    #[test]
    fn files_are_read_again_when_they_have_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, ROOT).unwrap();
        let tls = with(&path);
        let first = tls.kept.config(&tls).unwrap();
        assert!(Arc::ptr_eq(&first, &tls.clone().kept.config(&tls).unwrap()), "read again");
        std::fs::write(&path, format!("{ROOT}\n# renewed")).unwrap();
        assert!(!Arc::ptr_eq(&first, &tls.kept.config(&tls).unwrap()), "not read again");
        std::fs::write(&path, "").unwrap();
        let error = tls.kept.config(&tls).unwrap_err().to_string();
        assert!(error.contains("no certificate was found in"), "{error}");
    }

    #[test]
    fn a_system_without_roots_is_said_to_have_none() {
        let error = roots_of_system(CertificateResult::default()).unwrap_err().to_string();
        assert!(error.contains("no root certificate was found on this system"), "{error}");
    }

    /// A root that signs nothing.
    const ROOT: &str = "-----BEGIN CERTIFICATE-----\n\
MIIBeTCCAR+gAwIBAgIUVmd14X976xbXpOY0EELbSINyFB0wCgYIKoZIzj0EAwIw\n\
ETEPMA0GA1UEAwwGbm9ib2R5MCAXDTI2MTExNzIyMzkwMloYDzIxMjYxMDI0MjIz\n\
OTAyWjARMQ8wDQYDVQQDDAZub2JvZHkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\n\
AAR18kDzpggbVzQYB4GqWljlsZtPKvQeEgHxq6bnZMP83sNAhacCJHGYP7dUD+eW\n\
1hxbVTIxV6Thy8fCE5vqhVMxo1MwUTAdBgNVHQ4EFgQUM0DHosf3xTe+3UfvfyEM\n\
bGSH8PMwHwYDVR0jBBgwFoAUM0DHosf3xTe+3UfvfyEMbGSH8PMwDwYDVR0TAQH/\n\
BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiEA6zf8sI7lJ7YjiWgdjihSkj0kCnRG\n\
Kp3JjksL8ByBtzYCIGaugLzkia6aePcdwy1mfnxjgAP2/dnxoMZMTZ1N+89V\n\
-----END CERTIFICATE-----";
}
