//! Requests and messages that arrive late, twice or out of order change nothing for the worse.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tenure::backend::{Backend, Claim, Scope};
use tenure::{Attempt, ErrorKind, FencingToken};

use super::cases;
use crate::context::{SOON, TestContext, acquire_free, renew, soon, until, until_waiters, within};

cases! { "lateness":
    a_repeated_request_that_is_carried_out_last_shortens_nothing if TestContext::has_network,
    the_renewal_of_a_fixed_lease_shortens_nothing,
    a_renewal_of_an_earlier_grant_is_refused,
    a_fixed_lease_won_by_waiting_lasts_its_ttl,
    a_lease_with_parts_of_a_millisecond_is_kept_to_its_end,
    a_request_that_arrives_after_its_release_holds_nothing if TestContext::has_network,
    a_push_that_arrives_late_is_ignored if TestContext::has_network,
}

/// Acquires at the seam, and again where the response was lost.
async fn grant(backend: &dyn Backend, claim: &Claim) -> Result<FencingToken> {
    let acquire = || async {
        match backend.try_acquire(claim).await {
            Ok(Attempt::Granted(grant)) => Ok(Some(grant.token)),
            Ok(Attempt::Busy(busy)) => bail!("{busy}"),
            Err(error) if error.kind() == ErrorKind::Unavailable => Ok(None),
            Err(error) => Err(error.into()),
        }
    };
    until(SOON, "a grant", acquire).await
}

/// What the server shows as left of the lease, if it shows any.
async fn left(backend: &dyn Backend, claim: &Claim) -> Result<Option<Duration>> {
    let list = || async { Ok(backend.list(Scope::Key(&claim.key)).await.ok()) };
    let held = until(SOON, "a listing", list).await?.pop();
    let Some(held) = held else { bail!("the lease is over") };
    Ok(held.holder().ttl_left)
}

/// Both were read within a moment; where a session is the lease, both are its own.
fn not_shortened(before: Option<Duration>, after: Option<Duration>) -> Result<()> {
    let shortened = before.zip(after).is_some_and(|(before, after)| after < before / 2);
    ensure!(!shortened, "{before:?} were left, and then {after:?}");
    Ok(())
}

/// The client repeats a request that gets no response, and both are carried out when the network
/// heals, in any order. The lease oracle compares what the later one was told with what is kept.
async fn a_repeated_request_that_is_carried_out_last_shortens_nothing(
    context: &TestContext,
) -> Result<()> {
    context.ledger().look_at_every_belief();
    let network = context.network()?;
    let shaky = context.client_through(&network).await?;
    let ttl = context.info().min_ttl.max(Duration::from_secs(4));
    let lock = shaky.lock(context.key("k")).ttl(ttl).without_renewal();
    acquire_free(&lock).await?.release().await?;
    network.hold_requests();
    let acquiring = tokio::spawn(lock.acquire());
    // A request gets a quarter of the lease.
    tokio::time::sleep(ttl / 4 + ttl / 10).await;
    network.heal();
    let guard = soon("acquire", acquiring).await???;
    tokio::time::sleep(ttl / 4).await;
    let left = shaky.lock(context.key("k")).status();
    let held = soon("holding", left).await??.map(|mut holding| holding.holders.remove(0));
    let left = guard.check()?;
    let seen = held.and_then(|holder| holder.token);
    ensure!(seen == Some(guard.token()), "{seen:?} holds, {left:?} before the deadline");
    context.ledger().verdict().await?;
    guard.release().await?;
    Ok(())
}

/// It is confirmed, for what the holder thinks is left of it.
async fn the_renewal_of_a_fixed_lease_shortens_nothing(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let mut claim = context.claim("k");
    claim.fixed = true;
    let token = grant(&*backend, &claim).await?;
    let before = left(&*backend, &claim).await?;
    let mut renewal = claim.clone();
    (renewal.token, renewal.ttl) = (Some(token), context.short_ttl());
    renew(&*backend, &[renewal]).await.remove(0)?;
    not_shortened(before, left(&*backend, &claim).await?)?;
    backend.release(&claim).await?;
    Ok(())
}

/// The evicted claim's late request is granted once more: that is another grant.
async fn a_renewal_of_an_earlier_grant_is_refused(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let claim = context.claim("k");
    let token = grant(&*backend, &claim).await?;
    let evict = || async { Ok(backend.evict(&claim.key, token).await.ok()) };
    until(SOON, "an eviction", evict).await?;
    // A server may also refuse the late request.
    let late = backend.try_acquire(&claim).await;
    let mut renewal = claim.clone();
    renewal.token = Some(token);
    let renewed = renew(&*backend, &[renewal]).await.remove(0);
    let kind = renewed.as_ref().err().map(tenure::Error::kind);
    ensure!(kind == Some(ErrorKind::Lost), "after {late:?}: {renewed:?}");
    backend.release(&claim).await?;
    Ok(())
}

/// Longer than every bound that a backend has inside.
async fn a_fixed_lease_won_by_waiting_lasts_its_ttl(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let ttl = Duration::from_secs(15);
    let holder = acquire_free(&one.lock(context.key("k"))).await?;
    let waiting = tokio::spawn(two.lock(context.key("k")).ttl(ttl).without_renewal().acquire());
    until_waiters(&one.lock(context.key("k")), 1).await.ok();
    holder.release().await?;
    let guard = soon("acquire", waiting).await???;
    let left = guard.check()?;
    ensure!(left > ttl * 8 / 10, "{left:?} left of {ttl:?}");
    guard.release().await?;
    Ok(())
}

async fn a_lease_with_parts_of_a_millisecond_is_kept_to_its_end(
    context: &TestContext,
) -> Result<()> {
    context.ledger().look_at_every_belief();
    let client = context.client().await?;
    for number in 0..10_u64 {
        let ttl = context.short_ttl() + Duration::from_nanos(number * 99_999 + 123_457);
        let lock = client.lock(context.key(&format!("k{number}"))).ttl(ttl);
        let lock = if number.is_multiple_of(2) { lock.without_renewal() } else { lock };
        let guard = acquire_free(&lock).await?;
        context.ledger().verdict().await?;
        guard.release().await?;
    }
    Ok(())
}

/// The client gave the request up; it is carried out when the network heals.
async fn a_request_that_arrives_after_its_release_holds_nothing(
    context: &TestContext,
) -> Result<()> {
    let network = context.network()?;
    let (steady, shaky) = (context.client().await?, context.client_through(&network).await?);
    let lock = shaky.lock(context.key("k"));
    let ttl = context.short_ttl();
    acquire_free(&lock.clone().ttl(ttl)).await?.release().await?;
    network.hold_requests();
    let attempt = soon("try_acquire", lock.clone().ttl(ttl).try_acquire()).await?;
    ensure!(attempt.is_err(), "nothing was held up: {attempt:?}");
    // For longer than the lease of the request.
    tokio::time::sleep(ttl + ttl / 2).await;
    network.heal();
    let confirmed = || async { Ok(shaky.flush().await.ok()) };
    until(SOON, "the release is confirmed", confirmed).await?;
    let guard = acquire_free(&steady.lock(context.key("k"))).await?;
    guard.release().await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ghost = soon("holding", steady.lock(context.key("k")).status()).await??;
    ensure!(ghost.is_none(), "{ghost:?}");
    Ok(())
}

/// A waiter that is cut off for longer than its ttl is granted the lock, does not hear of it, and
/// loses it again to the next: what it hears afterwards is old. The lease oracle sees two holders.
async fn a_push_that_arrives_late_is_ignored(context: &TestContext) -> Result<()> {
    let network = context.network()?;
    let (steady, shaky) = (context.client().await?, context.client_through(&network).await?);
    let key = context.key("k");
    let ttl = context.short_ttl().max(Duration::from_millis(1500));
    let holder = acquire_free(&steady.lock(key.clone())).await?;
    let cut_off = tokio::spawn(shaky.lock(key.clone()).ttl(ttl).acquire());
    until_waiters(&steady.lock(key.clone()), 1).await.ok();
    let next = tokio::spawn(steady.lock(key.clone()).ttl(ttl).acquire());
    until_waiters(&steady.lock(key), 2).await.ok();
    network.cut();
    holder.release().await?;
    let limit = ttl * 2 * context.info().max_expiry_ttls + SOON;
    let next = within(limit, "the next waiter", next).await???;
    network.heal();
    tokio::time::sleep(ttl).await;
    next.check()?;
    context.ledger().verdict().await?;
    next.release().await?;
    within(limit, "the waiter that was cut off", cut_off).await???.release().await?;
    Ok(())
}
