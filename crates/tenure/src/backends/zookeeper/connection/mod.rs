//! The sessions of a client: `session` is one of them, `connect` opens and closes them, `failover`
//! moves them to other servers.
//!
//! One session carries all claims that are renewed. Claims with a fixed lease are not renewed, so
//! that their session has to outlast the lease from the grant on, whatever timeout the URL says:
//! they have a session for each length of lease. When a session ends, the server deletes all its
//! nodes, and the next request opens another session.

pub(crate) mod connect;
mod failover;
pub(crate) mod session;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::config::Config;
use super::error;
use crate::backend::Claim;
use crate::error::{Error, ErrorKind, Result};
use crate::support::reconnect::{Connector, Reconnect};
use crate::support::sync::Mutex;
use failover::PendingCall;
use session::Session;

/// The longest that one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(4);
/// For how long an unused session for fixed leases is kept.
const IDLE_LIMIT: Duration = Duration::from_secs(300);

/// The current sessions, and how to open the next ones.
pub(crate) struct SessionPool {
    pub(crate) config: Config,
    /// The session of the claims that are renewed.
    main: Reconnect<MainSession>,
    /// The sessions of fixed leases, by the length of the lease.
    fixed: Mutex<HashMap<Duration, Arc<Session>>>,
    /// Held while a session of fixed leases is opened.
    opening_fixed: tokio::sync::Mutex<()>,
}

/// Opens the session of the claims that are renewed, each time that it has ended.
struct MainSession {
    config: Config,
}

impl Connector for MainSession {
    type Connection = Session;

    async fn connect(&self, previous: Option<&Arc<Session>>) -> Result<Session> {
        let number = previous.map_or(0, |previous| previous.number + 1);
        Session::open(&self.config, self.config.timeout, number).await
    }

    fn is_alive(&self, session: &Session) -> bool {
        !session.has_ended()
    }
}

/// What a call does, which bounds how long it may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallKind {
    Acquire,
    Renew,
    Release,
    /// An operator's request, most of which are reads: a response proves no majority.
    Admin,
}

impl SessionPool {
    pub(crate) async fn open(config: Config) -> Result<SessionPool> {
        let main = Reconnect::new(MainSession { config: config.clone() });
        // Not by `main`, whose dial would go on if the caller drops this future.
        main.set(Arc::new(Session::open(&config, config.timeout, 0).await?));
        let opening_fixed = tokio::sync::Mutex::default();
        Ok(SessionPool { config, main, fixed: Mutex::default(), opening_fixed })
    }

    /// The session of the claims that are renewed, also if it has ended.
    pub(crate) fn main(&self) -> Arc<Session> {
        self.main.current().expect("a pool is opened with its main session")
    }

    /// All current sessions.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        let mut all = vec![self.main()];
        all.extend(self.fixed.lock().values().cloned());
        all
    }

    /// The session of a claim, also if it has ended. A renewal of a fixed claim does not say how
    /// long its lease was at first, so that its session is searched for.
    pub(crate) fn of(&self, claim: &Claim) -> Arc<Session> {
        if !claim.fixed {
            return self.main();
        }
        let fixed = self.fixed.lock();
        let has_claim = |session: &&Arc<Session>| session.claims.state(claim).is_some();
        let session = fixed.values().find(has_claim).or_else(|| fixed.get(&claim.ttl)).cloned();
        drop(fixed);
        session.unwrap_or_else(|| self.main())
    }

    /// The session of the claims that are renewed; a new one if it has ended.
    pub(crate) async fn alive(&self) -> Result<Arc<Session>> {
        self.main.get().await
    }

    /// The session for this claim; a new one if there is none, or if it has ended.
    pub(crate) async fn alive_for(&self, claim: &Claim) -> Result<Arc<Session>> {
        if !claim.fixed {
            return self.alive().await;
        }
        let current = || self.fixed.lock().get(&claim.ttl).cloned();
        if let Some(session) = current().filter(|session| !session.has_ended()) {
            return Ok(session);
        }
        let _one_at_a_time = self.opening_fixed.lock().await;
        let previous = current();
        if let Some(session) = previous.clone().filter(|session| !session.has_ended()) {
            return Ok(session);
        }
        let number = previous.map_or(0, |previous| previous.number + 1);
        let timeout = Session::timeout_for(claim.ttl);
        let session = Session::open(&self.config, timeout, number).await?;
        if session.lease() < claim.ttl {
            return Err(lease_too_long(claim.ttl, &session));
        }
        let session = Arc::new(session);
        self.fixed.lock().insert(claim.ttl, session.clone());
        Ok(session)
    }

    /// Ends sessions for fixed leases that have not been used for a while.
    pub(crate) fn close_idle(&self) {
        // A task that is about to use a session has a reference to it.
        let is_used = |session: &Arc<Session>| {
            Arc::strong_count(session) > 1 || !session.claims.is_idle(IDLE_LIMIT)
        };
        self.fixed.lock().retain(|_, session| is_used(session));
    }

    /// Makes a call by requests of this session, within the limit of its kind. If there is no
    /// response, the session moves to another server.
    pub(crate) async fn call<T>(
        &self,
        session: &Arc<Session>,
        kind: CallKind,
        requests: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = self.limit(kind);
        let client = session.client();
        let pending = PendingCall::new(&self.config, session);
        let mut by_majority = false;
        let response = tokio::select! {
            biased;
            response = requests => {
                let unknown = |error: &Error| error.kind() == ErrorKind::Unavailable;
                let is_read = matches!(kind, CallKind::Admin);
                by_majority = !response.as_ref().is_err_and(unknown) && !is_read;
                response
            }
            // The left server may still carry the requests out: their outcome is unknown.
            () = session.until_moved(&client) => Err(error::moved()),
            () = tokio::time::sleep(limit) => {
                let hosts = self.config.host_list();
                return Err(Error::timed_out(format_args!("zookeeper at {hosts}"), limit));
            }
        };
        pending.finish(by_majority);
        response
    }

    /// How long a call may take.
    fn limit(&self, kind: CallKind) -> Duration {
        let lease = self.main().lease();
        let limit = match kind {
            // A grant that comes later has too little of its lease left to be of use.
            CallKind::Acquire => lease * 2 / 3,
            // Leaves time to move to another server and to repeat the call there.
            CallKind::Renew => lease / 4,
            CallKind::Release | CallKind::Admin => CALL_LIMIT,
        };
        limit.min(CALL_LIMIT)
    }
}

fn lease_too_long(ttl: Duration, session: &Session) -> Error {
    let needed = Session::timeout_for(ttl).as_secs_f64();
    let got = session.timeout().as_secs_f64();
    let message = format!(
        "a fixed lease of {ttl:?} needs a session of {needed} s, but the server keeps none longer \
         than {got} s; choose {:?} or less, renew the lock, or raise `maxSessionTimeout`",
        session.lease()
    );
    Error::new(ErrorKind::Invalid, message)
}
