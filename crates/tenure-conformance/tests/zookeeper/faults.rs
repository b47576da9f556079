//! Requests that fail while the session lives on, servers that are silent or out of the ensemble.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::Attempt;
use tenure_conformance::bench::until;
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use crate::{claim, open};

server_cases! {
    a_failed_release_is_made_good_when_the_network_heals Zookeeper;
}

/// The library gives the silent connection up after two fifths of the session, and with it the
/// delete; the session itself lives on by the pings that follow.
async fn a_failed_release_is_made_good_when_the_network_heals(cluster: &Cluster) -> Result<()> {
    let ttl = Duration::from_secs(4);
    for layout in ["queue", "ephemeral"] {
        let link = cluster.node().proxy()?;
        let url = |address: &str| format!("zk://{address}/{layout}?session=4s&layout={layout}");
        let far = open(&url(&link.address())).await?;
        let near = open(&url(&cluster.node().address())).await?;
        let (mut mine, mut other) = (claim("k")?, claim("k")?);
        (mine.ttl, other.ttl) = (ttl, ttl);
        far.try_acquire(&mine).await?.granted()?;
        link.cut();
        ensure!(far.release(&mine).await.is_err(), "{layout}: released over a cut link");
        // What was held up is lost with its connection.
        link.reset();
        link.heal();
        let free = async || {
            let attempt = near.try_acquire(&other).await?;
            Ok(matches!(attempt, Attempt::Granted(_)).then_some(()))
        };
        until(ttl * 2, &format!("{layout}: a free key"), free).await?;
        near.release(&other).await?;
        ensure!(matches!(far.try_acquire(&mine).await?, Attempt::Granted(_)), "{layout}: not ours");
        ensure!(far.release(&mine).await?, "{layout}: it was held");
    }
    Ok(())
}
