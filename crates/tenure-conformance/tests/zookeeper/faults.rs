//! Releases that fail while the session goes on, fixed leases, and conditions for transactions.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::backends::Zookeeper;
use tenure::{Attempt, Config, ErrorKind, Key};
use tenure_conformance::context::{soon, until};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use crate::{acquire_free, claim, open};

server_cases! {
    failed_release_is_repeated_when_the_network_heals Zookeeper;
    fixed_lease_lasts_its_whole_ttl Zookeeper;
    fixed_lease_above_the_servers_maximum_is_refused Zookeeper;
    condition_is_found_for_a_guard_of_a_client_with_a_prefix Zookeeper;
}

/// The client library closes a silent connection after two fifths of the session, and with it the
/// delete request is lost; the session itself is kept alive by later pings.
async fn failed_release_is_repeated_when_the_network_heals(cluster: &Cluster) -> Result<()> {
    let ttl = Duration::from_secs(4);
    for layout in ["queue", "ephemeral"] {
        let proxy = cluster.node().proxy()?;
        let url = |address: &str| format!("zk://{address}/{layout}?session=4s&layout={layout}");
        let far = open(&url(&proxy.address())).await?;
        let near = open(&url(&cluster.node().address())).await?;
        let (mut mine, mut other) = (claim("k")?, claim("k")?);
        (mine.ttl, other.ttl) = (ttl, ttl);
        far.try_acquire(&mine).await?.granted()?;
        proxy.cut();
        ensure!(far.release(&mine).await.is_err(), "{layout}: released over a cut connection");
        // Requests that were held up are lost with their connection.
        proxy.reset();
        proxy.heal();
        let free = async || {
            let attempt = near.try_acquire(&other).await?;
            Ok(matches!(attempt, Attempt::Granted(_)).then_some(()))
        };
        until(ttl * 2, &format!("{layout}: a free key"), free).await?;
        near.release(&other).await?;
        ensure!(
            matches!(far.try_acquire(&mine).await?, Attempt::Granted(_)),
            "{layout}: not granted"
        );
        ensure!(far.release(&mine).await?, "{layout}: it was held");
    }
    Ok(())
}

/// The lease is twice the session of the URL, and the connection is cut from the grant on.
async fn fixed_lease_lasts_its_whole_ttl(cluster: &Cluster) -> Result<()> {
    let ttl = Duration::from_secs(6);
    for layout in ["queue", "ephemeral"] {
        let proxy = cluster.node().proxy()?;
        let url = |address: &str| format!("zk://{address}/{layout}?session=3s&layout={layout}");
        let far = open(&url(&proxy.address())).await?;
        let near = open(&url(&cluster.node().address())).await?;
        let (mut mine, mut other) = (claim("k")?, claim("k")?);
        (mine.ttl, other.ttl, mine.fixed) = (ttl, ttl, true);
        // The session for leases of this length is opened before.
        far.try_acquire(&mine).await?.granted()?;
        ensure!(far.release(&mine).await?, "{layout}: it was held");
        tokio::time::sleep(ttl / 6).await;
        let sent = tokio::time::Instant::now();
        let grant = far.try_acquire(&mine).await?.granted()?;
        proxy.cut();
        ensure!(grant.ttl == ttl, "{layout}: {:?} of {ttl:?}", grant.ttl);
        let free = async || {
            let attempt = near.try_acquire(&other).await?;
            Ok(matches!(attempt, Attempt::Granted(_)).then_some(()))
        };
        until(ttl * 2 + ttl / 2, &format!("{layout}: the end of the lease"), free).await?;
        ensure!(sent.elapsed() >= ttl, "{layout}: free after {:?}", sent.elapsed());
        near.release(&other).await?;
    }
    Ok(())
}

async fn fixed_lease_above_the_servers_maximum_is_refused(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&format!("{}/locks", cluster.url())).await?;
    let lock = client.lock("k").ttl(Duration::from_secs(120)).without_renewal();
    let error = soon("try_acquire", lock.try_acquire()).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Invalid, "{error:?}");
    ensure!(error.to_string().contains("40"), "{error}");
    Ok(())
}

async fn condition_is_found_for_a_guard_of_a_client_with_a_prefix(cluster: &Cluster) -> Result<()> {
    for layout in ["queue", "ephemeral"] {
        let url = format!("{}/c{layout}?layout={layout}", cluster.url());
        let zookeeper = Zookeeper::open(&url).await?;
        let client = Config::default().prefix("app/").with_backend(zookeeper.clone());
        let guard = acquire_free(&client.lock("k")).await?;
        let found = zookeeper.condition(guard.key(), guard.token()).await?.context("held")?;
        ensure!(found.path.contains("app%2Fk"), "{found:?}");
        let elsewhere = Zookeeper::open(&url).await?;
        ensure!(elsewhere.condition(&Key::new("app/k")?, guard.token()).await?.is_some());
        let (key, token) = (guard.key().clone(), guard.token());
        guard.release().await?;
        ensure!(zookeeper.condition(&key, token).await?.is_none(), "it was released");
    }
    Ok(())
}
