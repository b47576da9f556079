//! An authority of one's own, with a certificate each for a server and a client: what a test of
//! encrypted connections needs.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// Writes `ca.pem`, and `server` and `client` as `.pem` and `.key`, for the host `localhost`.
///
/// # Errors
///
/// The folder cannot be written to.
pub fn write(folder: &Path) -> Result<()> {
    let key = KeyPair::generate()?;
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "tests of tenure");
    std::fs::write(folder.join("ca.pem"), authority.self_signed(&key)?.pem())?;
    let authority = Issuer::new(authority, key);
    for name in ["server", "client"] {
        let key = KeyPair::generate()?;
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &authority)?;
        std::fs::write(folder.join(format!("{name}.pem")), certificate.pem())?;
        // Servers refuse a key that others can read.
        let path = folder.join(format!("{name}.key"));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(key.serialize_pem().as_bytes())?;
    }
    Ok(())
}
