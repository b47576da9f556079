//! Requests that arrive late: after their claim has ended, after an eviction, after the lease of
//! their claim would have been over.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::{Config, ErrorKind};
use tenure_conformance::context::{SOON, soon, until, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use crate::faults::until_subscribed;
use crate::lossy_proxy::LossyProxy;
use crate::traffic::until_quiet;
use crate::{LONG, SECOND, acquire, claim, connect, execute, number, scripts, wait_for};

server_cases! {
    a_request_held_up_on_a_replaced_connection_leaves_no_holder Redis;
    a_tombstone_outlasts_the_lease_of_its_claim Redis;
    an_outage_longer_than_the_lease_leaves_no_holder Redis;
    an_evicted_grant_is_not_renewed_after_a_late_request_of_its_claim Redis;
    a_lock_won_by_a_push_and_lost_leaves_nothing_in_the_client Redis;
    a_fixed_lease_won_by_waiting_lasts_its_ttl Redis;
}

/// Three requests are held up on one connection. Two of them get no response, so that the
/// connection is replaced; the third ends when its connection has been replaced already. Whatever
/// became of the claims, the late requests must not make holders of them.
async fn a_request_held_up_on_a_replaced_connection_leaves_no_holder(
    cluster: &Cluster,
) -> Result<()> {
    let proxy = LossyProxy::start(cluster.node().port())?;
    let node = cluster.node();
    let url = node.url_at(&proxy.address()) + "?response=600ms";
    let client = tenure::connect(&url).await?;
    acquire(&client, "warm", LONG).await?.release().await?;
    let request = |key: &str| tokio::spawn(client.lock(key).ttl(LONG).try_acquire());
    proxy.stall();
    let a = request("a");
    let b = request("b");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let c = request("c");
    for attempt in [a, b, c] {
        // Either way it ends here: without a response, or granted by a retry and released.
        if let Ok(attempt) = soon("the attempt", attempt).await?? {
            attempt.granted().context("no other client is there")?.release().await?;
        }
    }
    soon("the releases", client.flush()).await??;
    let before = scripts(node)?;
    proxy.go_on();
    let late = async || Ok((scripts(node)? >= before + 3).then_some(()));
    until(SOON, "the late requests", late).await?;
    for key in ["a", "b", "c"] {
        ensure!(number(node, &["EXISTS", key])? == 0, "a late request holds `{key}`");
    }
    Ok(())
}

/// How late a request can be has nothing to do with the lease of its claim.
async fn a_tombstone_outlasts_the_lease_of_its_claim(cluster: &Cluster) -> Result<()> {
    let backend = cluster.url().parse::<Config>()?.open().await?;
    let mut late = claim("k")?;
    (late.ttl, late.unconfirmed) = (SECOND / 5, true);
    ensure!(!backend.release(&late).await?);
    tokio::time::sleep(late.ttl * 2).await;
    ensure!(backend.try_acquire(&late).await.is_err(), "a cancelled claim was granted");
    ensure!(number(cluster.node(), &["EXISTS", "k"])? == 0);
    Ok(())
}

/// The server hangs for longer than the ttl, with requests of two claims before it that their
/// callers gave up.
async fn an_outage_longer_than_the_lease_leaves_no_holder(cluster: &Cluster) -> Result<()> {
    let ttl = SECOND * 2;
    let (client, other) = (connect(cluster, "").await?, connect(cluster, "").await?);
    for round in 0..3 {
        acquire(&client, "k", ttl).await?.release().await?;
        cluster.node().pause()?;
        for _ in 0..2 {
            let error = client.lock("k").ttl(ttl).try_acquire().await.unwrap_err();
            ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
        }
        tokio::time::sleep(ttl * 2).await;
        cluster.node().resume()?;
        // The releases are repeated at least once a second; a ghost would stay for a whole ttl.
        let released = async || Ok(client.flush().await.is_ok().then_some(()));
        until(SOON, "the releases", released).await?;
        for client in [&client, &other] {
            let attempt = client.lock("k").ttl(ttl).try_acquire().await?;
            attempt.granted().with_context(|| format!("round {round}"))?.release().await?;
        }
    }
    Ok(())
}

/// The late request is granted, since its claim did not end; but the grant that was evicted must
/// not live on by it.
async fn an_evicted_grant_is_not_renewed_after_a_late_request_of_its_claim(
    cluster: &Cluster,
) -> Result<()> {
    for options in ["", "layout=plain"] {
        let config: Config = cluster.url_with(options).parse()?;
        let backend = config.open().await?;
        let key = format!("k{options}").replace('=', "-");
        let (mut evicted, other) = (claim(&key)?, claim(&key)?);
        let grant = backend.try_acquire(&evicted).await?.granted()?;
        ensure!(backend.evict(&evicted.key, grant.token).await?);
        let next = backend.try_acquire(&other).await?.granted()?;
        backend.release(&other).await?;
        // The same request once more, as a network may deliver it.
        let again = backend.try_acquire(&evicted).await?.granted()?;
        ensure!(again.token > next.token && next.token > grant.token);
        evicted.token = Some(grant.token);
        let renewed = backend.renew(&[evicted.clone()]).await.remove(0);
        let lost = renewed.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost);
        ensure!(lost, "the evicted grant was renewed: {renewed:?}");
        evicted.token = Some(again.token);
        backend.renew(&[evicted.clone()]).await.remove(0)?;
        backend.release(&evicted).await?;
    }
    Ok(())
}

async fn a_lock_won_by_a_push_and_lost_leaves_nothing_in_the_client(
    cluster: &Cluster,
) -> Result<()> {
    let one = connect(cluster, "").await?;
    let backend = cluster.url().parse::<Config>()?.open().await?;
    let two = Config::default().with_backend(backend.clone());
    for _ in 0..5 {
        let guard = acquire(&one, "k", LONG).await?;
        let waiter = wait_for(&two, "k", LONG);
        until_waiters(&one.lock("k"), 1).await?;
        until_subscribed(cluster).await?;
        until_quiet(cluster.node()).await?;
        guard.release().await?;
        let guard = soon("the waiter's grant", waiter).await???;
        ensure!(one.lock("k").evict(guard.token()).await?);
        soon("the loss", guard.lost()).await?;
    }
    let empty_router = "waiting: Wakeups(0 registered), held: HeldWatches(0)";
    let empty = async || Ok(format!("{backend:?}").contains(empty_router).then_some(()));
    until(SOON, "an empty push router", empty).await.with_context(|| format!("{backend:?}"))
}

/// Longer than any queue entry.
async fn a_fixed_lease_won_by_waiting_lasts_its_ttl(cluster: &Cluster) -> Result<()> {
    for options in ["", "layout=plain", "order=barging"] {
        let (one, two) = (connect(cluster, options).await?, connect(cluster, options).await?);
        let guard = acquire(&one, "k", LONG).await?;
        let waiter = tokio::spawn(two.lock("k").ttl(LONG).without_renewal().acquire());
        until_waiters(&one.lock("k"), 1).await?;
        // By a push: a waiter that has just subscribed rechecks once.
        until_subscribed(cluster).await?;
        until_quiet(cluster.node()).await?;
        guard.release().await?;
        let guard = soon("the waiter's grant", waiter).await???;
        let left = guard.check()?;
        ensure!(left > LONG - SECOND * 5, "{left:?} of {LONG:?} are left");
        let kept = number(cluster.node(), &["PTTL", "k"])?;
        ensure!(kept >= i64::try_from(left.as_millis())? - 2_000, "{kept} ms at the server");
        guard.release().await?;
        execute(cluster.node(), &["DEL", "k"])?;
    }
    Ok(())
}
