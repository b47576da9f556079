//! Requests of readers that are late, and renewals of grants that move or share a row.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::Attempt;
use tenure::backend::{Backend, Mode, Scope};
use tenure::backends::Postgres;
use tenure_conformance::context::{SOON, soon, until};
use tenure_servers::wire::postgres::Postgres as Wire;

use crate::late::{DelayedInserts, delayed_request};
use crate::modes::{acquire, form, reader};
use crate::{cases, claim, own_server, server, sql, unique};

cases! {
    a_late_request_of_a_reader_does_not_shorten_its_lease,
    a_late_request_of_a_released_reader_acquires_nothing,
    a_renewal_that_waits_behind_a_downgrade_renews,
    a_renewal_of_two_readers_of_a_key_extends_both,
}

async fn a_late_request_of_a_reader_does_not_shorten_its_lease() -> Result<()> {
    let cluster = own_server()?;
    let (one, two) = (Postgres::open(&cluster.url()).await?, Postgres::open(&cluster.url()).await?);
    let claim = reader("k")?;
    let delayed = DelayedInserts::start(&cluster, "tenure_lease")?;
    let late = delayed_request(&claim);
    let late = tokio::spawn(async move { one.try_acquire(&late).await });
    delayed.until_delayed(&cluster).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let token = acquire(&two, &claim).await?;
    let end = "SELECT holders->0->>'u' || until FROM tenure_lease";
    let before = sql(&cluster, end)?;
    delayed.resume()?;
    let again = soon("the late response", late).await???.granted()?;
    ensure!(again.token == token, "{again:?} after {token}");
    let after = sql(&cluster, end)?;
    ensure!(after >= before, "the lease ended at {before:?}, now at {after:?}");
    Ok(())
}

/// The release has a tombstone. Other readers hold meanwhile, so that the late request would fit.
async fn a_late_request_of_a_released_reader_acquires_nothing() -> Result<()> {
    let backend = Postgres::open(&server()?.url()).await?;
    let key = unique("k");
    let stays = reader(&key)?;
    acquire(&backend, &stays).await?;
    for waits in [false, true] {
        let mut late = reader(&key)?;
        (late.unconfirmed, late.waits) = (true, waits);
        ensure!(!backend.release(&late).await?);
        let attempt = backend.try_acquire(&late).await?;
        ensure!(matches!(attempt, Attempt::Busy(_)), "a cancelled claim holds the key");
        let holdings = backend.list(Scope::Key(&late.key)).await?;
        ensure!(holdings[0].holders.len() == 1 && holdings[0].waiters.is_empty(), "{holdings:?}");
    }
    ensure!(backend.release(&stays).await?);
    acquire(&backend, &claim(&key)?).await?;
    Ok(())
}

/// A foreign transaction has the row locked. A downgrade waits for it, and then a renewal, which
/// saw the grant where it was before.
async fn a_renewal_that_waits_behind_a_downgrade_renews() -> Result<()> {
    let cluster = own_server()?;
    let (one, two) = (Postgres::open(&cluster.url()).await?, Postgres::open(&cluster.url()).await?);
    let mut claim = claim("k")?;
    // A renewal waits for a sixteenth of it.
    claim.ttl = Duration::from_secs(160);
    claim.token = Some(acquire(&one, &claim).await?);
    let mut other = Wire::connect(cluster.node().port())?;
    other.query("BEGIN; SELECT 1 FROM tenure_lease FOR UPDATE")?;
    let mut shared = claim.clone();
    shared.mode = Mode::Shared;
    let waiting = |count: usize| {
        let cluster = &cluster;
        let text = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                    AND application_name = 'tenure'";
        until(SOON, "a statement that waits", move || async move {
            Ok((sql(cluster, text)?.len() == count).then_some(()))
        })
    };
    let downgrade = tokio::spawn(async move { one.try_acquire(&shared).await });
    waiting(1).await?;
    let renewed = claim.clone();
    let renewal = tokio::spawn(async move { two.renew(&[renewed]).await.remove(0) });
    waiting(2).await?;
    other.query("ROLLBACK")?;
    soon("the downgrade", downgrade).await???.granted()?;
    soon("the renewal", renewal).await???;
    ensure!(form(&cluster, "k")? == "~shared 1 0");
    Ok(())
}

async fn a_renewal_of_two_readers_of_a_key_extends_both() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let (mut one, mut two, stays) = (reader("k")?, reader("k")?, reader("k")?);
    for claim in [&mut one, &mut two] {
        claim.token = Some(acquire(&backend, claim).await?);
        claim.ttl = Duration::from_secs(600);
    }
    acquire(&backend, &stays).await?;
    let mut stale = one.clone();
    stale.token = two.token;
    let gone = reader("k")?;
    let renewed = backend.renew(&[one.clone(), two.clone(), stale, gone]).await;
    let outcomes: Vec<_> = renewed.iter().map(Result::is_ok).collect();
    ensure!(outcomes == [true, true, false, false], "{renewed:?}");
    let holdings = backend.list(Scope::Key(&one.key)).await?;
    let long = Duration::from_secs(500);
    let extended: Vec<_> = holdings[0]
        .holders
        .iter()
        .map(|one| one.ttl_left.is_some_and(|left| left > long))
        .collect();
    ensure!(extended == [true, true, false], "{holdings:?}");
    // What a client of an earlier version sees.
    let until = sql(&cluster, "SELECT until > now() + interval '500 s' FROM tenure_lease")?;
    ensure!(until == ["t"]);
    Ok(())
}
