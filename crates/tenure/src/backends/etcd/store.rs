//! An opened client of etcd: its connection, its leases, its claims, and the tasks that look after
//! them. The tasks end with it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join;
use tokio::task::AbortHandle;

use super::ask::{self, RANGE};
use super::fault::permission_is_denied;
use super::login::Login;
use super::names::Space;
use super::proto::{LeaseRevokeRequest, LeaseRevokeResponse, RangeResponse};
use super::pulse;
use super::session::{Session, Sessions, grant};
use super::table::Table;
use super::watch::Watches;
use super::wire::{Method, Wire};
use crate::error::Result;
use crate::options::Options;
use crate::tls::Tls;

/// What the verbs work on.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) wire: Arc<Wire>,
    pub(super) space: Space,
    pub(super) sessions: Arc<Sessions>,
    pub(super) table: Table,
    pub(super) watches: Watches,
    /// The shortest lease that the servers keep.
    pub(super) min_ttl: Duration,
    tasks: Vec<AbortHandle>,
}

impl Store {
    /// Reads the URL, and proves address and login by asking for the shortest lease there is.
    pub(super) async fn open(mut options: Options) -> Result<Arc<Store>> {
        let hosts = options.hosts(PORT)?;
        let space = Space::from_path(options.path());
        let password = options.password().unwrap_or_default();
        let login = options.user().map(|user| Login::new(user, password));
        let tls = match options.scheme() {
            "etcds" => Some(Tls::take(&mut options)?),
            _ => None,
        };
        options.finish()?;
        let wire = Arc::new(Wire::new(&hosts, login, tls)?);
        // The lease is not used, and ends by itself: that is one proposal less than a revocation.
        // Servers give it to anybody, so that only the read proves the login.
        let (shortest, read) = join(grant(&wire, 1, OPENING), login_counts(&wire)).await;
        read?;
        let shortest = shortest?;
        let min_ttl = Duration::from_secs(u64::try_from(shortest.ttl).unwrap_or(1));
        let sessions = Arc::new(Sessions::default());
        let pulse = tokio::spawn(pulse::run(wire.clone(), sessions.clone())).abort_handle();
        let (watches, watching) = Watches::new(wire.clone());
        let watching = tokio::spawn(watching).abort_handle();
        Ok(Arc::new_cyclic(|store: &Weak<Store>| {
            let sweeping = tokio::spawn(sweep(store.clone())).abort_handle();
            let tasks = vec![pulse, watching, sweeping];
            Store { wire, space, sessions, table: Table::default(), watches, min_ttl, tasks }
        }))
    }

    /// Ends a lease that is of no more use. If that fails, it ends by itself.
    pub(super) async fn revoke(&self, session: &Session) {
        session.bury();
        let request = LeaseRevokeRequest { id: session.id };
        let revoked = self.wire.call::<_, LeaseRevokeResponse>(REVOKE, request, REVOKING).await;
        drop(revoked);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Reads some key: whether it is allowed to is another question, answered where it matters.
async fn login_counts(wire: &Wire) -> Result<()> {
    let read = wire.call::<_, RangeResponse>(RANGE, ask::get(b"%"), OPENING).await;
    match read {
        Err(error) if !permission_is_denied(&error) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Gives back what the core has given up on: the lease that it shares with others may live on.
async fn sweep(store: Weak<Store>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(store) = store.upgrade() else { return };
        for claim in store.table.stale() {
            // What fails is stale still, and comes again.
            let _again = store.give_back(&claim).await;
        }
    }
}

const REVOKE: Method = Method("/etcdserverpb.Lease/LeaseRevoke");
const PORT: u16 = 2379;
/// How long opening may take: long enough for an election.
const OPENING: Duration = Duration::from_secs(5);
/// How long ending a lease may take.
const REVOKING: Duration = Duration::from_secs(2);
/// How often to look for claims that the core has given up on.
const SWEEP: Duration = Duration::from_secs(1);
