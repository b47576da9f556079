//! Leader election: only the leader works. When leadership is lost, the work stops, and the program
//! leads again when it can. At SIGTERM the leader ends its work and resigns, so that the next one
//! leads at once. An observer, here in the same program, learns who leads.

use std::time::Duration;

use tenure::{Client, ErrorKind, Lease, Observer};
use tokio::signal::unix::{SignalKind, signal};

/// Works until the client shuts down; if leadership is lost, it is dropped at its next await.
async fn work(term: Lease) -> u32 {
    println!("leading under token {}", term.token());
    let mut beats = 0;
    loop {
        tokio::select! {
            () = term.closing() => return beats,
            () = tokio::time::sleep(Duration::from_millis(10)) => beats += 1,
        }
    }
}

/// Leads whenever it can, until the client shuts down.
async fn lead(locks: Client) -> tenure::Result<u32> {
    let election = locks.election("leader").note("http://127.0.0.1:80");
    match election.lead(work).await {
        // The shutdown came while another led.
        Err(error) if error.kind() == ErrorKind::Closed => Ok(0),
        ended => ended,
    }
}

/// Reports who leads, now and after every change.
async fn report(mut seen: Observer) {
    loop {
        match seen.next().await {
            Ok(Some(leader)) => println!("the leader is at {}", leader.holder.note),
            Ok(None) => println!("there is no leader"),
            Err(error) if error.kind() == ErrorKind::Closed => return,
            // Repeated by the next call, after a pause.
            Err(error) => eprintln!("it is not known who leads: {error}"),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut terminated = signal(SignalKind::terminate())?;
    let locks = tenure::connect("memory:").await?;
    let observer = tokio::spawn(report(locks.election("leader").observe()));
    let leader = tokio::spawn(lead(locks.clone()));
    tokio::select! {
        _ = terminated.recv() => {}
        // A service has no such end; an example does.
        () = tokio::time::sleep(Duration::from_millis(100)) => {}
    }
    // Tells the leader, and waits until it has resigned, or for five seconds.
    locks.shutdown(Duration::from_secs(5)).await?;
    observer.await?;
    println!("done after {} beats", leader.await??);
    Ok(())
}
