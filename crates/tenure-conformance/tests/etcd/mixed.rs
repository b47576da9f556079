//! Readers and permits beside foreign clients and claims of the other kind, and what operators see.

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Mode, Owner, Scope};
use tenure::backends::Etcd;
use tenure::{Attempt, Client, ErrorKind, Key};
use tenure_conformance::context::{acquire_free, expect_busy, soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;
use tenure_servers::wire::http::json_field;

use super::foreign_clients::Etcdctl;
use super::modes::{claim, permits};
use super::{base64, gateway, name};

server_cases! {
    etcdctl_waits_for_every_reader_and_readers_wait_for_etcdctl Etcd;
    etcdctl_waits_for_a_downgraded_lock Etcd;
    an_election_of_go_is_exclusive_also_when_it_proclaims_again Etcd;
    a_key_of_an_unknown_kind_is_exclusive Etcd;
    readers_pass_a_foreign_lock_with_a_longer_name Etcd;
    a_claim_of_the_other_kind_leaves_nothing Etcd;
    a_waiter_outlives_a_foreign_claim_of_the_other_kind Etcd;
    a_condition_holds_for_every_reader_and_for_no_waiter Etcd;
    a_waiter_is_not_evicted_by_its_token Etcd;
}

/// Both directions, and in one queue.
async fn etcdctl_waits_for_every_reader_and_readers_wait_for_etcdctl(
    cluster: &Cluster,
) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let name = name();
    let lock = client.lock(&name);
    let reader = lock.clone().shared();
    let (one, two) = (acquire_free(&reader).await?, acquire_free(&reader).await?);
    let mut etcdctl = Etcdctl::lock(cluster, &name)?;
    until_waiters(&lock, 1).await?;
    // A writer waits, if a foreign one.
    expect_busy(&reader).await?;
    let behind = tokio::spawn(reader.acquire());
    until_waiters(&lock, 2).await?;
    two.release().await?;
    let holding = soon("status", lock.status()).await??.context("a reader holds")?;
    ensure!(holding.holders.len() == 1 && holding.waiters.len() == 2, "{holding:?}");
    ensure!(holding.waiters[0].mode == Mode::Exclusive, "{holding:?}");
    let token = one.token();
    one.release().await?;
    etcdctl.held().await?;
    expect_busy(&reader).await?;
    let holding = soon("status", lock.status()).await??.context("etcdctl holds")?;
    ensure!(holding.holder().mode == Mode::Exclusive && !behind.is_finished(), "{holding:?}");
    ensure!(holding.holder().token > Some(token), "{holding:?}");
    etcdctl.end()?;
    let behind = soon("the reader's grant", behind).await???;
    ensure!(Some(behind.token()) > holding.holder().token, "a token went back");
    behind.release().await?;
    Ok(())
}

async fn etcdctl_waits_for_a_downgraded_lock(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let name = name();
    let lock = client.lock(&name);
    let mut writer = acquire_free(&lock).await?;
    let reader = tokio::spawn(lock.clone().shared().acquire());
    until_waiters(&lock, 1).await?;
    let mut etcdctl = Etcdctl::lock(cluster, &name)?;
    until_waiters(&lock, 2).await?;
    writer.downgrade().await?;
    let reader = soon("the reader's grant", reader).await???;
    let holding = soon("status", lock.status()).await??.context("they hold")?;
    ensure!(holding.holders.len() == 2 && holding.waiters.len() == 1, "{holding:?}");
    writer.release().await?;
    let holding = soon("status", lock.status()).await??.context("a reader holds")?;
    ensure!(holding.holders.len() == 1 && holding.waiters.len() == 1, "{holding:?}");
    reader.release().await?;
    etcdctl.held().await?;
    etcdctl.end()
}

/// Go's `Election` puts its key again with each `Proclaim`, as a downgrade does; its values are
/// whatever its program wants.
async fn an_election_of_go_is_exclusive_also_when_it_proclaims_again(
    cluster: &Cluster,
) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let name = name();
    let lock = client.lock(&name);
    let reader = lock.clone().shared();
    let key = base64(format!("{name}/694d8f0a"));
    let proclaim = |value: &str| {
        let body = format!(r#"{{"key":"{key}","value":"{}"}}"#, base64(value));
        gateway(cluster.node(), "/v3/kv/put", &body)
    };
    proclaim("server-1")?;
    expect_busy(&reader).await?;
    let waiter = tokio::spawn(reader.acquire());
    until_waiters(&lock, 1).await?;
    for value in ["shared", "s", "server-2"] {
        proclaim(value)?;
        expect_busy(&reader).await?;
    }
    let holding = soon("status", lock.status()).await??.context("it is led")?;
    ensure!(holding.holders.len() == 1 && !waiter.is_finished(), "{holding:?}");
    ensure!(holding.holder().mode == Mode::Exclusive, "{holding:?}");
    gateway(cluster.node(), "/v3/kv/deleterange", &format!(r#"{{"key":"{key}"}}"#))?;
    soon("the reader's grant", waiter).await???.release().await?;
    Ok(())
}

/// What a later version, or another program, writes below the name of a lock.
async fn a_key_of_an_unknown_kind_is_exclusive(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    for unknown in ["~upgradable-1f-x", "~", "~permits-1f", "\u{7f}", "日本"] {
        let name = name();
        let key = base64(format!("{name}/{unknown}"));
        gateway(cluster.node(), "/v3/kv/put", &format!(r#"{{"key":"{key}"}}"#))?;
        let lock = client.lock(&name);
        expect_busy(&lock).await?;
        expect_busy(&lock.clone().shared()).await?;
        let waiter = tokio::spawn(lock.clone().shared().acquire());
        until_waiters(&lock, 1).await?;
        let holding = soon("status", lock.status()).await??.context("it is there")?;
        ensure!(holding.holder().mode == Mode::Exclusive, "{unknown}: {holding:?}");
        gateway(cluster.node(), "/v3/kv/deleterange", &format!(r#"{{"key":"{key}"}}"#))?;
        soon("the reader's grant", waiter).await???.release().await?;
    }
    Ok(())
}

/// `name/b/1f` is a lock of Go's `name/b`, and no claim to `name`.
async fn readers_pass_a_foreign_lock_with_a_longer_name(cluster: &Cluster) -> Result<()> {
    let one = tenure::connect(&cluster.url()).await?;
    let two = tenure::connect(&cluster.url()).await?;
    for below in ["b", "~shared-1f", "~permits-1-1f", "~x"] {
        let name = name();
        let below = base64(format!("{name}/{below}/1f"));
        gateway(cluster.node(), "/v3/kv/put", &format!(r#"{{"key":"{below}"}}"#))?;
        let lock = one.lock(&name);
        let mut writer = soon("acquire", lock.acquire()).await??;
        let reader = two.lock(&name).shared();
        expect_busy(&reader).await?;
        let waiter = tokio::spawn(reader.acquire());
        until_waiters(&lock, 1).await?;
        writer.downgrade().await?;
        let waiter = soon("the reader's grant", waiter).await???;
        let third = soon("acquire", reader.acquire()).await??;
        expect_busy(&two.lock(&name)).await?;
        for guard in [writer, waiter, third] {
            guard.release().await?;
        }
        two.flush().await?;
        let semaphore = two.semaphore(&name, 2);
        let permit = soon("acquire", semaphore.acquire()).await??;
        let other = soon("try", semaphore.try_acquire()).await??.granted()?;
        ensure!(matches!(soon("try", semaphore.try_acquire()).await??, Attempt::Busy(_)));
        let waiter = tokio::spawn(semaphore.acquire());
        until_waiters(&lock, 1).await?;
        permit.release().await?;
        soon("the grant", waiter).await???.release().await?;
        other.release().await?;
    }
    Ok(())
}

/// It is deleted by the call that is refused: what waits behind it need not wait for a release.
async fn a_claim_of_the_other_kind_leaves_nothing(cluster: &Cluster) -> Result<()> {
    let backend = Etcd::open(&cluster.url()).await?;
    for (first, other) in [
        (Mode::Exclusive, permits(1, 2)),
        (Mode::Shared, permits(1, 2)),
        (permits(1, 2), Mode::Exclusive),
        (permits(1, 2), Mode::Shared),
    ] {
        let key = Key::new(name())?;
        let holder = claim(&key, first, true);
        backend.try_acquire(&holder).await?.granted()?;
        for waits in [false, true] {
            let refused = backend.try_acquire(&claim(&key, other, waits)).await;
            let kind = refused.map(drop).map_err(|error| error.kind());
            ensure!(kind == Err(ErrorKind::Invalid), "{other} beside {first}: {kind:?}");
            let holdings = backend.list(Scope::Key(&key)).await?;
            ensure!(holdings.len() == 1 && holdings[0].waiters.is_empty(), "{holdings:?}");
        }
        ensure!(backend.release(&holder).await?);
        // The key is of no kind now.
        let next = claim(&key, other, true);
        backend.try_acquire(&next).await?.granted()?;
        ensure!(backend.release(&next).await?);
    }
    Ok(())
}

/// Such a key is there for a moment, and for a lease if its client dies just then. It is not the
/// fault of a claim that was in the queue before.
async fn a_waiter_outlives_a_foreign_claim_of_the_other_kind(cluster: &Cluster) -> Result<()> {
    let backend = Etcd::open(&cluster.url()).await?;
    let key = Key::new(name())?;
    let holder = claim(&key, Mode::Shared, true);
    backend.try_acquire(&holder).await?.granted()?;
    // Its client has died before it could delete it.
    let stray = base64(format!("{key}/~permits-1-1f-{}", Owner::random()));
    let put = format!(r#"{{"key":"{stray}","value":"{}"}}"#, base64("2 x"));
    gateway(cluster.node(), "/v3/kv/put", &put)?;
    let waiters = [Mode::Shared, Mode::Exclusive].map(|mode| claim(&key, mode, true));
    for waiter in &waiters {
        ensure!(matches!(backend.try_acquire(waiter).await?, Attempt::Busy(_)));
    }
    ensure!(backend.release(&holder).await?);
    for waiter in &waiters {
        ensure!(matches!(backend.try_acquire(waiter).await?, Attempt::Busy(_)));
    }
    gateway(cluster.node(), "/v3/kv/deleterange", &format!(r#"{{"key":"{stray}"}}"#))?;
    backend.try_acquire(&waiters[0]).await?.granted()?;
    ensure!(matches!(backend.try_acquire(&waiters[1]).await?, Attempt::Busy(_)));
    for waiter in &waiters {
        backend.release(waiter).await?;
    }
    Ok(())
}

async fn a_condition_holds_for_every_reader_and_for_no_waiter(cluster: &Cluster) -> Result<()> {
    let etcd = Etcd::open(&cluster.url()).await?;
    let client = Client::new(etcd.clone());
    let name = name();
    let lock = client.lock(&name);
    let mut writer = acquire_free(&lock).await?;
    let before = etcd.condition(writer.key(), writer.token()).await?.context("it is held")?;
    writer.downgrade().await?;
    let reader = acquire_free(&lock.clone().shared()).await?;
    for guard in [&writer, &reader] {
        let condition = etcd.condition(guard.key(), guard.token()).await?;
        let condition = condition.context("it is held")?;
        ensure!(condition.create_revision == guard.token().as_i64() / 1024);
    }
    // A downgrade leaves the condition of the writer true.
    ensure!(etcd.condition(writer.key(), writer.token()).await? == Some(before));
    let token = writer.token();
    writer.release().await?;
    ensure!(etcd.condition(reader.key(), token).await?.is_none());
    ensure!(etcd.condition(reader.key(), reader.token()).await?.is_some());
    let waiter = tokio::spawn(lock.acquire());
    until_waiters(&lock, 1).await?;
    let waiting = token_of_a_waiter(cluster, &name)?;
    ensure!(etcd.condition(reader.key(), waiting).await?.is_none(), "a waiter's condition");
    reader.release().await?;
    let next = soon("the writer's grant", waiter).await???;
    ensure!(next.token() == waiting);
    next.release().await?;
    Ok(())
}

/// The token that the exclusive claim to this name has once it is granted.
fn token_of_a_waiter(cluster: &Cluster, name: &str) -> Result<tenure::FencingToken> {
    let (from, end) = (base64(format!("{name}/")), base64(format!("{name}/~")));
    let range = format!(r#"{{"key":"{from}","range_end":"{end}"}}"#);
    let response = gateway(cluster.node(), "/v3/kv/range", &range)?;
    let revision: u64 = json_field(&response, "create_revision").context("a claim")?.parse()?;
    tenure::FencingToken::new(revision * 1024).context("a token")
}

async fn a_waiter_is_not_evicted_by_its_token(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let name = name();
    let lock = client.lock(&name);
    let reader = acquire_free(&lock.clone().shared()).await?;
    let waiter = tokio::spawn(lock.acquire());
    until_waiters(&lock, 1).await?;
    ensure!(!lock.evict(token_of_a_waiter(cluster, &name)?).await?, "a waiter was evicted");
    ensure!(lock.evict(reader.token()).await?);
    soon("the writer's grant", waiter).await???.release().await?;
    Ok(())
}
