//! Logging in, once for all requests that need it: checking a password costs the server some 70 ms
//! of one core, so that a herd of logins would answer none of them in time.

use std::fmt;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use tonic::Status;
use tonic::metadata::{Ascii, MetadataValue};

use super::fault::unavailable;
use super::proto::{AuthenticateRequest, AuthenticateResponse};
use super::wire::{Line, Method, Wire, unary};
use crate::error::Result;

/// User, password, and the login under way.
pub(super) struct Login {
    user: String,
    password: String,
    /// Held by whoever waits for the response. A request that is given up leaves the login here for
    /// the next one to wait on: begun anew each time, it would never end on a slow server.
    under_way: Mutex<Option<UnderWay>>,
}

/// What shows the server who we are.
#[derive(Clone, PartialEq)]
pub(super) enum Token {
    /// Not requested yet, or no longer good.
    None,
    /// The server does not want any.
    Needless,
    Given(MetadataValue<Ascii>),
}

struct UnderWay {
    line: Line,
    end: Instant,
    response: BoxFuture<'static, Result<AuthenticateResponse, Status>>,
}

impl Login {
    pub(super) fn new(user: &str, password: &str) -> Login {
        let (user, password) = (user.to_owned(), password.to_owned());
        Login { user, password, under_way: Mutex::default() }
    }

    /// The connection with a token, by this moment.
    pub(super) async fn log_in(&self, wire: &Wire, end: Instant) -> Result<Line> {
        let late = || unavailable("no answer to the login in time");
        tokio::time::timeout_at(end.into(), self.one_at_a_time(wire)).await.map_err(|_| late())?
    }

    async fn one_at_a_time(&self, wire: &Wire) -> Result<Line> {
        let mut under_way = self.under_way.lock().await;
        loop {
            let line = wire.line().clone();
            if line.token != Token::None {
                return Ok(line);
            }
            let now = Instant::now();
            let current = match under_way.take() {
                Some(current)
                    if current.line.generation == line.generation && current.end > now =>
                {
                    under_way.insert(current)
                }
                _ => under_way.insert(self.begin(wire, line)),
            };
            let (line, end) = (current.line.clone(), current.end);
            let response = tokio::time::timeout_at(end.into(), &mut current.response).await;
            *under_way = None;
            match response {
                Ok(Ok(AuthenticateResponse { token })) => {
                    let token = token.parse().map_err(|_| unavailable("the token is not text"))?;
                    return Ok(wire.set_token(Token::Given(token)));
                }
                Ok(Err(status)) if status.message().contains("authentication is not enabled") => {
                    return Ok(wire.set_token(Token::Needless));
                }
                Ok(Err(status)) => {
                    wire.settle(&status, &line);
                    return Err(wire.explained(status, &line));
                }
                // Silent: the next endpoint may answer, for whoever has time left.
                Err(_) => wire.move_on(line.generation),
            }
        }
    }

    fn begin(&self, wire: &Wire, line: Line) -> UnderWay {
        let request =
            AuthenticateRequest { name: self.user.clone(), password: self.password.clone() };
        let patience = if wire.count() > 1 { PATIENCE / 2 } else { PATIENCE };
        let asked = line.clone();
        let response = async move { unary(&asked, AUTHENTICATE, request).await }.boxed();
        UnderWay { line, end: Instant::now() + patience, response }
    }
}

/// Without the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a login of {}", self.user)
    }
}

const AUTHENTICATE: Method = Method("/etcdserverpb.Auth/Authenticate");
/// How long a login may take; with several endpoints half of it, so that there is time for another.
const PATIENCE: Duration = Duration::from_secs(3);
