//! A held lock is renewed; a renewal never creates one.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::backend::{Owner, Reach};
use tenure::{Attempt, ErrorKind, LostReason};

use super::cases;
use crate::context::{TestContext, acquire_free, expect_busy, renew, soon};

cases! { "renewal":
    a_held_lock_outlives_its_ttl,
    a_fixed_lease_ends_after_its_ttl,
    max_hold_ends_a_lock_that_is_renewed,
    renew_never_creates,
    renew_does_not_revive_what_was_released,
    renew_responds_to_each_claim_in_order,
    renew_does_not_turn_a_queue_entry_into_a_lock,
    a_blocked_runtime_does_not_stop_renewals if |context| context.info().reach != Reach::Process,
}

async fn a_held_lock_outlives_its_ttl(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let ttl = context.short_ttl();
    let guard = acquire_free(&one.lock(context.key("k")).ttl(ttl)).await?;
    let lost = tokio::time::timeout(ttl * 3, guard.lost()).await;
    ensure!(lost.is_err(), "lost although it was renewed: {lost:?}");
    ensure!(guard.check()? > Duration::ZERO);
    expect_busy(&two.lock(context.key("k"))).await?;
    guard.release().await?;
    Ok(())
}

async fn a_fixed_lease_ends_after_its_ttl(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k")).ttl(context.short_ttl());
    let guard = acquire_free(&lock.clone().without_renewal()).await?;
    ensure!(guard.check()? <= context.short_ttl());
    let lost = soon("the lease's end", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::Expired, "{lost}");
    ensure!(guard.check().is_err(), "check says that it is held");
    soon("acquire", lock.acquire()).await??.release().await?;
    Ok(())
}

async fn max_hold_ends_a_lock_that_is_renewed(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    let guard = acquire_free(&lock.clone().max_hold(Duration::from_millis(300))).await?;
    ensure!(guard.check()? <= Duration::from_millis(300));
    let lost = soon("the end of max_hold", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::MaxHold, "{lost}");
    // The ttl is 30 s: only a release by the renewer can free it so soon.
    soon("acquire", lock.acquire()).await??.release().await?;
    Ok(())
}

async fn renew_never_creates(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let claim = context.claim("k");
    let responses = renew(&backend, std::slice::from_ref(&claim)).await;
    ensure!(responses.len() == 1, "{responses:?}");
    let kind = responses[0].as_ref().map_err(tenure::Error::kind);
    ensure!(kind == Err(ErrorKind::Lost), "{kind:?}");
    let other = context.claim("k");
    let attempt = backend.try_acquire(&other).await?;
    ensure!(matches!(attempt, Attempt::Granted(_)), "the renewal created a lock");
    backend.release(&other).await?;
    Ok(())
}

async fn renew_does_not_revive_what_was_released(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let claim = context.claim("k");
    backend.try_acquire(&claim).await?.granted()?;
    ensure!(backend.release(&claim).await?);
    let responses = renew(&backend, std::slice::from_ref(&claim)).await;
    ensure!(responses[0].is_err(), "renewed after its release");
    let other = context.claim("k");
    backend.try_acquire(&other).await?.granted()?;
    let responses = renew(&backend, &[claim.clone(), other.clone()]).await;
    ensure!(responses[0].is_err() && responses[1].is_ok(), "{responses:?}");
    backend.release(&other).await?;
    Ok(())
}

async fn renew_responds_to_each_claim_in_order(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let claims: Vec<_> = (0..40).map(|number| context.claim(&format!("k{number}"))).collect();
    for claim in claims.iter().step_by(2) {
        backend.try_acquire(claim).await?.granted()?;
    }
    let responses = renew(&backend, &claims).await;
    ensure!(responses.len() == claims.len());
    for (number, response) in responses.iter().enumerate() {
        let held = number % 2 == 0;
        ensure!(response.is_ok() == held, "claim {number}: {response:?}");
    }
    for claim in &claims {
        backend.release(claim).await?;
    }
    Ok(())
}

async fn renew_does_not_turn_a_queue_entry_into_a_lock(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let (holder, mut waiter) = (context.claim("k"), context.claim("k"));
    waiter.waits = true;
    waiter.owner = Owner::random();
    backend.try_acquire(&holder).await?.granted()?;
    ensure!(matches!(backend.try_acquire(&waiter).await?, Attempt::Busy(_)));
    let responses = renew(&backend, std::slice::from_ref(&waiter)).await;
    ensure!(responses[0].is_err(), "a waiter renewed a lock");
    ensure!(backend.release(&holder).await?, "the holder was still the holder");
    backend.release(&waiter).await?;
    Ok(())
}

/// The user's only thread computes for two leases; the client's own thread goes on renewing.
async fn a_blocked_runtime_does_not_stop_renewals(context: &TestContext) -> Result<()> {
    let (client, other) = (context.client().await?, context.client().await?);
    let ttl = context.short_ttl();
    let lock = client.lock(context.key("k"));
    let work = move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let guard = acquire_free(&lock.ttl(ttl)).await?;
            std::thread::sleep(ttl * 2);
            guard.check()?;
            expect_busy(&other.lock(guard.key())).await?;
            guard.release().await?;
            Ok(())
        })
    };
    tokio::task::spawn_blocking(work).await?
}
