//! The guard owns the lock: it is a value that can be sent to another task, and is not bound to a
//! thread.

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = tenure::connect("memory:").await?;
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let first = locks.lock("upload").acquire().await?;
    println!("prepared under token {}", first.token());
    let finish = tokio::spawn(async move {
        let guard: tenure::Guard = receiver.await.expect("the first task sends it");
        println!("finished under token {}", guard.token());
        guard.release().await
    });
    sender.send(first).map_err(|_| "the other task has ended")?;
    finish.await??;
    Ok(())
}
