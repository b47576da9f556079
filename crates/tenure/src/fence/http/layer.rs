//! The layer and the service that it makes.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::request::Parts;
use ::http::{HeaderValue, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use super::gate::Gates;
use super::store::Store;
use super::{HEADER, token};
use crate::fence::Refused;

/// Puts a fence before a service. See [the module](super).
///
/// # Examples
///
/// ```
/// use tenure::fence::{http::FenceLayer, Fences};
///
/// // The items of an order share its lock, and so its fence.
/// let layer = FenceLayer::new(Fences::new(10_000)).resource(|request| {
///     let path = request.uri.path();
///     path.split('/').take(3).collect::<Vec<_>>().join("/") // /orders/42/items/7
/// });
/// ```
pub struct FenceLayer<S> {
    rules: Arc<Rules<S>>,
}

struct Rules<S> {
    store: S,
    gates: Arc<Gates>,
    optional: bool,
    resource: Box<dyn Fn(&Parts) -> String + Send + Sync>,
}

impl<S: Store> FenceLayer<S> {
    /// A fence that keeps its tokens there, for resources named by the path of the request.
    pub fn new(store: S) -> FenceLayer<S> {
        let resource = Box::new(|request: &Parts| request.uri.path().to_owned());
        let rules = Rules { store, gates: Arc::default(), optional: false, resource };
        FenceLayer { rules: Arc::new(rules) }
    }

    /// How a resource is named by a request: one name for everything that one lock guards.
    ///
    /// # Panics
    ///
    /// If the layer was cloned or used before.
    #[must_use]
    pub fn resource(self, name: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.change(|rules| rules.resource = Box::new(name))
    }

    /// Lets requests without a token pass: for a service that some use without a lock. A stale
    /// holder is refused as before.
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
/// use tenure::fence::{http::{FenceLayer, FenceService}, Fences};
/// use tower_layer::Layer;
///
/// struct Shop;
/// let shop: FenceService<Fences, Shop> = FenceLayer::new(Fences::new(10_000)).layer(Shop);
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
    B: Send + 'static,
    A: From<String>,
{
    type Response = Response<A>;
    type Error = I::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<A>, I::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone takes the place of the one that was found ready, which goes with the request.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let rules = self.rules.clone();
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let token = match token(&parts.headers) {
                Ok(Some(token)) => token,
                Ok(None) if rules.optional => {
                    return inner.call(Request::from_parts(parts, body)).await;
                }
                Ok(None) => return Ok(missing()),
                Err(found) => return Ok(garbage(&found)),
            };
            let resource = (rules.resource)(&parts);
            let _turn = rules.gates.clone().enter(resource.clone()).await;
            if let Err(refused) = rules.store.admit(&resource, token).await {
                return Ok(answer(&refused));
            }
            parts.extensions.insert(token);
            inner.call(Request::from_parts(parts, body)).await
        })
    }
}

fn missing<A: From<String>>() -> Response<A> {
    text(StatusCode::PRECONDITION_REQUIRED, format!("the header {HEADER} is missing"))
}

fn garbage<A: From<String>>(found: &str) -> Response<A> {
    let found = found.escape_debug();
    text(StatusCode::BAD_REQUEST, format!("the header {HEADER} has no token: `{found}`"))
}

fn answer<A: From<String>, E: fmt::Display>(refused: &Refused<E>) -> Response<A> {
    match refused {
        Refused::Stale(stale) => {
            let mut response = text(StatusCode::PRECONDITION_FAILED, stale.to_string());
            response.headers_mut().insert(HEADER, HeaderValue::from(stale.seen().get()));
            response
        }
        // What exactly failed is for the log of the store, not for strangers.
        Refused::Garbage(_) | Refused::Store(_) => {
            text(StatusCode::SERVICE_UNAVAILABLE, "the fence could not be asked".to_owned())
        }
    }
}

fn text<A: From<String>>(status: StatusCode, text: String) -> Response<A> {
    let mut response = Response::new(A::from(text));
    *response.status_mut() = status;
    response
}
