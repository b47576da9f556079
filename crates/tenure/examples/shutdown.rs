//! A graceful shutdown: no new locks, holders may finish, every lock is released.

use std::time::Duration;

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let locks = tenure::connect("memory:").await?;
    let guard = locks.lock("orders/42").acquire().await?;
    let holder = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        guard.release().await
    });
    locks.shutdown(Duration::from_secs(5)).await?;
    println!("the holder finished: {:?}", holder.await.map(|released| released.is_ok()));
    let error = locks.lock("orders/43").acquire().await.expect_err("the client is closed");
    println!("{error}");
    Ok(())
}
