//! The routes and the leader, with locks in memory and paused time: seconds pass in no time, and
//! what takes 200 ms takes exactly that.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use serde_json::Value;
use tenure::FencingToken;
use tokio::time::Instant;
use tower_service::Service;

use crate::leader::{EVERY, Stocktaking, lead};
use crate::stock::{MemoryStock, Stock};
use crate::{Shop, api};

async fn shop() -> Shop {
    let locks = tenure::connect("memory:?owner=web-3").await.unwrap();
    let stock = Stock::Memory(Arc::new(MemoryStock::new(&[("42", 100), ("43", 1)])));
    Shop { locks, stock, stocktaking: Stocktaking::default() }
}

async fn sell(routes: &Router, item: &str) -> (StatusCode, Value) {
    let request = Request::post(format!("/items/{item}/sell")).body(Body::empty()).unwrap();
    let response = routes.clone().call(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), 10_000).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn items_are_sold_until_there_are_none() {
    let routes = api::routes(shop().await);
    let (status, sold) = sell(&routes, "43").await;
    assert_eq!((status, &sold["left"]), (StatusCode::OK, &0.into()));
    assert_eq!(sell(&routes, "43").await.0, StatusCode::GONE);
    assert_eq!(sell(&routes, "44").await.0, StatusCode::NOT_FOUND);
    assert_eq!(sell(&routes, "%0A").await.0, StatusCode::BAD_REQUEST, "no key for a lock");
}

#[tokio::test(start_paused = true)]
async fn a_busy_item_is_a_conflict_that_names_its_holder() {
    let shop = shop().await;
    let routes = api::routes(shop.clone());
    let guard = shop.locks.lock("stock/42").note("stocktaking").acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let start = Instant::now();
    let (status, busy) = sell(&routes, "42").await;
    assert_eq!((status, start.elapsed()), (StatusCode::CONFLICT, Duration::from_millis(200)));
    assert_eq!(busy["key"], "stock/42");
    assert_eq!(
        (&busy["holder"]["owner"], &busy["holder"]["note"]),
        (&"web-3".into(), &"stocktaking".into())
    );
    assert!(busy["holder"]["held_for_ms"].as_u64().unwrap() >= 3_600_000, "{busy}");
    guard.release().await.unwrap();
    assert_eq!(sell(&routes, "42").await.0, StatusCode::OK);
}

/// Its lock was lost while it was paused, and the next holder has been here since.
#[tokio::test(start_paused = true)]
async fn a_stale_holder_sells_nothing() {
    let shop = shop().await;
    let newer = FencingToken::new(u64::from(u32::MAX)).unwrap();
    assert_eq!(shop.stock.sell("42", newer).await.unwrap(), 99);
    let routes = api::routes(shop.clone());
    let (status, body) = sell(&routes, "42").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    assert_eq!(shop.stock.pieces().await.unwrap(), 100, "99 and 1");
}

#[tokio::test(start_paused = true)]
async fn a_shop_that_shuts_down_sells_nothing() {
    let shop = shop().await;
    let routes = api::routes(shop.clone());
    shop.locks.shutdown(Duration::ZERO).await.unwrap();
    assert_eq!(sell(&routes, "42").await.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn the_leader_takes_stock_and_ends_with_the_shop() {
    let shop = shop().await;
    let leader = tokio::spawn(lead(shop.clone()));
    // It waits for the lock, and never leads.
    let second = tokio::spawn(lead(Shop { stocktaking: Stocktaking::default(), ..shop.clone() }));
    tokio::time::sleep(EVERY / 2).await;
    let taken = shop.stocktaking.last().unwrap();
    assert_eq!(taken.pieces, 101);
    let token = FencingToken::new(7).unwrap();
    shop.stock.sell("42", token).await.unwrap();
    tokio::time::sleep(EVERY).await;
    assert_eq!(shop.stocktaking.last().unwrap().pieces, 100);
    let start = Instant::now();
    shop.locks.shutdown(Duration::from_secs(600)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO, "the leader did not hear the shutdown");
    leader.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(shop.stocktaking.last(), None);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_evicted_leads_again() {
    let shop = shop().await;
    let leader = tokio::spawn(lead(shop.clone()));
    tokio::time::sleep(EVERY / 2).await;
    let first = shop.stocktaking.last().unwrap().token;
    assert!(shop.locks.lock("leader").evict(first).await.unwrap());
    tokio::time::sleep(EVERY).await;
    assert!(shop.stocktaking.last().unwrap().token > first);
    shop.locks.shutdown(Duration::from_secs(600)).await.unwrap();
    leader.await.unwrap().unwrap();
}
