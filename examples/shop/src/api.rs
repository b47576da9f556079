//! The routes.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use tenure::FencingToken;

use crate::Shop;
use crate::error::ApiError;
use crate::leader::Taken;

/// How long a request waits for a busy item. Longer, and customers would see the queue.
const PATIENCE: Duration = Duration::from_millis(200);

pub(crate) fn routes(shop: Shop) -> Router {
    Router::new()
        .route("/items/{item}/sell", post(sell))
        .route("/stocktaking", get(stocktaking))
        .with_state(shop)
}

/// One piece was sold.
#[derive(Serialize)]
struct Sold {
    item: String,
    left: i64,
    token: FencingToken,
}

/// Sells one piece: 200, 409 with the holder if the item is busy, 410 if it is sold out.
async fn sell(State(shop): State<Shop>, Path(item): Path<String>) -> Result<Json<Sold>, ApiError> {
    let lock = shop.locks.lock(format!("stock/{item}")).note("a sale");
    let guard = lock.acquire_within(PATIENCE).await?.granted()?; // busy: 409
    let token = guard.token();
    // The first `?` is the lock's (lost: 503), the second one the shop's own.
    let left = guard.while_held(shop.stock.sell(&item, token)).await??;
    // The sale is committed: whether the release arrives now or later does not change it.
    drop(guard);
    Ok(Json(Sold { item, left, token }))
}

/// What the leader counted last, if this instance is the leader.
async fn stocktaking(State(shop): State<Shop>) -> Json<Option<Taken>> {
    Json(shop.stocktaking.last())
}
