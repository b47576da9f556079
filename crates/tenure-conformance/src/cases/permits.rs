//! Permits of a semaphore: never more than the limit, all of a request or none, in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tenure::backend::{Claim, Mode};
use tenure::{Attempt, ErrorKind, Permit, Semaphore};

use super::cases;
use crate::context::{TestContext, acquire_free, soon, until_waiters, within};

cases! { "permits":
    a_semaphore_that_the_server_lacks_is_refused if |context| !context.info().modes.permits,
    more_permits_than_there_are_are_refused,
    the_sum_never_exceeds_the_limit if has_permits,
    permits_come_together_or_not_at_all if has_permits,
    a_small_request_does_not_pass_a_big_one if has_permits,
    several_small_requests_are_granted_together if has_permits,
    two_that_want_all_do_not_block_each_other if has_permits,
    permits_of_an_expired_holder_come_back if has_permits,
    a_raised_limit_is_seen_by_a_waiter_with_its_next_request if has_permits,
    a_lowered_limit_ends_no_permit if has_permits,
    a_lock_and_a_semaphore_do_not_share_a_key if has_permits,
    a_listing_shows_permits if has_permits,
}

fn has_permits(context: &TestContext) -> bool {
    context.info().modes.permits
}

async fn semaphore(context: &TestContext, limit: u32) -> Result<Semaphore> {
    let client = context.client().await?;
    let ttl = context.info().min_ttl.max(Duration::from_secs(6));
    Ok(client.semaphore(context.key("k"), limit).ttl(ttl))
}

async fn free(semaphore: &Semaphore) -> Result<Permit> {
    match soon("try_acquire", semaphore.try_acquire()).await?? {
        Attempt::Granted(permit) => Ok(permit),
        Attempt::Busy(busy) => bail!("expected free permits, but {busy}"),
    }
}

async fn busy(semaphore: &Semaphore) -> Result<()> {
    let attempt = soon("try_acquire", semaphore.try_acquire()).await??;
    ensure!(matches!(attempt, Attempt::Busy(_)), "expected busy, but permits were free");
    Ok(())
}

async fn waiters(context: &TestContext, count: usize) -> Result<()> {
    until_waiters(&context.client().await?.lock(context.key("k")), count).await
}

async fn a_semaphore_that_the_server_lacks_is_refused(context: &TestContext) -> Result<()> {
    let refused = soon("refusal", semaphore(context, 5).await?.acquire()).await?;
    let error = refused.map(drop).unwrap_err();
    ensure!(error.kind() == ErrorKind::Unsupported, "{error}");
    Ok(())
}

async fn more_permits_than_there_are_are_refused(context: &TestContext) -> Result<()> {
    for (take, limit) in [(6, 5), (0, 5), (1, 0)] {
        let refused = soon("refusal", semaphore(context, limit).await?.permits(take).acquire());
        let error = refused.await?.map(drop).unwrap_err();
        ensure!(error.kind() == ErrorKind::Invalid, "{error}");
    }
    Ok(())
}

async fn the_sum_never_exceeds_the_limit(context: &TestContext) -> Result<()> {
    let out = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for number in 0..8_u32 {
        let semaphore = semaphore(context, 5).await?;
        let out = out.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..5_u32 {
                let take = (number + round) % 3 + 1;
                let permit = semaphore.clone().permits(take).acquire().await?;
                let now = out.fetch_add(take, SeqCst) + take;
                ensure!(now <= 5, "{now} permits are out");
                tokio::task::yield_now().await;
                out.fetch_sub(take, SeqCst);
                permit.release().await?;
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        within(Duration::from_secs(60), "all rounds", task).await???;
    }
    Ok(())
}

async fn permits_come_together_or_not_at_all(context: &TestContext) -> Result<()> {
    let semaphore = semaphore(context, 5).await?;
    let three = free(&semaphore.clone().permits(3)).await?;
    ensure!(three.permits() == 3);
    busy(&semaphore.clone().permits(3)).await?;
    let two = free(&semaphore.clone().permits(2)).await?;
    busy(&semaphore).await?;
    two.release().await?;
    three.release().await?;
    free(&semaphore.permits(5)).await?.release().await?;
    Ok(())
}

async fn a_small_request_does_not_pass_a_big_one(context: &TestContext) -> Result<()> {
    let two = free(&semaphore(context, 3).await?.permits(2)).await?;
    let big = tokio::spawn(semaphore(context, 3).await?.permits(3).acquire());
    waiters(context, 1).await?;
    // One permit is free, and it is not theirs.
    busy(&semaphore(context, 3).await?).await?;
    let small = tokio::spawn(semaphore(context, 3).await?.acquire());
    waiters(context, 2).await?;
    two.release().await?;
    let big = soon("the big grant", big).await???;
    ensure!(!small.is_finished(), "more permits than there are");
    big.release().await?;
    soon("the small grant", small).await???.release().await?;
    Ok(())
}

async fn several_small_requests_are_granted_together(context: &TestContext) -> Result<()> {
    let all = free(&semaphore(context, 3).await?.permits(3)).await?;
    let mut small = Vec::new();
    for count in 1..=4 {
        small.push(tokio::spawn(semaphore(context, 3).await?.acquire()));
        waiters(context, count).await?;
    }
    all.release().await?;
    let last = small.pop().context("there are four")?;
    let mut held = Vec::new();
    for waiter in small {
        held.push(soon("a small grant", waiter).await???);
    }
    ensure!(!last.is_finished(), "more permits than there are");
    for permit in held {
        permit.release().await?;
    }
    soon("the last grant", last).await???.release().await?;
    Ok(())
}

async fn two_that_want_all_do_not_block_each_other(context: &TestContext) -> Result<()> {
    let (one, two) = (semaphore(context, 2).await?, semaphore(context, 2).await?);
    for _ in 0..3 {
        let (one, two) = (one.clone().permits(2), two.clone().permits(2));
        let both = async {
            tokio::try_join!(async { one.acquire().await?.release().await }, async {
                two.acquire().await?.release().await
            })
        };
        soon("both grants", both).await??;
    }
    Ok(())
}

/// By their expiry alone: a client that lives would release them at the end. The other holder
/// stays, so that the first end counts, not the last. With a ttl of 30 s the next request without a
/// wake-up would come after 10 s.
async fn permits_of_an_expired_holder_come_back(context: &TestContext) -> Result<()> {
    let (ttl, long) = (context.short_ttl(), Duration::from_secs(30));
    let stays = free(&semaphore(context, 3).await?.ttl(long)).await?;
    let backend = context.backend().await?;
    let mut ends = permits(context, 2, 3)?;
    ends.ttl = ttl;
    ensure!(matches!(soon("acquire", backend.try_acquire(&ends)).await??, Attempt::Granted(_)));
    let waiter = semaphore(context, 3).await?.permits(2).ttl(long);
    let limit = ttl * context.info().max_expiry_ttls + context.wakeup_limit();
    let two = within(limit, "the grant", waiter.acquire()).await??;
    stays.check()?;
    busy(&semaphore(context, 3).await?).await?;
    two.release().await?;
    stays.release().await?;
    Ok(())
}

fn permits(context: &TestContext, take: u32, limit: u32) -> Result<Claim> {
    let mut claim = context.claim("k");
    claim.mode = Mode::permits(take, limit)?;
    claim.waits = true;
    Ok(claim)
}

async fn a_raised_limit_is_seen_by_a_waiter_with_its_next_request(
    context: &TestContext,
) -> Result<()> {
    let backend = context.backend().await?;
    let first = permits(context, 1, 1)?;
    ensure!(matches!(soon("acquire", backend.try_acquire(&first)).await??, Attempt::Granted(_)));
    let mut waiter = permits(context, 1, 1)?;
    ensure!(matches!(soon("wait", backend.try_acquire(&waiter)).await??, Attempt::Busy(_)));
    waiter.mode = Mode::permits(1, 2)?;
    let raised = soon("wait", backend.try_acquire(&waiter)).await??;
    ensure!(matches!(raised, Attempt::Granted(_)), "{raised:?}");
    for claim in [&first, &waiter] {
        ensure!(soon("release", backend.release(claim)).await??);
    }
    Ok(())
}

async fn a_lowered_limit_ends_no_permit(context: &TestContext) -> Result<()> {
    let three = free(&semaphore(context, 5).await?.permits(3)).await?;
    let lowered = semaphore(context, 2).await?;
    busy(&lowered).await?;
    three.check()?;
    let waiter = tokio::spawn(lowered.acquire());
    waiters(context, 1).await?;
    three.release().await?;
    soon("the grant", waiter).await???.release().await?;
    Ok(())
}

async fn a_lock_and_a_semaphore_do_not_share_a_key(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let (lock, semaphore) = (client.lock(context.key("k")), semaphore(context, 5).await?);
    let permit = free(&semaphore).await?;
    for lock in [lock.clone(), lock.clone().shared()] {
        for waits in [false, true] {
            let refused = if waits {
                soon("refusal", lock.acquire()).await?.map(drop)
            } else {
                soon("refusal", lock.try_acquire()).await?.map(drop)
            };
            let error = refused.err().context("a lock and a semaphore share a key")?;
            ensure!(error.kind() == ErrorKind::Invalid, "{error}");
        }
    }
    permit.release().await?;
    client.flush().await?;
    for lock in [lock.clone(), lock.shared()] {
        let guard = acquire_free(&lock).await?;
        let refused = soon("refusal", semaphore.acquire()).await?.map(drop);
        let error = refused.err().context("a lock and a semaphore share a key")?;
        ensure!(error.kind() == ErrorKind::Invalid, "{error}");
        guard.release().await?;
    }
    free(&semaphore).await?.release().await?;
    Ok(())
}

async fn a_listing_shows_permits(context: &TestContext) -> Result<()> {
    let semaphore = semaphore(context, 5).await?;
    let permit = free(&semaphore.clone().permits(2)).await?;
    let lock = context.client().await?.lock(context.key("k"));
    let holding = soon("status", lock.status()).await??.context("it is held")?;
    let mode = holding.holder().mode;
    ensure!(!mode.is_lock() && mode.weight() == 2, "{holding:?}");
    permit.release().await?;
    Ok(())
}
