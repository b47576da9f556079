//! After an outage everything goes on: also for the client that it hit, and with every key.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::backend::{Backend, Reach, Scope};
use tenure::layers::{Retry, Timeout};
use tenure::{Client, Config, Key};

use super::cases;
use crate::bench::{Bench, SOON, soon, take, until, within};

cases! { "outage":
    a_release_that_failed_is_made_good_when_the_network_heals if Bench::has_network,
    an_outage_longer_than_the_ttl_leaves_every_key_usable if Bench::has_network,
    flush_leaves_nothing_at_the_server,
    shutdown_leaves_nothing_at_the_server,
    an_opened_backend_outlives_its_callers_runtime if |bench| bench.info().reach == Reach::Network,
}

/// A lease for which an outage is long, and a busy machine is not.
fn ttl(bench: &Bench) -> Duration {
    bench.short_ttl().max(Duration::from_secs(2))
}

/// The client gets the key, within two ttls after the outage and what a busy machine takes.
async fn usable(bench: &Bench, client: &Client, key: &Key) -> Result<()> {
    let limit = ttl(bench) * 2 * bench.info().freed_after + SOON / 2;
    let lock = client.lock(key.clone()).ttl(ttl(bench));
    let acquire = || async {
        let attempt = lock.acquire_within(limit).await.ok();
        Ok(attempt.and_then(|attempt| attempt.granted().ok()))
    };
    let guard = within(limit, &format!("`{key}`"), until(limit, "a grant", acquire)).await??;
    guard.release().await?;
    Ok(())
}

async fn a_release_that_failed_is_made_good_when_the_network_heals(bench: &Bench) -> Result<()> {
    let network = bench.network()?;
    let (steady, shaky) = (bench.client().await?, bench.client_through(&network).await?);
    let key = bench.key("k");
    let guard = take(&shaky.lock(key.clone()).ttl(ttl(bench)).without_renewal()).await?;
    network.cut();
    let released = soon("release", guard.release()).await?;
    ensure!(released.is_err(), "nothing was cut");
    tokio::time::sleep(ttl(bench)).await;
    network.heal();
    usable(bench, &steady, &key).await?;
    usable(bench, &shaky, &key).await
}

async fn an_outage_longer_than_the_ttl_leaves_every_key_usable(bench: &Bench) -> Result<()> {
    let network = bench.network()?;
    let (steady, shaky) = (bench.client().await?, bench.client_through(&network).await?);
    let names = ["held", "released", "dropped", "asked", "awaited"];
    let lock = |name: &str| shaky.lock(bench.key(name)).ttl(ttl(bench));
    let held = take(&lock("held")).await?;
    let (released, dropped) = (take(&lock("released")).await?, take(&lock("dropped")).await?);
    let others = take(&steady.lock(bench.key("awaited"))).await?;
    let waiting = tokio::spawn(lock("awaited").acquire());
    network.cut();
    drop(dropped);
    let (asked, released) = tokio::join!(lock("asked").try_acquire(), released.release());
    ensure!(asked.is_err() && released.is_err(), "nothing was cut");
    tokio::time::sleep(ttl(bench) * 5 / 2).await;
    network.heal();
    ensure!(held.check().is_err(), "its lease is over");
    drop(held);
    others.release().await?;
    // Granted or failed: it gives the lock back.
    let waited = within(SOON * 2, "the waiter", waiting).await??;
    drop(waited);
    for name in names {
        usable(bench, &shaky, &bench.key(name)).await?;
        usable(bench, &steady, &bench.key(name)).await?;
    }
    Ok(())
}

/// Everything that a client can leave behind: guards that are dropped, requests that are dropped.
async fn leave_behind(bench: &Bench, client: &Client) -> Result<()> {
    for number in 0..5 {
        drop(take(&client.lock(bench.key(&format!("k{number}")))).await?);
    }
    let held = client.lock(bench.key("k0"));
    let guard = soon("acquire", held.acquire()).await??;
    let waiting = tokio::spawn(held.acquire());
    tokio::time::sleep(Duration::from_millis(20)).await;
    waiting.abort();
    drop(waiting.await);
    drop(guard);
    Ok(())
}

async fn nothing_is_left(bench: &Bench) -> Result<()> {
    let backend = bench.backend().await?;
    let look = || async { Ok(backend.list(Scope::Prefix(bench.prefix())).await.ok()) };
    let left = until(SOON, "a listing", look).await?;
    ensure!(left.is_empty(), "left at the server: {left:?}");
    Ok(())
}

async fn flush_leaves_nothing_at_the_server(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    leave_behind(bench, &client).await?;
    soon("flush", client.flush()).await??;
    nothing_is_left(bench).await
}

async fn shutdown_leaves_nothing_at_the_server(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let _held = take(&client.lock(bench.key("held"))).await?;
    leave_behind(bench, &client).await?;
    soon("shutdown", client.shutdown(Duration::ZERO)).await??;
    nothing_is_left(bench).await
}

/// However it was opened: by itself, to stand below a client, or with layers around it.
async fn an_opened_backend_outlives_its_callers_runtime(bench: &Bench) -> Result<()> {
    let config: Config = bench.url().expect("a server has a URL").parse()?;
    let (ttl, other) = (bench.short_ttl(), bench.client().await?);
    for layered in [false, true] {
        let key = bench.key(if layered { "layered" } else { "opened" });
        let (config, taken) = (config.clone(), key.clone());
        // Its runtime takes the lock, stands still, and ends.
        let (guard, client) = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let client = runtime.block_on(open(config, layered))?;
            let guard = runtime.block_on(take(&client.lock(taken).ttl(ttl)))?;
            std::thread::sleep(ttl * 3 / 2);
            drop(runtime);
            std::thread::sleep(ttl * 3 / 2);
            anyhow::Ok((guard, client))
        })
        .await??;
        guard.check()?;
        let seen = soon("holding", other.lock(key).holding()).await??;
        let seen = seen.and_then(|holding| holding.holder.token);
        ensure!(seen == Some(guard.token()), "{seen:?} holds");
        soon("release", guard.release()).await??;
        drop(client);
    }
    Ok(())
}

async fn open(config: Config, layered: bool) -> Result<Client> {
    if layered {
        let layers = |backend| {
            let backend = Timeout::new(backend, Duration::from_secs(5));
            Retry::new(backend, 3, Duration::from_millis(50))
        };
        return Ok(config.connect_with(layers).await?);
    }
    let backend = Timeout::new(config.open().await?, Duration::from_secs(5));
    Ok(config.over(Retry::new(backend, 3, Duration::from_millis(50))))
}
