//! The way to the servers: one session carries all claims that are renewed, and one more those with
//! a fixed lease of one length. When a session is over, so is everything that hung on it, and the
//! next request opens another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::fault;
use super::moving::Unanswered;
use super::session::Session;
use super::settings::Settings;
use crate::backend::Claim;
use crate::error::{Error, ErrorKind, Result};

/// The sessions of now, and how to open the next one.
pub(super) struct Link {
    pub(super) settings: Settings,
    session: Mutex<Arc<Session>>,
    /// By the length of the leases. A fixed lease is not renewed, so that its session has to
    /// outlast it from the grant on, whatever the URL says of the others.
    fixed: Mutex<HashMap<Duration, Arc<Session>>>,
    opening: tokio::sync::Mutex<()>,
}

impl Link {
    pub(super) async fn open(settings: Settings) -> Result<Link> {
        let session = Arc::new(Session::open(&settings, settings.timeout, 0).await?);
        let (session, opening) = (Mutex::new(session), tokio::sync::Mutex::default());
        Ok(Link { settings, session, fixed: Mutex::default(), opening })
    }

    /// The session of the claims that are renewed, also if it is over.
    pub(super) fn now(&self) -> Arc<Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All sessions of now.
    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        let mut all = vec![self.now()];
        all.extend(self.fixed().values().cloned());
        all
    }

    /// The session of a claim. A renewal does not say how long a fixed lease was at first.
    pub(super) fn of(&self, claim: &Claim) -> Arc<Session> {
        if !claim.fixed {
            return self.now();
        }
        let fixed = self.fixed();
        let has = |session: &&Arc<Session>| session.spot(claim).is_some();
        let session = fixed.values().find(has).or_else(|| fixed.get(&claim.ttl)).cloned();
        drop(fixed);
        session.unwrap_or_else(|| self.now())
    }

    /// A session that is not known to be over.
    pub(super) async fn living(&self) -> Result<Arc<Session>> {
        let session = self.now();
        if !session.is_over() {
            return Ok(session);
        }
        let _one_at_a_time = self.opening.lock().await;
        let session = self.now();
        if !session.is_over() {
            return Ok(session);
        }
        let next = Session::open(&self.settings, self.settings.timeout, session.number + 1).await?;
        let next = Arc::new(next);
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = next.clone();
        Ok(next)
    }

    /// One for this claim.
    pub(super) async fn living_for(&self, claim: &Claim) -> Result<Arc<Session>> {
        if !claim.fixed {
            return self.living().await;
        }
        let found = || self.fixed().get(&claim.ttl).cloned();
        if let Some(session) = found().filter(|session| !session.is_over()) {
            return Ok(session);
        }
        let _one_at_a_time = self.opening.lock().await;
        let before = found();
        if let Some(session) = before.clone().filter(|session| !session.is_over()) {
            return Ok(session);
        }
        let number = before.map_or(0, |before| before.number + 1);
        let session = Session::open(&self.settings, Session::timeout_of(claim.ttl), number).await?;
        if session.lease() < claim.ttl {
            return Err(too_long(claim.ttl, &session));
        }
        let session = Arc::new(session);
        self.fixed().insert(claim.ttl, session.clone());
        Ok(session)
    }

    /// Ends sessions for fixed leases that nobody has wanted for a while.
    pub(super) fn close_idle(&self) {
        // Whoever is about to use one has a share in it.
        let used =
            |session: &Arc<Session>| Arc::strong_count(session) > 1 || !session.is_idle(IDLE);
        self.fixed().retain(|_, session| used(session));
    }

    fn fixed(&self) -> MutexGuard<'_, HashMap<Duration, Arc<Session>>> {
        self.fixed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the answer to a call may take.
    pub(super) fn limit(&self, call: Call) -> Duration {
        let lease = self.now().lease();
        let limit = match call {
            // A grant that comes later has too little of its lease left to be of use.
            Call::Take => lease * 2 / 3,
            // A hung one has to leave time to go to another server and to ask again.
            Call::Renew => lease / 4,
            Call::Release | Call::Look => MOST_PATIENCE,
        };
        limit.min(MOST_PATIENCE)
    }

    /// Makes a call that ends, by requests of this session. If it is not answered, the session
    /// moves to another server.
    pub(super) async fn bound<T>(
        &self,
        session: &Arc<Session>,
        what: Call,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = self.limit(what);
        let (client, unanswered) = (session.client(), Unanswered::new(&self.settings, session));
        let mut proves = false;
        let answer = tokio::select! {
            biased;
            answer = call => {
                let unknown = |error: &Error| error.kind() == ErrorKind::Unavailable;
                proves = !answer.as_ref().is_err_and(unknown) && !matches!(what, Call::Look);
                answer
            }
            // What the left server makes of it nobody will say.
            () = session.until_moved(&client) => Err(fault::moved()),
            () = tokio::time::sleep(limit) => {
                return Err(fault::silent(&self.settings.shown(), limit));
            }
        };
        unanswered.answered(proves);
        answer
    }
}

fn too_long(ttl: Duration, session: &Session) -> Error {
    let (needed, got) = (Session::timeout_of(ttl).as_secs_f64(), session.timeout().as_secs_f64());
    let message = format!(
        "a fixed lease of {ttl:?} needs a session of {needed} s, but the server keeps none longer \
         than {got} s; ask for {:?} or less, renew the lock, or raise `maxSessionTimeout`",
        session.lease()
    );
    Error::new(ErrorKind::Invalid, message)
}

/// What is asked of the server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Take,
    Renew,
    Release,
    /// For people.
    Look,
}

/// The longest that one call may take.
const MOST_PATIENCE: Duration = Duration::from_secs(4);
/// For how long a session for fixed leases is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(300);
