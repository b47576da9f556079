//! A held lock is renewed; a renewal never creates one.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::backend::{Owner, Reach};
use tenure::{Attempt, ErrorKind, LostReason};

use super::cases;
use crate::bench::{Bench, expect_busy, renew, soon, take};

cases! { "renewal":
    a_held_lock_outlives_its_ttl,
    a_fixed_lease_ends_after_its_ttl,
    max_hold_ends_a_lock_that_is_renewed,
    renew_never_creates,
    renew_does_not_revive_what_was_released,
    renew_answers_each_claim_in_order,
    renew_does_not_extend_a_place_in_the_queue_into_a_lock,
    a_blocked_runtime_does_not_stop_renewals if |bench| bench.info().reach != Reach::Process,
}

async fn a_held_lock_outlives_its_ttl(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let ttl = bench.short_ttl();
    let guard = take(&one.lock(bench.key("k")).ttl(ttl)).await?;
    let lost = tokio::time::timeout(ttl * 3, guard.lost()).await;
    ensure!(lost.is_err(), "lost although it was renewed: {lost:?}");
    ensure!(guard.check()? > Duration::ZERO);
    expect_busy(&two.lock(bench.key("k"))).await?;
    guard.release().await?;
    Ok(())
}

async fn a_fixed_lease_ends_after_its_ttl(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let lock = client.lock(bench.key("k")).ttl(bench.short_ttl());
    let guard = take(&lock.clone().without_renewal()).await?;
    ensure!(guard.check()? <= bench.short_ttl());
    let lost = soon("the lease's end", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::Expired, "{lost}");
    ensure!(guard.check().is_err(), "check says that it is held");
    soon("acquire", lock.acquire()).await??.release().await?;
    Ok(())
}

async fn max_hold_ends_a_lock_that_is_renewed(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let lock = client.lock(bench.key("k"));
    let guard = take(&lock.clone().max_hold(Duration::from_millis(300))).await?;
    ensure!(guard.check()? <= Duration::from_millis(300));
    let lost = soon("the end of max_hold", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::MaxHold, "{lost}");
    // The ttl is 30 s: only a release by the keeper can free it so soon.
    soon("acquire", lock.acquire()).await??.release().await?;
    Ok(())
}

async fn renew_never_creates(bench: &Bench) -> Result<()> {
    let backend = bench.backend().await?;
    let claim = bench.claim("k");
    let answers = renew(&backend, std::slice::from_ref(&claim)).await;
    ensure!(answers.len() == 1, "{answers:?}");
    let kind = answers[0].as_ref().map_err(tenure::Error::kind);
    ensure!(kind == Err(ErrorKind::Lost), "{kind:?}");
    let other = bench.claim("k");
    let attempt = backend.try_acquire(&other).await?;
    ensure!(matches!(attempt, Attempt::Granted(_)), "the renewal created a lock");
    backend.release(&other).await?;
    Ok(())
}

async fn renew_does_not_revive_what_was_released(bench: &Bench) -> Result<()> {
    let backend = bench.backend().await?;
    let claim = bench.claim("k");
    backend.try_acquire(&claim).await?.granted()?;
    ensure!(backend.release(&claim).await?);
    let answers = renew(&backend, std::slice::from_ref(&claim)).await;
    ensure!(answers[0].is_err(), "renewed after its release");
    let other = bench.claim("k");
    backend.try_acquire(&other).await?.granted()?;
    let answers = renew(&backend, &[claim.clone(), other.clone()]).await;
    ensure!(answers[0].is_err() && answers[1].is_ok(), "{answers:?}");
    backend.release(&other).await?;
    Ok(())
}

async fn renew_answers_each_claim_in_order(bench: &Bench) -> Result<()> {
    let backend = bench.backend().await?;
    let claims: Vec<_> = (0..40).map(|number| bench.claim(&format!("k{number}"))).collect();
    for claim in claims.iter().step_by(2) {
        backend.try_acquire(claim).await?.granted()?;
    }
    let answers = renew(&backend, &claims).await;
    ensure!(answers.len() == claims.len());
    for (number, answer) in answers.iter().enumerate() {
        let held = number % 2 == 0;
        ensure!(answer.is_ok() == held, "claim {number}: {answer:?}");
    }
    for claim in &claims {
        backend.release(claim).await?;
    }
    Ok(())
}

async fn renew_does_not_extend_a_place_in_the_queue_into_a_lock(bench: &Bench) -> Result<()> {
    let backend = bench.backend().await?;
    let (holder, mut waiter) = (bench.claim("k"), bench.claim("k"));
    waiter.waits = true;
    waiter.owner = Owner::random();
    backend.try_acquire(&holder).await?.granted()?;
    ensure!(matches!(backend.try_acquire(&waiter).await?, Attempt::Busy(_)));
    let answers = renew(&backend, std::slice::from_ref(&waiter)).await;
    ensure!(answers[0].is_err(), "a waiter renewed a lock");
    ensure!(backend.release(&holder).await?, "the holder was still the holder");
    backend.release(&waiter).await?;
    Ok(())
}

/// The user's only thread computes for two leases; the client's own thread goes on renewing.
async fn a_blocked_runtime_does_not_stop_renewals(bench: &Bench) -> Result<()> {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (ttl, lock) = (bench.short_ttl(), client.lock(bench.key("k")));
    let work = move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let guard = take(&lock.ttl(ttl)).await?;
            std::thread::sleep(ttl * 2);
            guard.check()?;
            expect_busy(&other.lock(guard.key())).await?;
            guard.release().await?;
            Ok(())
        })
    };
    tokio::task::spawn_blocking(work).await?
}
