//! The HTTP layer over a store that several services share, and its responses when it cannot admit.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context as TaskContext, Poll};

use anyhow::{Result, ensure};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, poll};
use http::{Request, Response, StatusCode};
use tenure::FencingToken;
use tenure::fence;
use tenure::fence::http::{FenceLayer, FenceService, HEADER, Shown, Store, Unavailable, path};
use tenure::fence::{Fences, Refused};
use tenure_conformance::context::{SOON, soon, until};
use tokio::sync::Notify;
use tower_layer::Layer;
use tower_service::Service;

use crate::registers::Numbers;
use crate::{cases, token, unique};

cases! {
    services_that_share_a_store_refuse_what_any_of_them_has_seen on &["redis"];
    an_admitted_request_is_done_before_one_with_a_higher_token_begins on &["http"];
    a_layer_that_cannot_admit_says_why_and_does_not_call_the_service on &["http"];
    an_unauthorized_client_leaves_no_token_behind on &["http"];
    requests_to_a_hung_resource_are_refused on &["http"];
}

/// Writes a number; returns the status and the header of the response.
async fn put<S: Store>(
    service: &mut FenceService<S, Numbers>,
    path: &str,
    token: Option<FencingToken>,
) -> Result<(StatusCode, Option<String>)> {
    let mut request = Request::put(path).body("1".to_owned())?;
    if let Some(token) = token {
        fence::http::set(request.headers_mut(), token);
    }
    let Ok(response) = service.call(request).await;
    let seen = response.headers().get(HEADER).map(|seen| seen.to_str().map(str::to_owned));
    Ok((response.status(), seen.transpose()?))
}

async fn services_that_share_a_store_refuse_what_any_of_them_has_seen(url: String) -> Result<()> {
    let db = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let service = || {
        let db = db.clone();
        let store = move |resource: String, shown: Shown| {
            let mut db = db.clone();
            async move {
                let admitted = match shown {
                    Shown::Exclusive(token) => fence::redis::admit(&mut db, &resource, token).await,
                    Shown::Shared(token) => {
                        fence::redis::admit_shared(&mut db, &resource, token).await
                    }
                };
                admitted.map_err(Unavailable::from_refused)
            }
        };
        FenceLayer::new(store, path).layer(Numbers::default())
    };
    let mut one = service();
    let mut other = service();
    let path = format!("/{}", unique("shared"));
    ensure!(put(&mut one, &path, Some(token(7))).await?.0 == 200);
    ensure!(put(&mut other, &path, Some(token(8))).await?.0 == 200);
    let refused = put(&mut one, &path, Some(token(7))).await?;
    ensure!(refused == (StatusCode::PRECONDITION_FAILED, Some("8".to_owned())), "{refused:?}");
    ensure!(put(&mut one, &path, Some(token(8))).await?.0 == 200);
    Ok(())
}

async fn a_layer_that_cannot_admit_says_why_and_does_not_call_the_service(_: String) -> Result<()> {
    let numbers = Numbers::default();
    let broken =
        |_: String, _: Shown| async { Err(Refused::Store(Unavailable::new("out of order"))) };
    let mut service = FenceLayer::new(broken, path).layer(numbers.clone());
    ensure!(put(&mut service, "/a", Some(token(7))).await?.0 == 503);
    let mut service = FenceLayer::new(Fences::new(1), path).layer(numbers.clone());
    ensure!(put(&mut service, "/a", None).await?.0 == 428);
    ensure!(numbers.is_empty(), "the service was called");
    ensure!(put(&mut service, "/a", Some(token(7))).await?.0 == 200);
    // There is room for one resource, and to forget it would admit a stale holder.
    ensure!(put(&mut service, "/b", Some(token(7))).await?.0 == 503);
    ensure!(put(&mut service, "/a", Some(token(6))).await?.0 == 412);
    Ok(())
}

/// A service that is told when it may respond.
#[derive(Clone, Default)]
struct Slow {
    begun: Arc<AtomicU32>,
    permission: Arc<Notify>,
}

impl Slow {
    /// Returns when so many requests have come to it, and wait for their response.
    async fn until_begun(&self, number: u32) -> Result<()> {
        let begun = || async { Ok((self.begun.load(Ordering::SeqCst) == number).then_some(())) };
        until(SOON, "a request at the service", begun).await
    }
}

impl Service<Request<String>> for Slow {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let Slow { begun, permission } = self.clone();
        async move {
            let permitted = permission.notified();
            begun.fetch_add(1, Ordering::SeqCst);
            permitted.await;
            Ok(Response::new(request.into_body()))
        }
        .boxed()
    }
}

async fn an_admitted_request_is_done_before_one_with_a_higher_token_begins(
    _: String,
) -> Result<()> {
    let slow = Slow::default();
    let mut service = FenceLayer::new(Fences::new(10), path).layer(slow.clone());
    let mut send = |path: &str, number: u64| -> Result<_> {
        let mut request = Request::put(path).body(String::new())?;
        fence::http::set(request.headers_mut(), token(number));
        Ok(service.call(request))
    };
    let (mut old, mut new, mut other) = (send("/a", 7)?, send("/a", 8)?, send("/b", 1)?);
    ensure!(poll!(&mut old).is_pending());
    slow.until_begun(1).await?;
    ensure!(poll!(&mut new).is_pending() && poll!(&mut other).is_pending());
    // Another resource need not wait.
    slow.until_begun(2).await?;
    ensure!(poll!(&mut new).is_pending());
    ensure!(slow.begun.load(Ordering::SeqCst) == 2, "a newer request began");
    slow.permission.notify_waiters();
    ensure!(old.await?.status() == 200 && other.await?.status() == 200);
    ensure!(poll!(&mut new).is_pending());
    slow.until_begun(3).await?;
    slow.permission.notify_waiters();
    ensure!(new.await?.status() == 200);
    ensure!(send("/a", 7)?.await?.status() == 412);
    Ok(())
}

async fn an_unauthorized_client_leaves_no_token_behind(_: String) -> Result<()> {
    let numbers = Numbers::default();
    let layer = FenceLayer::new(Fences::new(1), path).check(|request| {
        let known = request.headers.contains_key(http::header::AUTHORIZATION);
        if known { Ok(()) } else { Err(StatusCode::UNAUTHORIZED) }
    });
    let mut service = layer.layer(numbers.clone());
    for resource in ["/a", "/b"] {
        let status = put(&mut service, resource, Some(token(i64::MAX as u64))).await?.0;
        ensure!(status == StatusCode::UNAUTHORIZED, "{status}");
    }
    ensure!(numbers.is_empty(), "the service was called");
    let mut request = Request::put("/a").header("authorization", "me").body("1".to_owned())?;
    fence::http::set(request.headers_mut(), token(7));
    let Ok(response) = service.call(request).await;
    ensure!(response.status() == 200, "the unauthorized client closed the fence: {response:?}");
    Ok(())
}

async fn requests_to_a_hung_resource_are_refused(_: String) -> Result<()> {
    let slow = Slow::default();
    let mut service = FenceLayer::new(Fences::new(10), path).queue(2).layer(slow.clone());
    let mut send = |path: &str| -> Result<_> {
        let mut request = Request::put(path).body(String::new())?;
        fence::http::set(request.headers_mut(), token(7));
        Ok(service.call(request))
    };
    let (mut first, mut second) = (send("/a")?, send("/a")?);
    ensure!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
    slow.until_begun(1).await?;
    ensure!(send("/a")?.await?.status() == 503, "a third request was queued");
    // The client of the first has disconnected, and its work is not done.
    drop(first);
    ensure!(send("/a")?.await?.status() == 503, "the cancelled request is not counted");
    drop(second);
    // In a task of its own, so that it is polled when its turn comes.
    let third = tokio::spawn(send("/a")?);
    slow.permission.notify_one();
    slow.until_begun(2).await?;
    slow.permission.notify_one();
    ensure!(soon("a response", third).await???.status() == 200);
    Ok(())
}
