//! Leader election: only the leader works. When leadership is lost, the work stops, and the program
//! tries to become leader again. At SIGTERM the leader ends its work and releases the lock, so that
//! the next one leads at once.

use std::time::Duration;

use tenure::{Client, ErrorKind, Lease};
use tokio::signal::unix::{SignalKind, signal};

/// Works until the client shuts down; if the lock is lost, it is dropped at its next await.
async fn lead(lease: Lease) -> u32 {
    println!("leading under token {}", lease.token());
    let mut beats = 0;
    loop {
        tokio::select! {
            () = lease.closing() => return beats,
            () = tokio::time::sleep(Duration::from_millis(10)) => beats += 1,
        }
    }
}

/// Leads whenever it can, until the client shuts down.
async fn lead_again_and_again(locks: Client) -> tenure::Result<u32> {
    let lock = locks.lock("leader");
    loop {
        match lock.run(lead).await {
            Ok(beats) => return Ok(beats),
            Err(error) => match error.kind() {
                // The lock paces this loop: `run` retries an unreachable server for one lease.
                ErrorKind::Lost | ErrorKind::Unavailable => eprintln!("{error}"),
                // The shutdown came while another led.
                ErrorKind::Closed => return Ok(0),
                _ => return Err(error),
            },
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut terminated = signal(SignalKind::terminate())?;
    let locks = tenure::connect("memory:").await?;
    let leader = tokio::spawn(lead_again_and_again(locks.clone()));
    tokio::select! {
        _ = terminated.recv() => {}
        // A service has no such end; an example does.
        () = tokio::time::sleep(Duration::from_millis(100)) => {}
    }
    // Tells the leader, and waits until it has released its lock, or for five seconds.
    locks.shutdown(Duration::from_secs(5)).await?;
    println!("done after {} beats", leader.await??);
    Ok(())
}
