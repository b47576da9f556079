//! Readers and permits: late and repeated requests, and servers that fail.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::backend::{Backend, Claim, Mode, Owner, Scope};
use tenure::backends::Etcd;
use tenure::{Attempt, ErrorKind, Key};
use tenure_conformance::context::{acquire_free, soon, until, until_waiters, within};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use super::{gateway, name};

server_cases! {
    a_downgrade_wakes_the_readers_behind_it Etcd;
    a_late_request_of_any_mode_acquires_nothing Etcd;
    a_late_downgrade_changes_nothing Etcd;
    requests_of_all_modes_with_a_lost_response_are_repeated Etcd;
    waiters_of_all_modes_survive_a_compaction_and_torn_connections Etcd;
    holders_of_all_modes_survive_a_restart_of_the_server Etcd;
    a_raised_limit_is_known_to_those_behind Etcd;
}

/// So long that no request is repeated meanwhile.
pub(crate) const TTL: Duration = Duration::from_secs(20);

/// A claim of a new owner.
pub(crate) fn claim(key: &Key, mode: Mode, waits: bool) -> Claim {
    let mut claim = Claim::new(key.clone(), Owner::random(), TTL);
    (claim.mode, claim.waits) = (mode, waits);
    claim
}

/// The mode of a claim to so many permits.
pub(crate) fn permits(take: u32, of: u32) -> Mode {
    Mode::permits(take, of).expect("less than there are")
}

/// With a ttl of 30 s the next request without a hint would come after 10 s. Other clients write
/// meanwhile, so that the watches begin in the past.
async fn a_downgrade_wakes_the_readers_behind_it(cluster: &Cluster) -> Result<()> {
    let one = tenure::connect(&cluster.url()).await?;
    let two = tenure::connect(&cluster.url()).await?;
    for _ in 0..5 {
        let name = name();
        let mut writer = acquire_free(&one.lock(&name)).await?;
        let readers =
            [&one, &two].map(|client| tokio::spawn(client.lock(&name).shared().acquire()));
        until_waiters(&one.lock(&name), 2).await?;
        gateway(cluster.node(), "/v3/kv/put", r#"{"key":"eA==","value":"eA=="}"#)?;
        writer.downgrade().await?;
        for reader in readers {
            let reader = within(Duration::from_secs(5), "the reader's grant", reader).await???;
            reader.release().await?;
        }
        writer.check()?;
        writer.release().await?;
    }
    Ok(())
}

/// The late request is played by one more request of the same owner.
async fn a_late_request_of_any_mode_acquires_nothing(cluster: &Cluster) -> Result<()> {
    let backend = Etcd::open(&cluster.url()).await?;
    for mode in [Mode::Shared, permits(2, 3)] {
        for waits in [false, true] {
            for beside_another in [false, true] {
                let key = Key::new(name())?;
                let other = claim(&key, if mode.is_lock() { mode } else { permits(1, 3) }, true);
                if beside_another {
                    backend.try_acquire(&other).await?.granted()?;
                }
                let mut late = claim(&key, mode, waits);
                backend.try_acquire(&late).await?.granted()?;
                late.unconfirmed = true;
                ensure!(backend.release(&late).await?, "it was held");
                late.unconfirmed = false;
                let refused = backend.try_acquire(&late).await;
                let kind = refused.map(drop).map_err(|error| error.kind());
                ensure!(kind == Err(ErrorKind::Unavailable), "{mode}: {kind:?}");
                let left = backend.list(Scope::Key(&key)).await?;
                ensure!(left.len() == usize::from(beside_another), "{mode}: {left:?}");
                backend.release(&other).await?;
            }
        }
    }
    Ok(())
}

/// After the release, and after the same owner has another grant.
async fn a_late_downgrade_changes_nothing(cluster: &Cluster) -> Result<()> {
    let backend = Etcd::open(&cluster.url()).await?;
    let key = Key::new(name())?;
    let first = claim(&key, Mode::Exclusive, true);
    let grant = backend.try_acquire(&first).await?.granted()?;
    let mut late = first.clone();
    (late.mode, late.token) = (Mode::Shared, Some(grant.token));
    ensure!(backend.evict(&key, grant.token).await?);
    let refused = backend.try_acquire(&late).await.map(drop).map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::Lost), "{refused:?}");
    ensure!(backend.list(Scope::Key(&key)).await?.is_empty());
    // The client has not noticed the eviction, and acquires again.
    let again = backend.try_acquire(&first).await?.granted()?;
    ensure!(again.token > grant.token);
    let refused = backend.try_acquire(&late).await.map(drop).map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::Lost), "{refused:?}");
    let reader = backend.try_acquire(&claim(&key, Mode::Shared, false)).await?;
    ensure!(matches!(reader, Attempt::Busy(_)), "it was made shared by a late downgrade");
    ensure!(backend.release(&first).await?);
    Ok(())
}

async fn requests_of_all_modes_with_a_lost_response_are_repeated(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let client = tenure::connect(&format!("etcd://{}", proxy.address())).await?;
    let near = tenure::connect(&cluster.url()).await?;
    let (name, other) = (name(), name());
    for response in 1..=14 {
        let lock = client.lock(&name);
        proxy.drop_response(response);
        let mut writer = soon("acquire", lock.acquire()).await??;
        let token = writer.token();
        soon("downgrade", writer.downgrade()).await??;
        let reader = soon("a reader", lock.clone().shared().acquire()).await??;
        ensure!(reader.token() > token && writer.token() == token);
        writer.check()?;
        soon("release", writer.release()).await??;
        soon("release", reader.release()).await??;
        let semaphore = client.semaphore(&other, 3);
        let two = soon("permits", semaphore.clone().permits(2).acquire()).await??;
        let one = soon("permits", semaphore.acquire()).await??;
        let busy = near.semaphore(&other, 3).try_acquire();
        ensure!(matches!(soon("try", busy).await??, Attempt::Busy(_)), "counted wrongly");
        soon("release", two.release()).await??;
        soon("release", one.release()).await??;
        client.flush().await?;
        for name in [&name, &other] {
            let left = near.lock(name).status().await?;
            ensure!(left.is_none(), "response {response} was lost, and left {left:?}");
        }
    }
    Ok(())
}

/// The watches lose their place: the revision that they would go on with is compacted away, and
/// their stream breaks. With a ttl of 30 s the next request without a hint would come after 10 s.
async fn waiters_of_all_modes_survive_a_compaction_and_torn_connections(
    cluster: &Cluster,
) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let client = tenure::connect(&format!("etcd://{}", proxy.address())).await?;
    let near = tenure::connect(&cluster.url()).await?;
    for during_an_outage in [false, true] {
        let (name, other) = (name(), name());
        let writer = acquire_free(&near.lock(&name)).await?;
        let permit = soon("permits", near.semaphore(&other, 2).permits(2).acquire()).await??;
        let reader = tokio::spawn(client.lock(&name).shared().acquire());
        until_waiters(&near.lock(&name), 1).await?;
        let waiter = tokio::spawn(client.semaphore(&other, 2).acquire());
        until_waiters(&near.lock(&other), 1).await?;
        for _ in 0..5 {
            acquire_free(&near.lock(super::name())).await?.release().await?;
        }
        let last = acquire_free(&near.lock(super::name())).await?.token().get() / 1024;
        let body = format!(r#"{{"revision":"{last}","physical":true}}"#);
        gateway(cluster.node(), "/v3/kv/compaction", &body)?;
        if during_an_outage {
            proxy.cut();
        }
        proxy.reset();
        writer.release().await?;
        permit.release().await?;
        proxy.heal();
        let limit = Duration::from_secs(8);
        within(limit, "the reader's grant", reader).await???.release().await?;
        within(limit, "the permits", waiter).await???.release().await?;
    }
    Ok(())
}

async fn holders_of_all_modes_survive_a_restart_of_the_server(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let (name, other) = (name(), name());
    let lock = client.lock(&name).ttl(TTL);
    let mut writer = acquire_free(&lock).await?;
    writer.downgrade().await?;
    let reader = acquire_free(&lock.clone().shared()).await?;
    let semaphore = client.semaphore(&other, 3).ttl(TTL);
    let two = soon("permits", semaphore.clone().permits(2).acquire()).await??;
    let next = tokio::spawn(lock.acquire());
    until_waiters(&lock, 1).await?;
    let more = tokio::spawn(semaphore.clone().permits(2).acquire());
    until_waiters(&client.lock(&other), 1).await?;
    cluster.node().kill()?;
    cluster.node().restart()?;
    let status = || async {
        let Ok(Some(holding)) = lock.status().await else { return Ok(None) };
        Ok(Some(holding))
    };
    let holding = until(Duration::from_secs(15), "the server", status).await?;
    ensure!(holding.holders.len() == 2 && holding.waiters.len() == 1, "{holding:?}");
    ensure!(holding.holders.iter().all(|holder| holder.mode == Mode::Shared), "{holding:?}");
    for guard in [&writer, &reader] {
        guard.check()?;
    }
    ensure!(!next.is_finished() && !more.is_finished());
    for guard in [writer, reader] {
        soon("release", guard.release()).await??;
    }
    soon("the writer's grant", next).await???.release().await?;
    soon("release", two.release()).await??;
    soon("the permits", more).await???.release().await?;
    Ok(())
}

/// A claim behind one that raises its limit is judged by the new one.
async fn a_raised_limit_is_known_to_those_behind(cluster: &Cluster) -> Result<()> {
    let backend = Etcd::open(&cluster.url()).await?;
    let key = Key::new(name())?;
    let holder = claim(&key, permits(1, 1), true);
    backend.try_acquire(&holder).await?.granted()?;
    let mut first = claim(&key, permits(1, 1), true);
    let behind = claim(&key, permits(1, 5), true);
    for waiter in [&first, &behind] {
        ensure!(matches!(backend.try_acquire(waiter).await?, Attempt::Busy(_)));
    }
    first.mode = permits(2, 2);
    let changed = backend.try_acquire(&first).await.map(drop).map_err(|error| error.kind());
    ensure!(changed == Err(ErrorKind::Invalid), "another number of permits: {changed:?}");
    first.mode = permits(1, 2);
    backend.try_acquire(&first).await?.granted()?;
    backend.try_acquire(&behind).await?.granted()?;
    for claim in [&holder, &first, &behind] {
        ensure!(backend.release(claim).await?);
    }
    Ok(())
}
