//! The HTTP layer over a store that several services share, and what it answers when it cannot
//! admit.

use anyhow::{Result, ensure};
use http::{Request, StatusCode};
use tenure::FencingToken;
use tenure::fence;
use tenure::fence::http::{FenceLayer, FenceService, HEADER, Store, Unavailable};
use tenure::fence::{Fences, Refused};
use tower_layer::Layer;
use tower_service::Service;

use crate::registers::Numbers;
use crate::{cases, token, unique};

cases! {
    services_that_share_a_store_refuse_what_any_of_them_has_seen on &["redis"];
    a_layer_that_cannot_admit_says_why_and_does_not_ask_the_service on &["http"];
}

/// Writes this number; returns the status and the header of the answer.
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
        FenceLayer::new(move |resource: String, token: FencingToken| {
            let mut db = db.clone();
            async move {
                let admitted = fence::redis::admit(&mut db, &resource, token).await;
                admitted.map_err(Unavailable::from_refused)
            }
        })
        .layer(Numbers::default())
    };
    let (mut one, mut other, path) = (service(), service(), format!("/{}", unique("shared")));
    ensure!(put(&mut one, &path, Some(token(7))).await?.0 == 200);
    ensure!(put(&mut other, &path, Some(token(8))).await?.0 == 200);
    let refused = put(&mut one, &path, Some(token(7))).await?;
    ensure!(refused == (StatusCode::PRECONDITION_FAILED, Some("8".to_owned())), "{refused:?}");
    ensure!(put(&mut one, &path, Some(token(8))).await?.0 == 200);
    Ok(())
}

async fn a_layer_that_cannot_admit_says_why_and_does_not_ask_the_service(_: String) -> Result<()> {
    let numbers = Numbers::default();
    let broken = |_: String, _: FencingToken| async {
        Err(Refused::Store(Unavailable::new("out of order")))
    };
    let mut service = FenceLayer::new(broken).layer(numbers.clone());
    ensure!(put(&mut service, "/a", Some(token(7))).await?.0 == 503);
    let mut service = FenceLayer::new(Fences::new(1)).layer(numbers.clone());
    ensure!(put(&mut service, "/a", None).await?.0 == 428);
    ensure!(numbers.is_empty(), "the service was asked");
    ensure!(put(&mut service, "/a", Some(token(7))).await?.0 == 200);
    // There is room for one resource, and to forget it would let a stale holder in.
    ensure!(put(&mut service, "/b", Some(token(7))).await?.0 == 503);
    ensure!(put(&mut service, "/a", Some(token(6))).await?.0 == 412);
    Ok(())
}
