//! Holders of what is not in a SQL database: in a service, in this process, or elsewhere.

use std::convert::Infallible;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, LocalBoxFuture};
use http::{Method, Request, Response};
use tenure::FencingToken;
use tenure::fence::http::{FenceLayer, FenceService, path, set};
use tenure::fence::{Fenced, Fences};
use tower_layer::Layer;
use tower_service::Service;

use super::grounds::Way;
use super::play::{Ground, Holder, Outcome, Steps};
use crate::grants::{self, Resource};

/// A key of Redis, or one on the server of the lock itself.
pub(super) struct Plain {
    url: String,
    name: String,
    way: Way,
}

impl Plain {
    pub(super) fn new(url: &str, name: &str, way: Way) -> Plain {
        Plain { url: url.to_owned(), name: name.to_owned(), way }
    }
}

impl Ground for Plain {
    fn open(&self) -> LocalBoxFuture<'_, Result<Box<dyn Holder>>> {
        async move {
            let resource = grants::open(&self.url, &self.name).await?;
            let holder: Box<dyn Holder> = Box::new(PlainHolder { resource, way: self.way });
            Ok(holder)
        }
        .boxed_local()
    }
}

struct PlainHolder {
    resource: Box<dyn Resource>,
    way: Way,
}

impl Holder for PlainHolder {
    fn change<'a>(
        &'a mut self,
        token: FencingToken,
        by: i64,
        steps: &'a Steps,
    ) -> LocalBoxFuture<'a, Result<Outcome>> {
        async move {
            steps.rest().await;
            let shown = Some(token).filter(|_| self.way == Way::FirstContact);
            let Some(number) = self.resource.read(shown).await? else {
                return Ok(Outcome::Refused);
            };
            steps.rest().await;
            let written = self.resource.write(number + by, Some(token)).await?;
            Ok(if written { Outcome::Wrote } else { Outcome::Refused })
        }
        .boxed_local()
    }

    fn settle(&mut self, token: FencingToken) -> LocalBoxFuture<'_, Result<i64>> {
        async move { self.resource.read(Some(token)).await?.context("the highest token") }
            .boxed_local()
    }
}

/// An HTTP service with the layer before it. A request is broken off as a server does it whose
/// client has gone: its future is dropped.
pub(super) struct Web {
    service: FenceService<Fences, Slow>,
    numbers: Arc<Number>,
    way: Way,
}

impl Web {
    pub(super) fn new(way: Way) -> Web {
        let numbers = Slow::default();
        let layer = FenceLayer::new(Fences::new(10), path).optional();
        Web { service: layer.layer(numbers.clone()), numbers: numbers.0, way }
    }
}

/// A number behind a service whose work goes on when nobody waits for it, as that of a database
/// does. Its first write is slow: it lets the next one go by, if that one can.
#[derive(Clone, Default)]
struct Slow(Arc<Number>);

#[derive(Default)]
struct Number {
    state: Mutex<State>,
    written: Condvar,
}

#[derive(Default)]
struct State {
    number: i64,
    begun: u32,
    done: u32,
}

impl Number {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, number: i64) {
        let mut state = self.state();
        if state.begun == 0 {
            state.begun += 1;
            let others = |state: &mut State| state.done == 0;
            let waited = self.written.wait_timeout_while(state, SLOW, others);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        } else {
            state.begun += 1;
        }
        state.number = number;
        state.done += 1;
        self.written.notify_all();
    }

    /// When nothing is under way.
    fn settled(&self) -> i64 {
        let under_way = |state: &mut State| state.done < state.begun;
        let state = self.written.wait_while(self.state(), under_way);
        state.unwrap_or_else(PoisonError::into_inner).number
    }
}

/// How long a slow write takes.
const SLOW: Duration = Duration::from_millis(30);

impl Service<Request<String>> for Slow {
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

impl Ground for Web {
    fn open(&self) -> LocalBoxFuture<'_, Result<Box<dyn Holder>>> {
        let (service, numbers) = (self.service.clone(), self.numbers.clone());
        let holder = WebHolder { service, numbers, way: self.way };
        async move { Ok(Box::new(holder) as Box<dyn Holder>) }.boxed_local()
    }
}

struct WebHolder {
    service: FenceService<Fences, Slow>,
    numbers: Arc<Number>,
    way: Way,
}

impl WebHolder {
    /// The body of the answer, if the token was admitted.
    async fn ask(
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

impl Holder for WebHolder {
    fn change<'a>(
        &'a mut self,
        token: FencingToken,
        by: i64,
        steps: &'a Steps,
    ) -> LocalBoxFuture<'a, Result<Outcome>> {
        async move {
            steps.rest().await;
            let shown = Some(token).filter(|_| self.way == Way::FirstContact);
            let Some(text) = self.ask(Method::GET, String::new(), shown).await? else {
                return Ok(Outcome::Refused);
            };
            let number: i64 = text.parse()?;
            steps.rest().await;
            let answer = self.ask(Method::PUT, (number + by).to_string(), Some(token)).await?;
            Ok(answer.map_or(Outcome::Refused, |_| Outcome::Wrote))
        }
        .boxed_local()
    }

    fn settle(&mut self, token: FencingToken) -> LocalBoxFuture<'_, Result<i64>> {
        async move {
            let text = self.ask(Method::GET, String::new(), Some(token)).await?;
            text.context("the highest token")?;
            Ok(self.numbers.settled())
        }
        .boxed_local()
    }
}

/// A number of this process.
#[derive(Clone, Default)]
pub(super) struct Memory(Arc<Fenced<i64>>);

impl Ground for Memory {
    fn open(&self) -> LocalBoxFuture<'_, Result<Box<dyn Holder>>> {
        let holder = self.clone();
        async move { Ok(Box::new(holder) as Box<dyn Holder>) }.boxed_local()
    }
}

impl Holder for Memory {
    fn change<'a>(
        &'a mut self,
        token: FencingToken,
        by: i64,
        steps: &'a Steps,
    ) -> LocalBoxFuture<'a, Result<Outcome>> {
        async move {
            steps.rest().await;
            let Ok(guard) = self.0.admit(token) else { return Ok(Outcome::Refused) };
            if steps.breaks().await {
                return Ok(Outcome::Refused);
            }
            let number = *guard;
            drop(guard);
            steps.rest().await;
            let Ok(mut guard) = self.0.admit(token) else { return Ok(Outcome::Refused) };
            if steps.breaks().await {
                return Ok(Outcome::Refused);
            }
            *guard = number + by;
            Ok(Outcome::Wrote)
        }
        .boxed_local()
    }

    fn settle(&mut self, token: FencingToken) -> LocalBoxFuture<'_, Result<i64>> {
        async move { Ok(*self.0.admit(token)?) }.boxed_local()
    }
}
