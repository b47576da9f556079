//! Logging in, once for all requests that need it: checking a password costs the server some 70 ms
//! of one core, so that a login for each request would let none of them finish in time.

use std::fmt;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use hyper::header::HeaderValue;

use super::grpc::{Method, unary};
use super::status::{Code, Status};
use super::{ActiveEndpoint, Connection};
use crate::backends::etcd::error::{permission_is_denied, unexpected};
use crate::backends::etcd::layout::messages::{
    AuthenticateRequest, AuthenticateResponse, RangeResponse,
};
use crate::backends::etcd::layout::{RANGE, get};
use crate::error::{Error, Result};
use crate::support::credentials::UserLogin;
use crate::support::sync::Mutex;

const AUTHENTICATE: Method = Method("/etcdserverpb.Auth/Authenticate");
/// How long a login may take; with several endpoints half of it, so that there is time for another.
const LOGIN_LIMIT: Duration = Duration::from_secs(3);

/// User and password, or where they come from, and the login under way.
pub(crate) struct Login {
    login: UserLogin,
    /// All requests wait for the same login, and any of them takes it further: none depends on
    /// another, which may stall. A request that is dropped leaves the login here for the next one:
    /// if each began its own, none would end on a slow server.
    under_way: Mutex<Option<PendingLogin>>,
}

/// The proof of a login, which each request carries.
#[derive(Clone, PartialEq)]
pub(super) enum Token {
    /// Not requested yet, or refused by the server.
    None,
    /// The server does not want any.
    NotNeeded,
    Given(HeaderValue),
}

#[derive(Clone)]
struct PendingLogin {
    active: ActiveEndpoint,
    end: Instant,
    response: Shared<BoxFuture<'static, Result<AuthenticateResponse, Status>>>,
}

impl Login {
    pub(crate) fn new(login: UserLogin) -> Login {
        Login { login, under_way: Mutex::default() }
    }

    /// The endpoint in use, with a token. Waits for it until `end`.
    pub(super) async fn log_in(
        &self,
        connection: &Connection,
        end: Instant,
    ) -> Result<ActiveEndpoint> {
        let limit = end.saturating_duration_since(Instant::now());
        let login = tokio::time::timeout_at(end.into(), self.one_at_a_time(connection)).await;
        login.unwrap_or_else(|_| Err(Error::timed_out("etcd's login", limit)))
    }

    async fn one_at_a_time(&self, connection: &Connection) -> Result<ActiveEndpoint> {
        loop {
            let active = connection.active.lock().clone();
            if active.token != Token::None {
                return Ok(active);
            }
            let pending = self.join(connection, active);
            let response = tokio::time::timeout_at(pending.end.into(), pending.response.clone());
            let response = response.await;
            // One of those who waited does what follows from it. The others find the token, or
            // have the same error.
            let is_first = self.take(&pending);
            match response {
                Ok(Ok(_)) if !is_first => {}
                Ok(Ok(AuthenticateResponse { token })) => {
                    let token = token.parse().map_err(|_| unexpected("the token is not text"))?;
                    return Ok(connection.set_token(Token::Given(token)));
                }
                Ok(Err(status)) if status.message.contains("authentication is not enabled") => {
                    if is_first {
                        return Ok(connection.set_token(Token::NotNeeded));
                    }
                }
                Ok(Err(status)) => {
                    connection.react_to(&status, pending.active.generation);
                    return Err(connection.explain(status, &pending.active));
                }
                // The next endpoint may respond, if the request has time left.
                Err(_) => connection.move_on(pending.active.generation),
            }
        }
    }

    /// The login that is under way at this endpoint; begins one if there is none.
    fn join(&self, connection: &Connection, active: ActiveEndpoint) -> PendingLogin {
        let is_current = |pending: &PendingLogin| {
            pending.active.generation == active.generation && pending.end > Instant::now()
        };
        let mut under_way = self.under_way.lock();
        match under_way.take().filter(is_current) {
            Some(pending) => under_way.insert(pending).clone(),
            None => under_way.insert(self.begin(connection, active)).clone(),
        }
    }

    /// Whether this login was still under way until now.
    fn take(&self, ended: &PendingLogin) -> bool {
        let mut under_way = self.under_way.lock();
        let is_same = |pending: &mut PendingLogin| pending.response.ptr_eq(&ended.response);
        under_way.take_if(is_same).is_some()
    }

    fn begin(&self, connection: &Connection, active: ActiveEndpoint) -> PendingLogin {
        let login = self.login.clone();
        let is_alone = connection.endpoints.len() == 1;
        let limit = if is_alone { LOGIN_LIMIT } else { LOGIN_LIMIT / 2 };
        let ActiveEndpoint { channel, token, .. } = active.clone();
        let response = async move {
            let unknown = |error: Error| Status::new(Code::Unavailable, error.to_string());
            let login = login.current().await.map_err(unknown)?;
            let (name, password) = (login.user.unwrap_or_default(), login.password);
            let request = AuthenticateRequest { name, password: password.unwrap_or_default() };
            unary(&channel, &token, AUTHENTICATE, request).await
        };
        let response = response.boxed().shared();
        PendingLogin { active, end: Instant::now() + limit, response }
    }
}

/// Without the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a login of {}", self.login.user.as_deref().unwrap_or("another"))
    }
}

/// Reads some key, to prove that the login is accepted. Whether it has a right to that key does not
/// matter here.
pub(crate) async fn check_login(connection: &Connection, limit: Duration) -> Result<()> {
    let read = connection.call::<_, RangeResponse>(RANGE, get(b"%"), limit).await;
    match read {
        Err(error) if !permission_is_denied(&error) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}
