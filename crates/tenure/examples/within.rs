//! Wait for a short time, otherwise report the holder: what an HTTP handler needs.

use std::time::Duration;

use tenure::{Attempt, Client};

async fn sell(locks: &Client, item: u32) -> tenure::Result<u16> {
    match locks.lock(format!("stock/{item}")).acquire_within(Duration::from_millis(200)).await? {
        Attempt::Granted(guard) => {
            guard.release().await?;
            Ok(200)
        }
        Attempt::Busy(busy) => {
            println!("{busy}");
            Ok(409)
        }
    }
}

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let locks = tenure::connect("memory:?owner=web-3").await?;
    let other = locks.lock("stock/42").note("inventory").acquire().await?;
    assert_eq!(sell(&locks, 42).await?, 409);
    other.release().await?;
    assert_eq!(sell(&locks, 42).await?, 200);
    Ok(())
}
