//! Tokens: transaction ids of the ensemble, in the scale that all clients share.

use anyhow::{Context, Result, ensure};
use tenure::backends::Zookeeper;
use tenure::{FencingToken, Key};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;
use zookeeper_client::Client;

use crate::acquire_free;

server_cases! {
    a_token_divided_by_1024_is_the_czxid_of_the_node Zookeeper;
}

/// What other clients that show tokens to the same fence have to compute.
async fn a_token_divided_by_1024_is_the_czxid_of_the_node(cluster: &Cluster) -> Result<()> {
    let outside = Client::connect(&cluster.hosts()).await?;
    for layout in ["queue", "ephemeral"] {
        let url = format!("{}/t{layout}?session=3s&layout={layout}", cluster.url());
        let client = tenure::connect(&url).await?;
        let lock = client.lock("k");
        let guard = acquire_free(&lock).await?;
        let folder = format!("/t{layout}/k");
        let node = match layout {
            "queue" => {
                let names = outside.list_children(&folder).await?;
                format!("{folder}/{}", names.first().context("the holder has a node")?)
            }
            _ => folder,
        };
        let stat = outside.check_stat(&node).await?.context("it is held")?;
        let token = guard.token().get();
        ensure!(token == u64::try_from(stat.czxid)? * 1024, "{layout}: {token}, {}", stat.czxid);

        // All 1024 tokens are this grant's, and no other is.
        let zookeeper = Zookeeper::open(&url).await?;
        let key = Key::new("k")?;
        for (token, is_own) in [(token, true), (token + 1023, true), (token + 1024, false)] {
            let token = FencingToken::new(token).context("a token")?;
            let found = zookeeper.condition(&key, token).await?;
            ensure!(found.is_some() == is_own, "{layout}: {found:?} for {token}");
        }
        let [before, last, after] =
            [token - 1, token + 1023, token + 1024].map(|token| FencingToken::new(token).unwrap());
        ensure!(!lock.evict(before).await? && !lock.evict(after).await?, "{layout}: evicted");
        ensure!(lock.evict(last).await?, "{layout}: the token is in the range of the grant");
        drop(guard);
        let next = acquire_free(&lock).await?;
        ensure!(next.token() > last, "{layout}: {} after {last}", next.token());
        next.release().await?;
    }
    Ok(())
}
