//! Ownership is the guard: a value that moves from task to task, never a thread.

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = tenure::connect("memory:").await?;
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let first = locks.lock("upload").acquire().await?;
    println!("prepared under token {}", first.token());
    let finish = tokio::spawn(async move {
        let guard: tenure::Guard = receiver.await.expect("the first task hands it over");
        println!("finished under token {}", guard.token());
        guard.release().await
    });
    sender.send(first).map_err(|_| "nobody takes it over")?;
    finish.await??;
    Ok(())
}
