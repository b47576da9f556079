//! A foreign transaction has a row of tenure locked: requests that do not need the row succeed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tenure::backend::Backend;
use tenure::backends::Postgres;
use tenure::{Attempt, Guard};
use tenure_conformance::context::{acquire_free, soon};
use tenure_servers::wire::postgres::Postgres as Wire;

use crate::{cases, claim, connect, server, unique, until_response};

const TTL: Duration = Duration::from_secs(2);

cases! {
    a_locked_row_ends_no_other_lease,
    a_waiter_at_a_locked_row_ends_no_lease_of_its_client,
    a_renewal_waits_for_a_short_lock_of_its_row,
    a_waiter_at_a_locked_row_ends_no_session,
    a_release_at_a_locked_row_ends_no_session,
}

/// A foreign transaction that has the row of a key locked until this is dropped.
fn lock_row(table: &str, key: &str) -> Result<Wire> {
    let mut other = Wire::connect(server()?.node().port())?;
    let rows = other.query(&format!(
        "BEGIN; SELECT 1 FROM {table} WHERE key = convert_to('{key}', 'UTF8') FOR UPDATE"
    ))?;
    ensure!(rows == ["1"], "{key} has {rows:?} in {table}");
    Ok(other)
}

/// Checks for three ttls that all of these stay held.
async fn all_stay_held(guards: &[Guard]) -> Result<()> {
    let end = Instant::now() + TTL * 3;
    while Instant::now() < end {
        for guard in guards {
            guard.check().with_context(|| format!("{} ended", guard.token()))?;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn a_locked_row_ends_no_other_lease() -> Result<()> {
    for pooler in ["no", "yes"] {
        let client = connect(&format!("{}?pooler={pooler}", server()?.url())).await?;
        let locked = unique("locked");
        let prefix = unique("");
        let _locked = acquire_free(&client.lock(&locked).ttl(TTL)).await?;
        let mut guards = Vec::new();
        for number in 0..20 {
            guards.push(acquire_free(&client.lock(format!("{prefix}{number}")).ttl(TTL)).await?);
        }
        let _other = lock_row("tenure_lease", &locked)?;
        all_stay_held(&guards).await.with_context(|| format!("pooler={pooler}"))?;
    }
    Ok(())
}

/// On every connection of the client, requests that wait for the row are in front of the renewals.
async fn a_waiter_at_a_locked_row_ends_no_lease_of_its_client() -> Result<()> {
    for pooler in ["no", "yes"] {
        let url = format!("{}?pooler={pooler}&outage=1m", server()?.url());
        let (client, holder) = (connect(&url).await?, connect(&server()?.url()).await?);
        let (locked, free) = (unique("locked"), unique("free"));
        let _held = acquire_free(&holder.lock(&locked)).await?;
        let guards = [acquire_free(&client.lock(&free).ttl(TTL)).await?];
        let _other = lock_row("tenure_lease", &locked)?;
        let waiters: Vec<_> =
            (0..3).map(|_| tokio::spawn(client.lock(&locked).ttl(TTL).acquire())).collect();
        let alive = all_stay_held(&guards).await;
        waiters.iter().for_each(tokio::task::JoinHandle::abort);
        alive.with_context(|| format!("pooler={pooler}"))?;
    }
    Ok(())
}

/// Requests of waiters lock the row all the time, each for a moment.
async fn a_renewal_waits_for_a_short_lock_of_its_row() -> Result<()> {
    let backend = Postgres::open(&server()?.url()).await?;
    let mut claim = claim(&unique("k"))?;
    claim.token = Some(backend.try_acquire(&claim).await?.granted()?.token);
    let mut other = lock_row("tenure_lease", claim.key.as_str())?;
    let unlocking = tokio::task::spawn_blocking(move || {
        std::thread::sleep(Duration::from_millis(300));
        other.query("ROLLBACK").map(drop)
    });
    backend.renew(std::slice::from_ref(&claim)).await.remove(0)?;
    unlocking.await??;
    Ok(())
}

async fn a_waiter_at_a_locked_row_ends_no_session() -> Result<()> {
    let url = format!("{}?mode=session&outage=1m", server()?.url());
    let (client, holder) = (connect(&url).await?, connect(&url).await?);
    let (locked, free) = (unique("locked"), unique("free"));
    let held = acquire_free(&holder.lock(&locked)).await?;
    let guards = [acquire_free(&client.lock(&free).ttl(TTL)).await?];
    // It is free, so that the next client acquires it and has to write the locked registry row.
    held.release().await?;
    let _other = lock_row("tenure_board", &locked)?;
    let waiter = tokio::spawn(client.lock(&locked).ttl(TTL).acquire());
    let alive = all_stay_held(&guards).await;
    waiter.abort();
    alive
}

async fn a_release_at_a_locked_row_ends_no_session() -> Result<()> {
    let url = format!("{}?mode=session", server()?.url());
    let (one, two) = (Postgres::open(&url).await?, Postgres::open(&url).await?);
    let (locked, mut free) = (claim(&unique("locked"))?, claim(&unique("free"))?);
    one.try_acquire(&locked).await?.granted()?;
    free.token = Some(one.try_acquire(&free).await?.granted()?.token);
    let other = lock_row("tenure_board", locked.key.as_str())?;
    ensure!(soon("release", one.release(&locked)).await??, "it was held until now");
    one.renew(std::slice::from_ref(&free)).await.remove(0).context("the other lock")?;
    drop(other);
    let next = claim(locked.key.as_str())?;
    let next = until_response(|| two.try_acquire(&next)).await?;
    ensure!(matches!(next, Attempt::Granted(_)), "the lock is not free: {next:?}");
    Ok(())
}
