//! Requests and messages that arrive late, twice or out of order change nothing for the worse.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tenure::backend::{Backend, Claim, Scope};
use tenure::{Attempt, ErrorKind, FencingToken};

use super::cases;
use crate::bench::{Bench, SOON, renew, soon, take, until, until_waiters, within};

cases! { "lateness":
    a_repeated_request_that_is_carried_out_last_shortens_nothing if Bench::has_network,
    the_renewal_of_a_fixed_lease_shortens_nothing,
    a_renewal_of_an_earlier_grant_is_refused,
    a_fixed_lease_won_by_waiting_lasts_its_ttl,
    a_lease_with_parts_of_a_millisecond_is_kept_to_its_end,
    a_request_that_arrives_after_its_release_holds_nothing if Bench::has_network,
    a_push_that_arrives_late_is_not_believed if Bench::has_network,
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
    let look = || async { Ok(backend.list(Scope::Key(&claim.key)).await.ok()) };
    let held = until(SOON, "a listing", look).await?.pop();
    let Some(held) = held else { bail!("the lease is over") };
    Ok(held.holder.ttl_left)
}

/// Both were read within a moment; where a session is the lease, both are its own.
fn not_shortened(before: Option<Duration>, after: Option<Duration>) -> Result<()> {
    let shortened = before.zip(after).is_some_and(|(before, after)| after < before / 2);
    ensure!(!shortened, "{before:?} were left, and then {after:?}");
    Ok(())
}

/// The client repeats a request that gets no response, and both are carried out when the network
/// heals, in any order. The lease oracle compares what the later one was told with what is kept.
async fn a_repeated_request_that_is_carried_out_last_shortens_nothing(bench: &Bench) -> Result<()> {
    bench.ledger().look_at_every_belief();
    let network = bench.network()?;
    let shaky = bench.client_through(&network).await?;
    let ttl = bench.info().min_ttl.max(Duration::from_secs(4));
    let lock = shaky.lock(bench.key("k")).ttl(ttl).without_renewal();
    take(&lock).await?.release().await?;
    network.hold_requests();
    let asking = tokio::spawn(lock.acquire());
    // A request gets a quarter of the lease.
    tokio::time::sleep(ttl / 4 + ttl / 10).await;
    network.heal();
    let guard = soon("acquire", asking).await???;
    tokio::time::sleep(ttl / 4).await;
    let left = shaky.lock(bench.key("k")).holding();
    let held = soon("holding", left).await??.map(|holding| holding.holder);
    let (left, seen) = (guard.check()?, held.and_then(|holder| holder.token));
    ensure!(seen == Some(guard.token()), "{seen:?} holds, {left:?} before the deadline");
    bench.ledger().verdict().await?;
    guard.release().await?;
    Ok(())
}

/// It is confirmed, for what the holder thinks is left of it.
async fn the_renewal_of_a_fixed_lease_shortens_nothing(bench: &Bench) -> Result<()> {
    let (backend, mut claim) = (bench.backend().await?, bench.claim("k"));
    claim.fixed = true;
    let token = grant(&*backend, &claim).await?;
    let before = left(&*backend, &claim).await?;
    let mut renewal = claim.clone();
    (renewal.token, renewal.ttl) = (Some(token), bench.short_ttl());
    renew(&*backend, &[renewal]).await.remove(0)?;
    not_shortened(before, left(&*backend, &claim).await?)?;
    backend.release(&claim).await?;
    Ok(())
}

/// The evicted claim's late request is granted once more: that is another grant.
async fn a_renewal_of_an_earlier_grant_is_refused(bench: &Bench) -> Result<()> {
    let (backend, claim) = (bench.backend().await?, bench.claim("k"));
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
async fn a_fixed_lease_won_by_waiting_lasts_its_ttl(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let ttl = Duration::from_secs(15);
    let holder = take(&one.lock(bench.key("k"))).await?;
    let waiting = tokio::spawn(two.lock(bench.key("k")).ttl(ttl).without_renewal().acquire());
    until_waiters(&one.lock(bench.key("k")), 1).await.ok();
    holder.release().await?;
    let guard = soon("acquire", waiting).await???;
    let left = guard.check()?;
    ensure!(left > ttl * 8 / 10, "{left:?} left of {ttl:?}");
    guard.release().await?;
    Ok(())
}

async fn a_lease_with_parts_of_a_millisecond_is_kept_to_its_end(bench: &Bench) -> Result<()> {
    bench.ledger().look_at_every_belief();
    let client = bench.client().await?;
    for number in 0..10_u64 {
        let ttl = bench.short_ttl() + Duration::from_nanos(number * 99_999 + 123_457);
        let lock = client.lock(bench.key(&format!("k{number}"))).ttl(ttl);
        let lock = if number.is_multiple_of(2) { lock.without_renewal() } else { lock };
        let guard = take(&lock).await?;
        bench.ledger().verdict().await?;
        guard.release().await?;
    }
    Ok(())
}

/// The client gave the request up; it is carried out when the network heals.
async fn a_request_that_arrives_after_its_release_holds_nothing(bench: &Bench) -> Result<()> {
    let network = bench.network()?;
    let (steady, shaky) = (bench.client().await?, bench.client_through(&network).await?);
    let (lock, ttl) = (shaky.lock(bench.key("k")), bench.short_ttl());
    take(&lock.clone().ttl(ttl)).await?.release().await?;
    network.hold_requests();
    let attempt = soon("try_acquire", lock.clone().ttl(ttl).try_acquire()).await?;
    ensure!(attempt.is_err(), "nothing was held up: {attempt:?}");
    // For longer than the lease that the request asks for.
    tokio::time::sleep(ttl + ttl / 2).await;
    network.heal();
    let confirmed = || async { Ok(shaky.flush().await.ok()) };
    until(SOON, "the release is confirmed", confirmed).await?;
    let guard = take(&steady.lock(bench.key("k"))).await?;
    guard.release().await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ghost = soon("holding", steady.lock(bench.key("k")).holding()).await??;
    ensure!(ghost.is_none(), "{ghost:?}");
    Ok(())
}

/// A waiter that is cut off for longer than its ttl is granted the lock, does not hear of it, and
/// loses it again to the next: what it hears afterwards is old. The lease oracle sees two holders.
async fn a_push_that_arrives_late_is_not_believed(bench: &Bench) -> Result<()> {
    let network = bench.network()?;
    let (steady, shaky) = (bench.client().await?, bench.client_through(&network).await?);
    let (key, ttl) = (bench.key("k"), bench.short_ttl().max(Duration::from_millis(1500)));
    let holder = take(&steady.lock(key.clone())).await?;
    let cut_off = tokio::spawn(shaky.lock(key.clone()).ttl(ttl).acquire());
    until_waiters(&steady.lock(key.clone()), 1).await.ok();
    let next = tokio::spawn(steady.lock(key.clone()).ttl(ttl).acquire());
    until_waiters(&steady.lock(key), 2).await.ok();
    network.cut();
    holder.release().await?;
    let limit = ttl * 2 * bench.info().freed_after + SOON;
    let next = within(limit, "the next waiter", next).await???;
    network.heal();
    tokio::time::sleep(ttl).await;
    next.check()?;
    bench.ledger().verdict().await?;
    next.release().await?;
    within(limit, "the waiter that was cut off", cut_off).await???.release().await?;
    Ok(())
}
