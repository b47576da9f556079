//! Releasing, also when it failed at first. The library keeps a session alive by its pings,
//! whatever becomes of the claims, so that a node that was not deleted would stay as long as the
//! process does.

use std::sync::Weak;
use std::time::Duration;

use super::link::{Call, Link};
use super::settings::Layout;
use super::{queue, single};
use crate::backend::Claim;
use crate::error::Result;

impl Link {
    /// Deletes what the claim has. What hung on a session that is over is gone with it.
    pub(super) async fn release(&self, claim: &Claim) -> Result<bool> {
        let session = self.of(claim);
        if session.is_over() {
            return Ok(false);
        }
        session.leaving(claim);
        let call = async {
            match self.settings.layout {
                Layout::Queue => queue::release(&session, claim).await,
                Layout::Ephemeral => single::release(&session, claim).await,
            }
        };
        match self.bound(&session, Call::Release, call).await {
            Err(_) if session.is_over() => Ok(false),
            answer => answer,
        }
    }

    /// Releases what the core no longer releases itself. What fails is owed still, and comes again.
    async fn pay(&self) {
        let owed = self.all().iter().flat_map(|session| session.owed()).collect::<Vec<_>>();
        for claim in owed {
            let _again = self.release(&claim).await;
        }
        self.close_idle();
    }
}

/// Pays what is owed from time to time, for as long as the backend lives.
pub(super) async fn sweep(link: Weak<Link>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(link) = link.upgrade() else { return };
        link.pay().await;
    }
}

/// How often to look for claims that are owed.
const SWEEP: Duration = Duration::from_secs(1);
