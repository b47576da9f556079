//! What has to hold when an operator sets the clock of a database. The servers are started with
//! `Options::clock`.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::{Attempt, Lease, Lock};
use tenure_servers::Cluster;

use crate::context::{acquire_free, soon, until_waiters};

const HOUR: i64 = 3_600_000;
/// A waiter whose queue entry expired by a jump repeats its request after a third of it.
const TTL: Duration = Duration::from_secs(6);

/// Sets the clock forward and back, between grants and under a holder and a waiter. `native` if a
/// lock of the database itself excludes: that is kept, whatever the clock says.
///
/// # Errors
///
/// Tokens do not grow, a waiter is forgotten, what was released is not free, or two hold a native
/// lock.
pub async fn set(cluster: &Cluster, url: &str, native: bool) -> Result<()> {
    let node = cluster.node();
    let (one, two) = (tenure::connect(url).await?, tenure::connect(url).await?);
    let (one, two) = (one.lock("k").ttl(TTL), two.lock("k").ttl(TTL));
    let mut last = None;
    for (before, under) in [(0, HOUR), (-HOUR, 0), (HOUR, -HOUR), (0, 2 * HOUR), (0, 0)] {
        node.shift_clock(before)?;
        let guard = acquire_free(&one).await?;
        ensure!(Some(guard.token()) > last, "{} after {last:?}", guard.token());
        last = Some(guard.token());
        let holder = guard.lease().clone();
        let waiter = two.acquire();
        let waiter = tokio::spawn(async move { waiter.await.map(|next| (next, is_over(&holder))) });
        until_waiters(&one, 1).await?;
        node.shift_clock(under)?;
        ensure!(!native || excludes(&two, guard.lease()).await?, "two hold, {under} ms off");
        let released = soon("release", guard.release()).await?;
        // A lease may be over by the server's clock.
        ensure!(!native || released.is_ok(), "{released:?}, {under} ms off");
        let (next, alone) = soon("the waiter's grant", waiter).await???;
        ensure!(!native || alone, "two hold, {under} ms off");
        ensure!(Some(next.token()) > last, "{} after {last:?}", next.token());
        last = Some(next.token());
        next.release().await?;
    }
    node.shift_clock(0)?;
    Ok(())
}

/// Tries some times: no other client may get the lock before its holder knows of the loss.
async fn excludes(lock: &Lock, holder: &Lease) -> Result<bool> {
    for _ in 0..10 {
        let attempt = soon("try_acquire", lock.try_acquire()).await??;
        if matches!(attempt, Attempt::Granted(_)) && !is_over(holder) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_over(lease: &Lease) -> bool {
    lease.check().is_err()
}
