//! The layer and the service that it makes.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::request::Parts;
use ::http::{Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use super::queue::{QueueTurn, ResourceQueues};
use super::store::Store;
use super::{HEADER, Shown, shown};
use crate::fence::Refused;

/// More requests than come to one resource by chance, and few enough to notice one that hangs.
const DEFAULT_QUEUE: usize = 64;

/// Puts a fence in front of a service. See [the module](super).
///
/// # Examples
///
/// ```
/// use http::{header::AUTHORIZATION, StatusCode};
/// use tenure::fence::{http::{path, FenceLayer}, Fences};
///
/// // The items of an order share its lock, and so its fence: /orders/42/items/7
/// let order = |request: &http::request::Parts| {
///     path(request).split('/').take(3).collect::<Vec<_>>().join("/")
/// };
/// let layer = FenceLayer::new(Fences::new(10_000), order).check(|request| {
///     // The token of an unauthorized client is not remembered.
///     let known = request.headers.contains_key(AUTHORIZATION);
///     if known { Ok(()) } else { Err(StatusCode::UNAUTHORIZED) }
/// });
/// ```
pub struct FenceLayer<S> {
    rules: Arc<Rules<S>>,
}

struct Rules<S> {
    store: S,
    queues: Arc<ResourceQueues>,
    optional: bool,
    /// How many requests the queue of a resource may have.
    limit: usize,
    resource: Box<dyn Fn(&Parts) -> String + Send + Sync>,
    check: Check,
}

type Check = Box<dyn Fn(&Parts) -> Result<(), StatusCode> + Send + Sync>;

impl<S: Store> FenceLayer<S> {
    /// A fence that keeps its tokens in this store, for resources that this function names: one
    /// name for everything that one lock guards, however it is requested. [`path`](super::path) is
    /// one.
    pub fn new(
        store: S,
        resource: impl Fn(&Parts) -> String + Send + Sync + 'static,
    ) -> FenceLayer<S> {
        FenceLayer {
            rules: Arc::new(Rules {
                store,
                queues: Arc::default(),
                optional: false,
                limit: DEFAULT_QUEUE,
                resource: Box::new(resource),
                check: Box::new(|_| Ok(())),
            }),
        }
    }

    /// Refuses a request with a token before anything of it is remembered, with this status. For
    /// what the request itself says: whether its client is authorized, and whether there is such a
    /// resource.
    ///
    /// # Panics
    ///
    /// If the layer was cloned or used before.
    #[must_use]
    pub fn check(
        self,
        check: impl Fn(&Parts) -> Result<(), StatusCode> + Send + Sync + 'static,
    ) -> Self {
        self.change(|rules| rules.check = Box::new(check))
    }

    /// How many requests for one resource may be in its queue, including the one that the service
    /// works on; 64 by default. The response to more is 503.
    ///
    /// # Panics
    ///
    /// If the layer was cloned or used before.
    #[must_use]
    pub fn queue(self, limit: usize) -> Self {
        self.change(|rules| rules.limit = limit)
    }

    /// Lets requests without a token pass: for a service that some clients use without a lock. A
    /// stale holder is refused as before.
    ///
    /// # Panics
    ///
    /// If the layer was cloned or used before.
    #[must_use]
    pub fn optional(self) -> Self {
        self.change(|rules| rules.optional = true)
    }

    fn change(mut self, change: impl FnOnce(&mut Rules<S>)) -> Self {
        change(Arc::get_mut(&mut self.rules).expect("a layer is set up before it is used"));
        self
    }
}

impl<S> Clone for FenceLayer<S> {
    fn clone(&self) -> Self {
        FenceLayer { rules: self.rules.clone() }
    }
}

impl<S> fmt::Debug for FenceLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer").field("optional", &self.rules.optional).finish_non_exhaustive()
    }
}

impl<S, I> Layer<I> for FenceLayer<S> {
    type Service = FenceService<S, I>;

    fn layer(&self, inner: I) -> Self::Service {
        FenceService { rules: self.rules.clone(), inner }
    }
}

/// A service behind a fence, made by [`FenceLayer`].
///
/// # Examples
///
/// ```
/// use tenure::fence::{http::{path, FenceLayer, FenceService}, Fences};
/// use tower_layer::Layer;
///
/// struct Shop;
/// let layer = FenceLayer::new(Fences::new(10_000), path);
/// let shop: FenceService<Fences, Shop> = layer.layer(Shop);
/// ```
pub struct FenceService<S, I> {
    rules: Arc<Rules<S>>,
    inner: I,
}

impl<S, I: Clone> Clone for FenceService<S, I> {
    fn clone(&self) -> Self {
        FenceService { rules: self.rules.clone(), inner: self.inner.clone() }
    }
}

impl<S, I: fmt::Debug> fmt::Debug for FenceService<S, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, I, B, A> Service<Request<B>> for FenceService<S, I>
where
    S: Store,
    I: Service<Request<B>, Response = Response<A>> + Clone + Send + 'static,
    I::Future: Send,
    I::Error: Send,
    B: Send + 'static,
    A: From<String> + Send + 'static,
{
    type Response = Response<A>;
    type Error = I::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<A>, I::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was found ready goes with the request; its clone stays here.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let rules = self.rules.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let shown = match shown(&parts.headers) {
                Ok(Some(shown)) => shown,
                Ok(None) if rules.optional => {
                    return inner.call(Request::from_parts(parts, body)).await;
                }
                Ok(None) => return Ok(missing()),
                Err(found) => return Ok(garbage(&found)),
            };
            if let Err(status) = (rules.check)(&parts) {
                return Ok(text(status, "refused before the fence".to_owned()));
            }
            let resource = (rules.resource)(&parts);
            let turn = rules.queues.clone().enter(resource, rules.limit).await;
            let Some(turn) = turn else { return Ok(queue_is_full()) };
            finish(rules.pass(inner, Request::from_parts(parts, body), shown, turn)).await
        })
    }
}

impl<S: Store> Rules<S> {
    /// Admits the token and calls the service; the turn lasts until that is done.
    async fn pass<I, B, A>(
        self: Arc<Self>,
        mut inner: I,
        request: Request<B>,
        shown: Shown,
        turn: QueueTurn,
    ) -> Result<Response<A>, I::Error>
    where
        I: Service<Request<B>, Response = Response<A>>,
        A: From<String>,
    {
        let mut request = request;
        if let Err(refused) = self.store.admit(turn.resource(), shown).await {
            return Ok(refusal(&refused));
        }
        let extensions = request.extensions_mut();
        extensions.insert(shown);
        // Not that of a reader: a service that only knows tokens would take it for a writer's.
        if let Shown::Exclusive(token) = shown {
            extensions.insert(token);
        }
        inner.call(request).await
    }
}

/// Runs the work in a task of its own. A caller that drops this future loses the response, but does
/// not stop the work: the turn must not pass to the next request while a part of the work, such as
/// a statement at a database, goes on.
async fn finish<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and this future with it.
            Err(_) => std::future::pending().await,
        },
    }
}

fn queue_is_full<A: From<String>>() -> Response<A> {
    text(StatusCode::SERVICE_UNAVAILABLE, "too many wait for this resource".to_owned())
}

fn missing<A: From<String>>() -> Response<A> {
    text(StatusCode::PRECONDITION_REQUIRED, format!("the header {HEADER} is missing"))
}

fn garbage<A: From<String>>(found: &str) -> Response<A> {
    let found = found.escape_debug();
    text(StatusCode::BAD_REQUEST, format!("the header {HEADER} has no token: `{found}`"))
}

fn refusal<A: From<String>, E: fmt::Display>(refused: &Refused<E>) -> Response<A> {
    match refused {
        Refused::Stale(stale) => {
            let mut response = text(StatusCode::PRECONDITION_FAILED, stale.to_string());
            let seen = if stale.is_by_reader() { Shown::Shared } else { Shown::Exclusive };
            response.headers_mut().insert(HEADER, seen(stale.seen()).header());
            response
        }
        // What exactly failed is for the log of the store, not for every client.
        Refused::Garbage(_) | Refused::Store(_) => {
            text(StatusCode::SERVICE_UNAVAILABLE, "the fence could not be checked".to_owned())
        }
    }
}

fn text<A: From<String>>(status: StatusCode, text: String) -> Response<A> {
    let mut response = Response::new(A::from(text));
    *response.status_mut() = status;
    response
}
