//! Listings and conditions, also where other programs keep their data in the same etcd.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Owner};
use tenure::backends::Etcd;
use tenure::{Config, Key};
use tenure_conformance::context::acquire_free;
use tenure_conformance::server_cases;
use tenure_servers::Cluster;
use tenure_servers::wire::http::json_field;

use super::{base64, gateway, name};

server_cases! {
    a_listing_does_not_read_foreign_data Etcd;
    a_fixed_lease_lasts_its_whole_ttl Etcd;
    a_condition_is_found_for_a_guard_of_a_client_with_a_prefix Etcd;
    a_token_is_the_create_revision_times_1024 Etcd;
}

/// Twelve megabytes of foreign data, over a network that carries one in a second.
async fn a_listing_does_not_read_foreign_data(cluster: &Cluster) -> Result<()> {
    let value = base64(vec![b'x'; 1_000_000]);
    for number in 0..12 {
        let key = base64(format!("data/{number}"));
        gateway(cluster.node(), "/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#))?;
    }
    let near = tenure::connect(&cluster.url()).await?;
    let lock = near.lock("k").note("mine");
    let guard = acquire_free(&lock).await?;
    let proxy = cluster.node().proxy()?;
    let far = tenure::connect(&format!("etcd://{}", proxy.address())).await?;
    proxy.rate(1_000_000);
    let listed = far.list("").await?;
    let mine = listed.iter().find(|holding| holding.key.as_str() == "k").context("it is held")?;
    ensure!(mine.holder().token == Some(guard.token()), "{mine:?}");
    ensure!(mine.holder().note == "mine", "{mine:?}");
    // A foreign key that a lock would wait for is shown.
    ensure!(listed.iter().any(|holding| holding.key.as_str() == "data"), "{listed:?}");
    guard.release().await?;
    Ok(())
}

/// All claims with one ttl share a lease: a new one must not get what is left of it.
async fn a_fixed_lease_lasts_its_whole_ttl(cluster: &Cluster) -> Result<()> {
    let etcd = Etcd::open(&cluster.url()).await?;
    let ttl = Duration::from_secs(9);
    let first = Claim::new(Key::new(name())?, Owner::random(), ttl);
    etcd.try_acquire(&first).await?.granted()?;
    for waits in [false, true] {
        // Old enough to be seen, and too young for the next keep-alive.
        tokio::time::sleep(ttl / 5).await;
        let mut fixed = Claim::new(Key::new(name())?, Owner::random(), ttl);
        fixed.fixed = true;
        fixed.waits = waits;
        let grant = etcd.try_acquire(&fixed).await?.granted()?;
        ensure!(grant.ttl == ttl, "waits {waits}: {:?} of {ttl:?}", grant.ttl);
    }
    Ok(())
}

async fn a_condition_is_found_for_a_guard_of_a_client_with_a_prefix(
    cluster: &Cluster,
) -> Result<()> {
    let etcd = Etcd::open(&cluster.url()).await?;
    let client = Config::default().prefix("app/").with_backend(etcd.clone());
    let guard = acquire_free(&client.lock("k")).await?;
    let other = acquire_free(&client.lock("other/k")).await?;
    let found = etcd.condition(guard.key(), guard.token()).await?.context("it is held")?;
    let written = String::from_utf8(found.key)?;
    ensure!(written.starts_with("app%2Fk/"), "{written}");
    ensure!(etcd.condition(other.key(), guard.token()).await?.is_none(), "another key's token");
    // Another process knows the whole key only.
    let elsewhere = Etcd::open(&cluster.url()).await?;
    ensure!(elsewhere.condition(&Key::new("app/k")?, guard.token()).await?.is_some());
    let (key, token) = (guard.key().clone(), guard.token());
    guard.release().await?;
    ensure!(etcd.condition(&key, token).await?.is_none(), "it was released");
    other.release().await?;
    Ok(())
}

/// The formula by which Go clients give tokens to the same fence. Two scales on one key would let a
/// stale holder show the higher number.
async fn a_token_is_the_create_revision_times_1024(cluster: &Cluster) -> Result<()> {
    let etcd = Etcd::open(&cluster.url()).await?;
    let client = Config::default().with_backend(etcd.clone());
    let name = name();
    let lock = client.lock(&name);
    let mut last = None;
    for waits in [false, true] {
        let guard = if waits { lock.acquire().await? } else { acquire_free(&lock).await? };
        let range = format!(
            r#"{{"key":"{}","range_end":"{}"}}"#,
            base64(format!("{name}/")),
            base64(format!("{name}0"))
        );
        let response = gateway(cluster.node(), "/v3/kv/range", &range)?;
        let revision = json_field(&response, "create_revision").context("the claim's key")?;
        let revision: u64 = revision.parse()?;
        ensure!(guard.token().get() == revision * 1024, "{} at {revision}", guard.token());
        ensure!(Some(guard.token()) > last, "{} after {last:?}", guard.token());
        last = Some(guard.token());
        // Every token of its range belongs to the grant, and no other one.
        let token = |number| tenure::FencingToken::new(number).context("a token");
        let (first, end) = (guard.token().get(), guard.token().get() + 1024);
        let condition =
            etcd.condition(guard.key(), token(end - 1)?).await?.context("it is held")?;
        ensure!(u64::try_from(condition.create_revision)? == revision);
        for other in [first - 1, end] {
            ensure!(etcd.condition(guard.key(), token(other)?).await?.is_none());
            ensure!(!lock.evict(token(other)?).await?, "evicted by the token of another grant");
        }
        guard.release().await?;
    }
    Ok(())
}
