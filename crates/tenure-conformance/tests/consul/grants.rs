//! Grants: the lease, the token, and what remains of them after an eviction.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use tenure::backend::Backend;
use tenure::backends::Consul;
use tenure::{Config, ErrorKind, Key};
use tenure_conformance::context::acquire_free;
use tenure_conformance::server_cases;
use tenure_servers::Cluster;
use tenure_servers::wire::http::json_field;

use super::{SECOND, claim, put, stored, url};

server_cases! {
    fixed_lease_lasts_its_whole_ttl Consul;
    late_request_does_not_revive_an_evicted_grant Consul;
    condition_is_found_for_a_guard_of_a_client_with_a_prefix Consul;
    token_divided_by_1024_is_the_index_on_the_server Consul;
}

/// All claims with one ttl share a session: a new claim must not get only the rest of its lease.
async fn fixed_lease_lasts_its_whole_ttl(cluster: &Cluster) -> Result<()> {
    let consul = Consul::open(&url(&cluster.hosts(), "")).await?;
    let mut first = claim("first")?;
    first.ttl = SECOND * 9;
    consul.try_acquire(&first).await?.granted()?;
    for waits in [false, true] {
        // The session is old enough for a shorter lease to show, and too young to be renewed.
        tokio::time::sleep(SECOND * 2).await;
        let mut fixed = claim(if waits { "waits" } else { "tries" })?;
        (fixed.ttl, fixed.fixed, fixed.waits) = (first.ttl, true, waits);
        let grant = consul.try_acquire(&fixed).await?.granted()?;
        ensure!(grant.ttl == fixed.ttl, "waits {waits}: {:?}", grant.ttl);
    }
    Ok(())
}

/// The test writes the key as a late request of the evicted claim would.
async fn late_request_does_not_revive_an_evicted_grant(cluster: &Cluster) -> Result<()> {
    let consul = Consul::open(&url(&cluster.hosts(), "")).await?;
    let node = cluster.node();
    let (mut mine, kept) = (claim("k")?, claim("kept")?);
    consul.try_acquire(&kept).await?.granted()?;
    let grant = consul.try_acquire(&mine).await?.granted()?;
    mine.token = Some(grant.token);
    let entry = stored(node, "k/.lock")?.context("it is held")?;
    let field = |name| json_field(&entry, name).with_context(|| format!("{name} in {entry}"));
    let (session, value, flags) = (field("Session")?, field("Value")?, field("Flags")?);
    ensure!(consul.evict(&mine.key, grant.token).await?);
    let lock = format!(
        r#"{{"Verb":"lock","Key":"k/.lock","Session":"{session}","Value":"{value}","Flags":{flags}}}"#
    );
    put(node, "/v1/txn", &format!(r#"[{{"KV":{lock}}}]"#))?;
    let renewed = consul.renew(std::slice::from_ref(&mine)).await.remove(0);
    let kind = renewed.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Lost), "{kind:?}");
    // The engine releases a lost claim with `unconfirmed` set.
    mine.unconfirmed = true;
    consul.release(&mine).await?;
    ensure!(
        stored(node, "k/.lock")?.is_none(),
        "held for ever, by a session that other claims renew"
    );
    Ok(())
}

async fn condition_is_found_for_a_guard_of_a_client_with_a_prefix(cluster: &Cluster) -> Result<()> {
    let consul = Arc::new(Consul::open(&url(&cluster.hosts(), "")).await?);
    let client = Config::default().prefix("app/").with_backend(consul.clone());
    let guard = acquire_free(&client.lock("k")).await?;
    let found = consul.condition(guard.key(), guard.token()).await?.context("it is held")?;
    ensure!(found.key == "app/k/.lock", "{found:?}");
    let elsewhere = Consul::open(&url(&cluster.hosts(), "")).await?;
    ensure!(elsewhere.condition(&Key::new("app/k")?, guard.token()).await?.is_some());
    let (key, token) = (guard.key().clone(), guard.token());
    guard.release().await?;
    ensure!(consul.condition(&key, token).await?.is_none(), "it was released");
    Ok(())
}

/// The formula on which clients of other languages rely that show tokens to the same fence.
async fn token_divided_by_1024_is_the_index_on_the_server(cluster: &Cluster) -> Result<()> {
    let consul = Arc::new(Consul::open(&url(&cluster.hosts(), "")).await?);
    let client = tenure::Client::new(consul.clone());
    for _ in 0..3 {
        let guard = acquire_free(&client.lock("k")).await?;
        let index: u64 = super::field(cluster.node(), "k/.lock", "ModifyIndex")?.parse()?;
        ensure!(guard.token().get() == index * 1024, "{} at index {index}", guard.token());
        let found = consul.condition(guard.key(), guard.token()).await?.context("it is held")?;
        ensure!(found.index == index, "{found:?}");
        let seen = client.lock("k").status().await?.context("it is held")?;
        ensure!(seen.holder().token == Some(guard.token()), "{seen:?}");
        // Any token of the range names the grant.
        let last = tenure::FencingToken::new(guard.token().get() + 1023).context("a token")?;
        ensure!(client.lock("k").evict(last).await?, "the grant of {last} was there");
        drop(guard);
        client.flush().await?;
    }
    Ok(())
}
