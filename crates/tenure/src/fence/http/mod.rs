//! A fence in front of an HTTP service: the header `Fencing-Token`, and a tower layer that refuses
//! requests with a stale token.
//!
//! | the request | the response is |
//! |---|---|
//! | token not below the highest seen for its resource (of a reader: of its writers) | that of the service |
//! | lower token | 412 Precondition Failed, both numbers in the text, the higher one in the header |
//! | no token | 428 Precondition Required; that of the service with [`FenceLayer::optional`] |
//! | not a token, or two | 400 Bad Request |
//! | any, while the store fails or too many requests wait for the resource | 503 Service Unavailable |
//!
//! 412 and not 409, because a token is a precondition of the request, as in `If-Match`; because 409
//! suggests a retry, which never helps a stale holder; and because 409 is what a service may
//! respond when the lock is busy.
//!
//! **The layer stands inside authentication and authorization.** It remembers the token of every
//! request that reaches it, also if the service refuses it: an unauthorized client could keep all
//! holders out with the highest token there is, and fill [`Fences`](super::Fences). In axum the
//! layer that is added last is the outermost, so `.layer(fence)` comes *before* `.layer(auth)`. A
//! request can be refused for what it says itself by [`FenceLayer::check`], before anything is
//! remembered.
//!
//! The layer lets requests for one resource pass one at a time, so that a request that was admitted
//! is done before one with a higher token is. The service's work for it runs **in a task of its
//! own, to its end**: a client that disconnects, or a timeout outside of the layer, loses the
//! response and does not stop the work. That holds within one process. **A service with more than
//! one process, with a timeout inside of the layer, or that goes on working after its response (a
//! body that is streamed, a task of its own) has to check the token in its own store as well**: the
//! layer leaves [`Shown`] in the request's extensions, and of a writer the [`FencingToken`] too.
//! With [`Fences`](super::Fences) a restart forgets all tokens.
//!
//! The resource is named by a function of the request. [`path`] gives one name to all ways to write
//! a path; a layer inside `Router::nest` sees the path without what was nested.
//!
//! Clients send the header with every request that belongs to the lock, the reads too, by [`set`].
//! A reader of a shared lock sends `Fencing-Token: 42;shared`, by [`set_shared`]. That a reader
//! only reads is for the service to check, by [`FenceLayer::check`] or by [`Shown`]: the layer does
//! not know which requests write.
//!
//! ```
//! use http::{Request, Response};
//! use tenure::{fence::{http::{self as fence_http, path, FenceLayer}, Fences}, FencingToken};
//! use tower_layer::Layer;
//! use tower_service::Service;
//! # use std::{convert::Infallible, future::{ready, Ready}, task::{Context, Poll}};
//! # #[derive(Clone)] struct Shop;
//! # impl Service<Request<String>> for Shop {
//! #     type Response = Response<String>;
//! #     type Error = Infallible;
//! #     type Future = Ready<Result<Response<String>, Infallible>>;
//! #     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
//! #         Poll::Ready(Ok(()))
//! #     }
//! #     fn call(&mut self, _: Request<String>) -> Self::Future { ready(Ok(Response::default())) }
//! # }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Infallible> {
//! let layer = FenceLayer::new(Fences::new(10_000), path);
//! let mut shop = layer.layer(Shop); // Router::layer in axum
//! for (token, status) in [(7, 200), (8, 200), (7, 412)] {
//!     let mut request = Request::put("/stock/42").body(String::new()).unwrap();
//!     fence_http::set(request.headers_mut(), FencingToken::new(token).unwrap());
//!     assert_eq!(shop.call(request).await?.status(), status);
//! }
//! # Ok(()) }
//! ```
//!
//! Any other store is a closure, here SQLite:
//!
//! ```
//! # #[cfg(feature = "fence-rusqlite")] {
//! use std::sync::{Arc, Mutex};
//! use tenure::fence::{self, http::{path, FenceLayer, Shown, Unavailable}};
//!
//! # let connection = rusqlite::Connection::open_in_memory().unwrap();
//! let db = Arc::new(Mutex::new(connection));
//! let store = move |resource: String, shown: Shown| {
//!     let db = db.clone();
//!     async move {
//!         let mut db = db.lock().unwrap();
//!         let admitted = match shown {
//!             Shown::Exclusive(token) => fence::rusqlite::contact(&mut db, &resource, token),
//!             Shown::Shared(token) => fence::rusqlite::contact_shared(&mut db, &resource, token),
//!         };
//!         admitted.map_err(Unavailable::from_refused)
//!     }
//! };
//! let layer = FenceLayer::new(store, path);
//! # }
//! ```

mod layer;
mod path;
mod queue;
mod store;

use ::http::{HeaderMap, HeaderName, HeaderValue};

pub use layer::{FenceLayer, FenceService};
pub use path::path;
pub use store::{Store, Unavailable};

use crate::token::FencingToken;

/// The name of the header.
pub const HEADER: HeaderName = HeaderName::from_static("fencing-token");
/// What follows the token of a reader.
const SHARED: &str = ";shared";

/// Adds the token to a request, in place of any that is there.
///
/// # Examples
///
/// ```
/// use tenure::{fence, FencingToken};
///
/// let mut request = http::Request::new(());
/// fence::http::set(request.headers_mut(), FencingToken::new(7).unwrap());
/// assert_eq!(request.headers()["fencing-token"], "7");
/// ```
pub fn set(headers: &mut HeaderMap, token: FencingToken) {
    headers.insert(HEADER, Shown::Exclusive(token).header());
}

/// Adds the token of a reader to a request, in place of any that is there.
///
/// # Examples
///
/// ```
/// use tenure::{fence, FencingToken};
///
/// let mut request = http::Request::new(());
/// fence::http::set_shared(request.headers_mut(), FencingToken::new(7).unwrap());
/// assert_eq!(request.headers()["fencing-token"], "7;shared");
/// ```
pub fn set_shared(headers: &mut HeaderMap, token: FencingToken) {
    headers.insert(HEADER, Shown::Shared(token).header());
}

/// What a request shows: the token of a writer, or that of a reader.
///
/// # Examples
///
/// ```
/// use tenure::{fence::http::{shown, Shown}, FencingToken};
///
/// let request = http::Request::get("/").header("fencing-token", "42;shared").body(()).unwrap();
/// let token = FencingToken::new(42).unwrap();
/// assert_eq!(shown(request.headers()), Ok(Some(Shown::Shared(token))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// `Fencing-Token: 42`, of a holder that may write.
    Exclusive(FencingToken),
    /// `Fencing-Token: 42;shared`, of a reader of a shared lock.
    Shared(FencingToken),
}

impl Shown {
    /// The token.
    pub fn token(self) -> FencingToken {
        match self {
            Shown::Exclusive(token) | Shown::Shared(token) => token,
        }
    }

    fn header(self) -> HeaderValue {
        match self {
            Shown::Exclusive(token) => HeaderValue::from(token.get()),
            Shown::Shared(token) => HeaderValue::try_from(format!("{token}{SHARED}"))
                .expect("digits and a word are a header"),
        }
    }

    /// A token has one spelling: `+7` and `07` are not tokens.
    fn parse(text: &str) -> Option<Shown> {
        let (number, shown): (_, fn(FencingToken) -> Shown) = match text.strip_suffix(SHARED) {
            Some(number) => (number, Shown::Shared),
            None => (text, Shown::Exclusive),
        };
        let plain = number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
        number.parse().ok().filter(|_| plain).map(shown)
    }
}

/// What a request shows, if it has a token.
///
/// # Errors
///
/// The text of the header, if it is not exactly one token.
///
/// # Examples
///
/// ```
/// use tenure::fence::http::shown;
///
/// let request = http::Request::get("/").header("fencing-token", "seven").body(()).unwrap();
/// assert_eq!(shown(request.headers()).unwrap_err(), "seven");
/// ```
pub fn shown(headers: &HeaderMap) -> Result<Option<Shown>, String> {
    let mut values = headers.get_all(HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
    // Of two tokens it is unknown which was meant.
    if values.next().is_some() {
        return Err(format!("{text}, and another"));
    }
    Shown::parse(&text).map(Some).ok_or(text)
}
