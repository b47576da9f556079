//! Credentials that the caller's code gives for each connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use tenure::{Config, Credentials, Error, ErrorKind};
use tenure_conformance::context::{acquire_free, soon};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use crate::without_password;

server_cases! {
    each_connection_gets_credentials_of_its_own Redis;
    each_connection_gets_credentials_of_its_own Postgres;
    each_connection_gets_credentials_of_its_own Mariadb;
    a_source_that_fails_for_a_while_is_an_outage Redis;
    a_source_that_fails_for_a_while_is_an_outage Postgres;
    wrong_credentials_are_denied Redis;
    wrong_credentials_are_denied Postgres;
    wrong_credentials_are_denied Mariadb;
    zookeeper_says_that_it_takes_none Zookeeper;
}

/// The server restarts: the connections after it need credentials too.
async fn each_connection_gets_credentials_of_its_own(cluster: &Cluster) -> Result<()> {
    let password = cluster.node().password().context("a password")?;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let config: Config = without_password(cluster).parse()?;
    let config = config.credentials(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let password = password.clone();
        async move { Ok::<_, Error>(Credentials::password(password)) }
    });
    let client = config.connect().await?;
    acquire_free(&client.lock("k")).await?.release().await?;
    let before = calls.load(Ordering::Relaxed);
    ensure!(before > 0, "the credentials were not asked for");
    for _ in 0..5 {
        acquire_free(&client.lock("k")).await?.release().await?;
    }
    ensure!(calls.load(Ordering::Relaxed) == before, "they were asked for without a connection");
    cluster.node().restart()?;
    soon("acquire", client.lock("k").acquire()).await??.release().await?;
    ensure!(calls.load(Ordering::Relaxed) > before, "the new connection has the old credentials");
    Ok(())
}

/// Where they come from does not respond at first.
async fn a_source_that_fails_for_a_while_is_an_outage(cluster: &Cluster) -> Result<()> {
    let password = cluster.node().password().context("a password")?;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let config: Config = without_password(cluster).parse()?;
    let config = config.credentials(move || {
        let is_down = counted.fetch_add(1, Ordering::Relaxed) < 3;
        let password = password.clone();
        async move {
            if is_down {
                return Err(std::io::Error::other("the vault is sealed"));
            }
            Ok(Credentials::password(password))
        }
    });
    let client = config.connect_lazy()?;
    let error = client.lock("k").try_acquire().await.map(drop).unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(error.to_string().contains("the vault is sealed"), "{error}");
    soon("acquire", client.lock("k").acquire()).await??.release().await?;
    ensure!(calls.load(Ordering::Relaxed) > 3);
    Ok(())
}

async fn wrong_credentials_are_denied(cluster: &Cluster) -> Result<()> {
    let config: Config = without_password(cluster).parse()?;
    let config = config
        .credentials(|| async { Ok::<_, Error>(Credentials::new("mallory", "XQZ-not-it-ZQX")) });
    let error = config.clone().connect().await.map(drop).unwrap_err();
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    let shown = format!("{error:?} {error} {config:?}");
    ensure!(!shown.contains("XQZ"), "the password is shown: {shown}");
    // An error of tenure keeps its kind: this one is not repeated.
    let config: Config = without_password(cluster).parse()?;
    let denied = || async { Err(Error::new(ErrorKind::Denied, "the role is gone")) };
    let config = config.credentials(denied).outage(std::time::Duration::from_secs(60));
    let error = soon("connect", config.connect()).await?.map(drop).unwrap_err();
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    ensure!(error.to_string().contains("the role is gone"), "{error}");
    Ok(())
}

async fn zookeeper_says_that_it_takes_none(cluster: &Cluster) -> Result<()> {
    let config: Config = cluster.url().replace("zookeeper://", "zk://").parse()?;
    let config = config.credentials(|| async { Ok::<_, Error>(Credentials::password("x")) });
    let error = config.connect().await.map(drop).unwrap_err();
    ensure!(error.kind() == ErrorKind::Unsupported, "{error:?}");
    Ok(())
}
