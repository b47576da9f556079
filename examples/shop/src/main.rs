//! A shop: a service as it should use tenure. Locks are in Redis, the stock is in PostgreSQL behind
//! a fence, a busy lock is a 409 that names the holder, one instance of several takes stock, and
//! SIGTERM ends all of it in order.
//!
//! `cargo run -p shop` starts servers of its own; `LOCK_URL` and `DATABASE_URL` name others. Then:
//!
//! ```console
//! $ curl -X POST http://127.0.0.1:3000/items/42/sell
//! ```
//!
//! - `api`: the routes
//! - `error`: which error is which status
//! - `leader`: what one instance does for all
//! - `stock`: the stock, and its fence

mod api;
mod error;
mod leader;
mod stock;
#[cfg(test)]
mod tests;

use std::time::Duration;

use anyhow::{Context, Result};
use sqlx::PgPool;
use tenure::{Client, Config};
use tenure_servers::{Cluster, Options, Topology};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::leader::Stocktaking;
use crate::stock::Stock;

/// How long requests and the leader may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// What the handlers share.
#[derive(Clone)]
struct Shop {
    locks: Client,
    stock: Stock,
    stocktaking: Stocktaking,
}

#[tokio::main]
async fn main() -> Result<()> {
    // Before anything that takes time: a SIGTERM that comes early must not be missed.
    let terminated = terminated()?;
    let (lock_url, _redis) = url_or_server("LOCK_URL", Topology::Redis)?;
    let (database_url, _postgres) = url_or_server("DATABASE_URL", Topology::Postgres)?;
    // Connects at its first use: the shop may start before its Redis does, by a minute.
    let config: Config = lock_url.parse()?;
    let config = config.prefix("shop/").ttl(Duration::from_secs(10));
    let locks = config.outage(Duration::from_secs(60)).connect_lazy()?;
    let stock = Stock::Postgres(PgPool::connect(&database_url).await?);
    // Instances that start together would create the same table at the same moment.
    locks.lock("schema").run(|_| stock.create()).await?.map_err(anyhow::Error::from_boxed)?;
    let shop = Shop { locks: locks.clone(), stock, stocktaking: Stocktaking::default() };

    let leader = tokio::spawn(leader::lead(shop.clone()));
    let port = std::env::var("PORT").unwrap_or_else(|_| "3000".to_owned());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    println!("curl -X POST http://{}/items/42/sell", listener.local_addr()?);
    // Requests that are under way end first, with their locks.
    axum::serve(listener, api::routes(shop)).with_graceful_shutdown(terminated).await?;
    // Then the leader hears it, and releases its lock: another instance leads at once.
    locks.shutdown(GRACE).await?;
    leader.await??;
    println!("closed");
    Ok(())
}

/// Returns at SIGTERM or Ctrl-C.
fn terminated() -> Result<impl Future<Output = ()> + Send> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// The URL in this variable, or that of a server that is started for this run.
fn url_or_server(variable: &str, topology: Topology) -> Result<(String, Option<Cluster>)> {
    if let Ok(url) = std::env::var(variable) {
        return Ok((url, None));
    }
    let advice = || format!("set {variable} to a server that runs");
    let server = tenure_servers::start(topology, &Options::default()).with_context(advice)?;
    Ok((server.url(), Some(server)))
}
