//! A server whose certificate signs itself and is an authority, as PostgreSQL's manual makes it.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use tenure_conformance::context::acquire_free;
use tenure_conformance::{certificates, server_cases};
use tenure_servers::{Cluster, Options, Topology, start};

server_cases! {
    a_certificate_that_is_the_given_authority_is_trusted Postgres;
    one_that_has_expired_is_not Postgres;
}

/// An authority that signs itself, for `localhost` and until this year.
fn write_self_signed(folder: &Path, file: &str, until: i32) -> Result<()> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(["localhost".to_owned()])?;
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key)?;
    std::fs::write(folder.join(format!("{file}.pem")), certificate.pem())?;
    let path = folder.join(format!("{file}.key"));
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    Ok(file.write_all(key.serialize_pem().as_bytes())?)
}

async fn a_certificate_that_is_the_given_authority_is_trusted(_: &Cluster) -> Result<()> {
    let folder = tempfile::tempdir()?;
    certificates::write(folder.path())?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    write_self_signed(folder.path(), "server", 2999)?;
    let options = Options::default().tls(folder.path());
    let server = tokio::task::spawn_blocking(move || start(Topology::Postgres, &options)).await??;
    let node = server.node();
    let url = |host: &str, options: &str| {
        let url = node.url_at(&format!("{host}:{}", node.tls_port()));
        format!("{url}?sslmode=verify-full&{options}")
    };
    // The names that libpq has for it.
    for ca in ["ca", "sslrootcert"] {
        let good = url("localhost", &format!("{ca}={}", at("server.pem")));
        let client = tenure::connect(&good)
            .await
            .map_err(|error| anyhow::anyhow!("{:#}", anyhow::Error::from(error)))?;
        acquire_free(&client.lock("k")).await?.release().await?;
    }
    // Another one, of the same name: it is an authority, and not this one.
    write_self_signed(folder.path(), "impostor", 2999)?;
    let other = tenure::connect(&url("localhost", &format!("ca={}", at("impostor.pem")))).await;
    let error = format!("{:#}", anyhow::Error::from(other.map(drop).unwrap_err()));
    ensure!(error.contains("is an authority itself"), "{error}");
    // The right certificate, and a host that it is not for.
    let other = tenure::connect(&url("127.0.0.1", &format!("ca={}", at("server.pem")))).await;
    ensure!(other.is_err(), "a certificate for another name was accepted");
    Ok(())
}

async fn one_that_has_expired_is_not(_: &Cluster) -> Result<()> {
    let folder = tempfile::tempdir()?;
    certificates::write(folder.path())?;
    write_self_signed(folder.path(), "server", 2001)?;
    let options = Options::default().tls(folder.path());
    let server = tokio::task::spawn_blocking(move || start(Topology::Postgres, &options)).await??;
    let url = server.node().url_at(&format!("localhost:{}", server.node().tls_port()));
    let ca = folder.path().join("server.pem");
    let url = format!("{url}?sslmode=verify-full&ca={}", ca.display());
    let error = tenure::connect(&url).await.map(drop).unwrap_err();
    let error = format!("{:#}", anyhow::Error::from(error));
    ensure!(error.contains("expired"), "{error}");
    Ok(())
}
