//! Holders of a number that is not in a SQL database: at a server, behind an HTTP service, or in
//! this process.

use std::convert::Infallible;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response};
use tenure::FencingToken;
use tenure::fence::http::{FenceLayer, FenceService, path, set};
use tenure::fence::{Fenced, Fences};
use tower_layer::Layer;
use tower_service::Service;

use super::schedule::{Holder, Outcome, SharedResource, Steps};
use super::stores::Procedure;
use crate::grants::{self, Resource};

/// How long a slow write takes.
const SLOW: Duration = Duration::from_millis(30);

/// A holder whose read and write are one request each.
struct RequestHolder {
    resource: Box<dyn Resource>,
    procedure: Procedure,
    /// The number behind a service whose work may still go on after its response.
    slow: Option<Arc<SlowNumber>>,
}

#[async_trait(?Send)]
impl Holder for RequestHolder {
    async fn add(&mut self, token: FencingToken, by: i64, steps: &Steps) -> Result<Outcome> {
        steps.idle().await;
        let shown = Some(token).filter(|_| self.procedure == Procedure::FirstContact);
        let Some(number) = self.resource.read(shown).await? else {
            return Ok(Outcome::Refused);
        };
        steps.idle().await;
        let written = self.resource.write(number + by, Some(token)).await?;
        Ok(if written { Outcome::Wrote } else { Outcome::Refused })
    }

    async fn settle(&mut self, token: FencingToken) -> Result<i64> {
        let read = self.resource.read(Some(token)).await?.context("the highest token")?;
        Ok(self.slow.as_ref().map_or(read, |number| number.settled()))
    }
}

/// A key of Redis, or one at the server of the lock itself.
pub(super) struct ServerKey {
    url: String,
    name: String,
    procedure: Procedure,
}

impl ServerKey {
    pub(super) fn new(url: &str, name: &str, procedure: Procedure) -> ServerKey {
        ServerKey { url: url.to_owned(), name: name.to_owned(), procedure }
    }
}

#[async_trait(?Send)]
impl SharedResource for ServerKey {
    async fn holder(&self) -> Result<Box<dyn Holder>> {
        let resource = grants::open(&self.url, &self.name).await?;
        Ok(Box::new(RequestHolder { resource, procedure: self.procedure, slow: None }))
    }
}

/// An HTTP service with the layer in front of it. A request is interrupted as a server does it
/// whose client has disconnected: its future is dropped.
pub(super) struct Web {
    service: FenceService<Fences, SlowService>,
    number: Arc<SlowNumber>,
    procedure: Procedure,
}

impl Web {
    pub(super) fn new(procedure: Procedure) -> Web {
        let service = SlowService::default();
        let number = service.0.clone();
        let layer = FenceLayer::new(Fences::new(10), path).optional();
        Web { service: layer.layer(service), number, procedure }
    }
}

#[async_trait(?Send)]
impl SharedResource for Web {
    async fn holder(&self) -> Result<Box<dyn Holder>> {
        let resource = Box::new(WebClient { service: self.service.clone() });
        let slow = Some(self.number.clone());
        Ok(Box::new(RequestHolder { resource, procedure: self.procedure, slow }))
    }
}

struct WebClient {
    service: FenceService<Fences, SlowService>,
}

impl WebClient {
    /// The body of the response, if the token was admitted.
    async fn request(
        &mut self,
        method: Method,
        body: String,
        token: Option<FencingToken>,
    ) -> Result<Option<String>> {
        let mut request = Request::builder().method(method).uri("/stock/42").body(body)?;
        if let Some(token) = token {
            set(request.headers_mut(), token);
        }
        let Ok(response) = self.service.call(request).await;
        ensure!([200, 412].contains(&response.status().as_u16()), "{response:?}");
        Ok((response.status() == 200).then(|| response.into_body()))
    }
}

#[async_trait]
impl Resource for WebClient {
    async fn read(&mut self, token: Option<FencingToken>) -> Result<Option<i64>> {
        let text = self.request(Method::GET, String::new(), token).await?;
        Ok(text.map(|text| text.parse()).transpose()?)
    }

    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> Result<bool> {
        let text = self.request(Method::PUT, number.to_string(), token).await?;
        Ok(text.is_some())
    }
}

/// A service whose work goes on when no client waits for it, as that of a database does.
#[derive(Clone, Default)]
struct SlowService(Arc<SlowNumber>);

impl Service<Request<String>> for SlowService {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let number = self.0.clone();
        let work = tokio::task::spawn_blocking(move || {
            if let (&Method::PUT, Ok(new)) = (request.method(), request.body().parse()) {
                number.write(new);
            }
            number.state().number.to_string()
        });
        async move { Ok(Response::new(work.await.unwrap_or_default())) }.boxed()
    }
}

/// A number whose first write is slow: it lets the next one overtake it, if that one can.
#[derive(Default)]
struct SlowNumber {
    state: Mutex<NumberState>,
    written: Condvar,
}

#[derive(Default)]
struct NumberState {
    number: i64,
    begun: u32,
    done: u32,
}

impl SlowNumber {
    fn state(&self) -> MutexGuard<'_, NumberState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, number: i64) {
        let mut state = self.state();
        state.begun += 1;
        if state.begun == 1 {
            let is_first = |state: &mut NumberState| state.done == 0;
            let waited = self.written.wait_timeout_while(state, SLOW, is_first);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.number = number;
        state.done += 1;
        self.written.notify_all();
    }

    /// The number when no write is under way.
    fn settled(&self) -> i64 {
        let under_way = |state: &mut NumberState| state.done < state.begun;
        let state = self.written.wait_while(self.state(), under_way);
        state.unwrap_or_else(PoisonError::into_inner).number
    }
}

/// A number of this process.
#[derive(Clone, Default)]
pub(super) struct Memory(Arc<Fenced<i64>>);

#[async_trait(?Send)]
impl SharedResource for Memory {
    async fn holder(&self) -> Result<Box<dyn Holder>> {
        Ok(Box::new(self.clone()))
    }
}

#[async_trait(?Send)]
impl Holder for Memory {
    async fn add(&mut self, token: FencingToken, by: i64, steps: &Steps) -> Result<Outcome> {
        steps.idle().await;
        let Ok(guard) = self.0.admit(token) else { return Ok(Outcome::Refused) };
        if steps.is_rolled_back().await {
            return Ok(Outcome::Refused);
        }
        let number = *guard;
        drop(guard);
        steps.idle().await;
        let Ok(mut guard) = self.0.admit(token) else { return Ok(Outcome::Refused) };
        if steps.is_rolled_back().await {
            return Ok(Outcome::Refused);
        }
        *guard = number + by;
        Ok(Outcome::Wrote)
    }

    async fn settle(&mut self, token: FencingToken) -> Result<i64> {
        Ok(*self.0.admit(token)?)
    }
}
