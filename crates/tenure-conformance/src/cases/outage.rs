//! After an outage everything goes on: also for the client that it hit, and with every key.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::backend::{Backend, Reach, Scope};
use tenure::layers::{Retry, Timeout};
use tenure::{Client, Config, Key};

use super::cases;
use crate::context::{SOON, TestContext, acquire_free, soon, until, within};

cases! { "outage":
    a_failed_release_takes_effect_when_the_network_heals if TestContext::has_network,
    an_outage_longer_than_the_ttl_leaves_every_key_usable if TestContext::has_network,
    flush_leaves_nothing_at_the_server,
    shutdown_leaves_nothing_at_the_server,
    an_opened_backend_outlives_its_callers_runtime
        if |context| context.info().reach == Reach::Network,
}

/// A lease for which an outage is long, and a busy machine is not.
fn ttl(context: &TestContext) -> Duration {
    context.short_ttl().max(Duration::from_secs(2))
}

/// The client gets the key, within two ttls after the outage and what a busy machine takes.
async fn usable(context: &TestContext, client: &Client, key: &Key) -> Result<()> {
    let limit = ttl(context) * 2 * context.info().max_expiry_ttls + SOON / 2;
    let lock = client.lock(key.clone()).ttl(ttl(context));
    let acquire = || async {
        let attempt = lock.acquire_within(limit).await.ok();
        Ok(attempt.and_then(|attempt| attempt.granted().ok()))
    };
    let guard = within(limit, &format!("`{key}`"), until(limit, "a grant", acquire)).await??;
    guard.release().await?;
    Ok(())
}

async fn a_failed_release_takes_effect_when_the_network_heals(context: &TestContext) -> Result<()> {
    let network = context.network()?;
    let (steady, shaky) = (context.client().await?, context.client_through(&network).await?);
    let key = context.key("k");
    let guard = acquire_free(&shaky.lock(key.clone()).ttl(ttl(context)).without_renewal()).await?;
    network.cut();
    let released = soon("release", guard.release()).await?;
    ensure!(released.is_err(), "nothing was cut");
    tokio::time::sleep(ttl(context)).await;
    network.heal();
    usable(context, &steady, &key).await?;
    usable(context, &shaky, &key).await
}

async fn an_outage_longer_than_the_ttl_leaves_every_key_usable(
    context: &TestContext,
) -> Result<()> {
    let network = context.network()?;
    let (steady, shaky) = (context.client().await?, context.client_through(&network).await?);
    let names = ["held", "released", "dropped", "requested", "awaited"];
    let lock = |name: &str| shaky.lock(context.key(name)).ttl(ttl(context));
    let held = acquire_free(&lock("held")).await?;
    let (released, dropped) =
        (acquire_free(&lock("released")).await?, acquire_free(&lock("dropped")).await?);
    let others = acquire_free(&steady.lock(context.key("awaited"))).await?;
    let waiting = tokio::spawn(lock("awaited").acquire());
    network.cut();
    drop(dropped);
    let (requested, released) = tokio::join!(lock("requested").try_acquire(), released.release());
    ensure!(requested.is_err() && released.is_err(), "nothing was cut");
    tokio::time::sleep(ttl(context) * 5 / 2).await;
    network.heal();
    ensure!(held.check().is_err(), "its lease is over");
    drop(held);
    others.release().await?;
    // Granted or failed: its lock is released.
    let waited = within(SOON * 2, "the waiter", waiting).await??;
    drop(waited);
    for name in names {
        usable(context, &shaky, &context.key(name)).await?;
        usable(context, &steady, &context.key(name)).await?;
    }
    Ok(())
}

/// Everything that a client can leave behind: guards that are dropped, requests that are dropped.
async fn leave_behind(context: &TestContext, client: &Client) -> Result<()> {
    for number in 0..5 {
        drop(acquire_free(&client.lock(context.key(&format!("k{number}")))).await?);
    }
    let held = client.lock(context.key("k0"));
    let guard = soon("acquire", held.acquire()).await??;
    let waiting = tokio::spawn(held.acquire());
    tokio::time::sleep(Duration::from_millis(20)).await;
    waiting.abort();
    drop(waiting.await);
    drop(guard);
    Ok(())
}

async fn nothing_is_left(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let list = || async { Ok(backend.list(Scope::Prefix(context.prefix())).await.ok()) };
    let left = until(SOON, "a listing", list).await?;
    ensure!(left.is_empty(), "left at the server: {left:?}");
    Ok(())
}

async fn flush_leaves_nothing_at_the_server(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    leave_behind(context, &client).await?;
    soon("flush", client.flush()).await??;
    nothing_is_left(context).await
}

async fn shutdown_leaves_nothing_at_the_server(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let _held = acquire_free(&client.lock(context.key("held"))).await?;
    leave_behind(context, &client).await?;
    soon("shutdown", client.shutdown(Duration::ZERO)).await??;
    nothing_is_left(context).await
}

/// However it was opened: by itself, to stand below a client, or with layers around it.
async fn an_opened_backend_outlives_its_callers_runtime(context: &TestContext) -> Result<()> {
    let config: Config = context.url().expect("a server has a URL").parse()?;
    let ttl = context.short_ttl();
    let other = context.client().await?;
    for layered in [false, true] {
        let key = context.key(if layered { "layered" } else { "opened" });
        let (config, taken) = (config.clone(), key.clone());
        // Its runtime acquires the lock, is blocked, and ends.
        let (guard, client) = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let client = runtime.block_on(open(config, layered))?;
            let guard = runtime.block_on(acquire_free(&client.lock(taken).ttl(ttl)))?;
            std::thread::sleep(ttl * 3 / 2);
            drop(runtime);
            std::thread::sleep(ttl * 3 / 2);
            anyhow::Ok((guard, client))
        })
        .await??;
        guard.check()?;
        let seen = soon("holding", other.lock(key).status()).await??;
        let seen = seen.and_then(|holding| holding.holder().token);
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
    Ok(config.with_backend(Retry::new(backend, 3, Duration::from_millis(50))))
}
