//! Downgrade: makes a held exclusive lock shared without letting it go.
//!
//! **State at the server.** The grant of (key, owner) with the token of the lease. The request is a
//! `try_acquire` with mode `Shared` that carries this token: it changes that one grant or nothing,
//! so that one which arrives late, after a release, an eviction or the end of the lease, leaves
//! nothing behind. It can be repeated until there is a response.
//!
//! **Invariant.** The lease counts as shared from before the first request is sent. If there is no
//! response, the server may or may not have let readers in, and the holder must not go on as if it
//! were alone.
//!
//! **Who may change it.** The guard is borrowed mutably for the call, so that it is not released
//! meanwhile; the renewer goes on. If the caller drops the future, the request goes on in the
//! background.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Attempt, Mode};
use crate::engine::ClientInner;
use crate::engine::lease_state::LeaseState;
use crate::engine::renewer::on_lost;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::support::backoff::Backoff;

/// The pauses between requests while the server does not respond.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Makes the lock shared, and waits until the server has confirmed it.
pub(crate) async fn downgrade(inner: &Arc<ClientInner>, lease: &Arc<LeaseState>) -> Result<()> {
    match lease.claim.mode {
        Mode::Exclusive => {}
        Mode::Shared => return Ok(()),
        Mode::Permits { .. } => return Err(Error::invalid("permits cannot be downgraded")),
    }
    inner.check_mode(Mode::Shared)?;
    lease.check()?;
    lease.begin_downgrade();
    let task = repeat(inner.clone(), lease.clone());
    inner.executor.run(task).await?
}

/// Repeats the request until there is a response, for a ttl at most.
async fn repeat(inner: Arc<ClientInner>, lease: Arc<LeaseState>) -> Result<()> {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let until = inner.clock.now() + lease.claim.ttl;
    loop {
        lease.check()?;
        let now = inner.clock.now();
        let mut claim = lease.renewal(now, inner.info.min_ttl);
        (claim.mode, claim.waits) = (Mode::Shared, false);
        let limit = ClientInner::response_limit(claim.ttl);
        match inner.call(limit, inner.backend.try_acquire(&claim)).await {
            Ok(Attempt::Granted(_)) => {
                let (key, token) = (lease.key.clone(), lease.token);
                inner.observers.tell(|| Event::Downgraded { key, token });
                return Ok(());
            }
            Ok(Attempt::Busy(_)) => {
                let message = "the backend responded busy to a downgrade; please report it";
                return Err(Error::new(ErrorKind::Internal, message));
            }
            Err(error) if error.kind() == ErrorKind::Lost => {
                let reason = error.gone_reason().unwrap_or_else(|| lease.likely_reason());
                on_lost(&inner, &lease, reason);
                return Err(lease.lost_by(reason).into());
            }
            Err(error) if error.kind() == ErrorKind::Unavailable && now < until => {
                inner.clock.sleep(backoff.next()).await;
            }
            Err(error) => return Err(error),
        }
    }
}
