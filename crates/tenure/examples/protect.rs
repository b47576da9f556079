//! Protect a resource: acquire the lock, work while it is held, pass the token, release the lock.

use tenure::FencingToken;
use tenure::fence::Fenced;

/// A stand-in for a database that refuses a write with an older token than it has seen.
#[derive(Default)]
struct Orders {
    paid: Fenced<Vec<u32>>,
}

impl Orders {
    async fn pay(&self, order: u32, token: FencingToken) -> Result<(), Box<dyn std::error::Error>> {
        self.paid.admit(token)?.push(order);
        println!("order {order} is paid, under token {token}");
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let orders = Orders::default();
    let locks = tenure::connect("memory:").await?;
    let guard = locks.lock("orders/42").acquire().await?;
    guard.while_held(orders.pay(42, guard.token())).await??;
    guard.release().await?;

    // Acquire, work and release in one call.
    let orders = &orders;
    locks
        .lock("orders/42")
        .run(|lease| async move { orders.pay(42, lease.token()).await })
        .await??;
    Ok(())
}
