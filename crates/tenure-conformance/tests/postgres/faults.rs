//! Faults that locks have to survive: clocks, killed servers and sessions, lost responses,
//! evictions.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Owner};
use tenure::backends::Postgres;
use tenure::{Attempt, ErrorKind, FencingToken, LostReason};
use tenure_conformance::clock;
use tenure_conformance::context::{SOON, acquire_free, soon, until, until_waiters, within};
use tenure_servers::wire::postgres::Postgres as Wire;
use tenure_servers::{Direction, Options, Topology};

use crate::{LONGEST, cases, claim, connect, own_server, server, sql, unique, until_response};

cases! {
    setting_the_clock_neither_lowers_tokens_nor_loses_waiters,
    a_repeated_acquire_is_not_granted_after_the_session_ended,
    a_late_request_acquires_nothing_after_its_release,
    lost_responses_leave_no_lock_and_lower_no_token,
    a_killed_server_restarts_with_the_same_locks_and_higher_tokens,
    a_terminated_session_loses_its_lock_at_once,
    a_terminated_transaction_loses_its_lock_at_once,
    an_aborted_transaction_loses_its_lock_at_once,
    a_terminated_listener_is_replaced_and_the_waiter_gets_the_lock,
    an_eviction_from_a_session_keeps_its_other_locks,
    a_session_without_locks_is_not_ended,
}

async fn setting_the_clock_neither_lowers_tokens_nor_loses_waiters() -> Result<()> {
    let cluster = tenure_servers::start(Topology::Postgres, &Options::default().clock())?;
    for mode in ["lease", "session", "row"] {
        let url = format!("{}?mode={mode}", cluster.url());
        clock::set(&cluster, &url, mode != "lease").await.context(mode)?;
    }
    Ok(())
}

async fn a_late_request_acquires_nothing_after_its_release() -> Result<()> {
    let backend = Postgres::open(&server()?.url()).await?;
    for waits in [false, true] {
        let mut late = claim(&unique("k"))?;
        late.unconfirmed = true;
        late.waits = waits;
        // The request has not been carried out yet when the claim is released.
        ensure!(!backend.release(&late).await?);
        ensure!(
            matches!(backend.try_acquire(&late).await?, Attempt::Busy(_)),
            "a cancelled claim holds the lock"
        );
        let other = Claim::new(late.key.clone(), Owner::random(), late.ttl);
        let grant = backend.try_acquire(&other).await?.granted()?;
        ensure!(matches!(backend.try_acquire(&late).await?, Attempt::Busy(_)));
        ensure!(backend.release(&other).await?, "it was held");
        // A queue entry of the cancelled claim would have been granted the lock now.
        let again = Claim::new(late.key.clone(), Owner::random(), late.ttl);
        ensure!(backend.try_acquire(&again).await?.granted()?.token > grant.token);
        ensure!(backend.release(&again).await?);
    }
    Ok(())
}

/// The proxy drops the response to one statement after the other and closes the connection.
async fn lost_responses_leave_no_lock_and_lower_no_token() -> Result<()> {
    let cluster = server()?;
    let proxy = cluster.node().proxy()?;
    for mode in ["lease", "session", "row"] {
        let url = format!("{}?mode={mode}", cluster.node().url_at(&proxy.address()));
        let shaky = connect(&url).await?;
        let steady = connect(&format!("{}?mode={mode}", cluster.url())).await?;
        let key = unique("k");
        let mut last = None::<FencingToken>;
        for round in 1..=8 {
            proxy.drop_response(round % 4 + 1);
            let guard = soon("acquire", shaky.lock(&key).acquire()).await??;
            ensure!(Some(guard.token()) > last, "{mode}: {:?} after {last:?}", guard.token());
            last = Some(guard.token());
            let held = soon("holding", steady.lock(&key).try_acquire()).await??;
            ensure!(
                matches!(held, Attempt::Busy(_)) || guard.check().is_err(),
                "{mode}: two holders"
            );
            if let Attempt::Granted(other) = held {
                last = Some(other.token());
                other.release().await?;
            }
            // A lost response leaves the outcome unknown; the lock must be free afterwards in any
            // case.
            drop(soon("release", guard.release()).await?);
            proxy.heal();
            soon("flush", shaky.flush()).await??;
            let guard = soon("the lock", steady.lock(&key).acquire()).await??;
            ensure!(Some(guard.token()) > last, "{mode}: {:?} after {last:?}", guard.token());
            last = Some(guard.token());
            guard.release().await?;
        }
    }
    Ok(())
}

async fn a_killed_server_restarts_with_the_same_locks_and_higher_tokens() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&cluster.url()).await?;
    let mut held = claim("held")?;
    held.ttl = Duration::from_secs(60);
    let first = backend.try_acquire(&held).await?.granted()?;
    let mut last = first.token;
    for round in 0..3 {
        for number in 0..50 {
            let other = claim(&format!("other {round} {number}"))?;
            let grant = backend.try_acquire(&other).await?.granted()?;
            ensure!(grant.token > last);
            last = grant.token;
            ensure!(backend.release(&other).await?);
        }
        cluster.node().kill()?;
        let refused = backend.try_acquire(&held).await.map(|_| ()).map_err(|e| e.kind());
        ensure!(refused == Err(ErrorKind::Unavailable), "{refused:?}");
        cluster.node().restart()?;
        let again = until_response(|| backend.try_acquire(&held)).await?.granted()?;
        ensure!(again.token == first.token, "the grant was lost: {again:?} {first:?}");
        let other = claim("held")?;
        let attempt = until_response(|| backend.try_acquire(&other)).await?;
        ensure!(matches!(attempt, Attempt::Busy(_)), "the lock was granted twice");
    }
    ensure!(until_response(|| backend.release(&held)).await?);
    Ok(())
}

async fn a_terminated_session_loses_its_lock_at_once() -> Result<()> {
    terminate("session", "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted").await
}

async fn a_terminated_transaction_loses_its_lock_at_once() -> Result<()> {
    let which = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'tenure row %'";
    terminate("row", which).await
}

/// An operator cancels the statement of a renewal. That aborts the transaction, which releases the
/// row lock at once, and keeps the connection open.
async fn an_aborted_transaction_loses_its_lock_at_once() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&format!("{}?mode=row", cluster.url())).await?;
    let (mut claim, other) = (claim("k")?, claim("k")?);
    claim.token = Some(backend.try_acquire(&claim).await?.granted()?.token);
    let mut operator = Wire::connect(cluster.node().port())?;
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity, \
                  generate_series(1, 100) WHERE application_name LIKE 'tenure row %'";
    let cancelling = tokio::task::spawn_blocking(move || {
        while operator.query(cancel).is_ok_and(|count| count != ["0"]) {}
    });
    // Many at once, so that there is nearly always a statement to cancel.
    let renewals = vec![claim.clone(); 1000];
    let renewed = within(LONGEST / 2, "a renewal that is cancelled", async {
        loop {
            if let Some(error) = backend.renew(&renewals).await.into_iter().find_map(Result::err) {
                return error;
            }
        }
    });
    let renewed = renewed.await?;
    ensure!(
        renewed.kind() == ErrorKind::Lost,
        "the lock is lost, and its holder is told {renewed}"
    );
    // The server reports it a moment before it releases the row lock.
    let next =
        until(SOON, "the row", || async { Ok(backend.try_acquire(&other).await?.granted().ok()) });
    ensure!(Some(next.await?.token) > claim.token);
    ensure!(!backend.release(&claim).await?, "a lost lock was released");
    soon("release", until_response(|| backend.release(&other))).await??;
    soon("the operator", cancelling).await??;
    Ok(())
}

/// Ends every connection that holds a lock in this mode.
async fn terminate(mode: &str, which: &str) -> Result<()> {
    let cluster = own_server()?;
    let url = format!("{}?mode={mode}", cluster.url());
    let (one, two) = (connect(&url).await?, connect(&url).await?);
    let guard = acquire_free(&one.lock("k").ttl(Duration::from_secs(30))).await?;
    let waiter = tokio::spawn(two.lock("k").acquire());
    until_waiters(&one.lock("k"), 1).await?;
    let ended = sql(&cluster, &format!("SELECT pg_terminate_backend(pid) FROM ({which}) x"))?;
    ensure!(ended == ["t"], "{ended:?}");
    let start = Instant::now();
    let lost = soon("the holder's loss", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::SessionGone, "{lost}");
    let next = soon("the waiter's grant", waiter).await???;
    // The lease would last for half a minute.
    ensure!(start.elapsed() < Duration::from_secs(10), "took {:?}", start.elapsed());
    ensure!(next.token() > guard.token());
    next.release().await?;
    // The client goes on with a new connection.
    let again = soon("acquire", one.lock("k").acquire()).await??;
    ensure!(again.token() > guard.token());
    again.release().await?;
    Ok(())
}

async fn a_terminated_listener_is_replaced_and_the_waiter_gets_the_lock() -> Result<()> {
    let cluster = own_server()?;
    let (one, two) = (connect(&cluster.url()).await?, connect(&cluster.url()).await?);
    let guard = acquire_free(&one.lock("k")).await?;
    let waiter = tokio::spawn(two.lock("k").acquire());
    until_waiters(&one.lock("k"), 1).await?;
    let all = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE application_name = 'tenure'";
    sql(&cluster, all)?;
    // A lease does not end with a connection.
    ensure!(guard.check().is_ok());
    soon("release", guard.release()).await??;
    let start = Instant::now();
    soon("the waiter's grant", waiter).await???.release().await?;
    // Without a wake-up the next request would come after ten seconds.
    ensure!(start.elapsed() < Duration::from_secs(5), "took {:?}", start.elapsed());
    Ok(())
}

async fn an_eviction_from_a_session_keeps_its_other_locks() -> Result<()> {
    let url = format!("{}?mode=session", server()?.url());
    let (one, two) = (connect(&url).await?, connect(&url).await?);
    let (a, b) = (unique("a"), unique("b"));
    let evicted = acquire_free(&one.lock(&a)).await?;
    let kept = acquire_free(&one.lock(&b)).await?;
    ensure!(soon("evict", two.lock(&a).evict(evicted.token())).await??);
    let lost = soon("the loss", evicted.lost()).await?;
    ensure!(lost.reason() == LostReason::Evicted, "{lost}");
    acquire_free(&two.lock(&a)).await?.release().await?;
    ensure!(kept.check().is_ok());
    ensure!(matches!(two.lock(&b).try_acquire().await?, Attempt::Busy(_)));
    kept.release().await?;
    Ok(())
}

/// The limit for hung holders is removed with the last lock.
async fn a_session_without_locks_is_not_ended() -> Result<()> {
    let cluster = own_server()?;
    let backend = Postgres::open(&format!("{}?mode=session", cluster.url())).await?;
    let mut claim = claim("k")?;
    claim.ttl = Duration::from_secs(1);
    let sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'tenure' ORDER BY 1";
    backend.try_acquire(&claim).await?.granted()?;
    let before = sql(&cluster, sessions)?;
    ensure!(backend.release(&claim).await?);
    // The limit was 1¼ of the ttl.
    tokio::time::sleep(claim.ttl * 2).await;
    let after = sql(&cluster, sessions)?;
    ensure!(before == after, "sessions were ended: {before:?}, {after:?}");
    Ok(())
}

/// The end of the connection does not reach the client either: only a response proves that it holds
/// the lock.
async fn a_repeated_acquire_is_not_granted_after_the_session_ended() -> Result<()> {
    for mode in ["session", "row"] {
        let proxy = server()?.node().proxy()?;
        let url = server()?.url().replace(&server()?.node().address(), &proxy.address());
        let backend = Postgres::open(&format!("{url}?mode={mode}")).await?;
        let claim = claim(&unique("k"))?;
        let Attempt::Granted(_) = backend.try_acquire(&claim).await? else {
            anyhow::bail!("{mode}: a free lock was busy");
        };
        proxy.cut_one_way(Direction::ToClient);
        let end = format!(
            "SELECT pg_terminate_backend(pid) FROM tenure_board WHERE mode = '{mode}' \
             AND owner = '{}'",
            claim.owner
        );
        ensure!(sql(server()?, &end)? == ["t"], "{mode}");
        let again = tokio::time::timeout(Duration::from_secs(1), backend.try_acquire(&claim));
        let granted = matches!(again.await, Ok(Ok(Attempt::Granted(_))));
        ensure!(!granted, "{mode}: granted on a session that has ended");
        proxy.heal();
    }
    Ok(())
}
