//! Wake-ups of a socket whose reader is held back, and of one that is full.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const SOON: Duration = Duration::from_secs(10);

fn pair() -> (Socket, Socket) {
    let (one, two) = UnixStream::pair().unwrap();
    (Socket::unix(one).unwrap(), Socket::unix(two).unwrap())
}

async fn read(socket: &mut Socket) -> Vec<u8> {
    let mut buffer = vec![0; 64];
    let read = tokio::time::timeout(SOON, socket.read(&mut buffer)).await.unwrap().unwrap();
    buffer.truncate(read);
    buffer
}

#[tokio::test]
async fn every_message_wakes_the_reader() {
    let (mut one, mut two) = pair();
    for round in 0..100_u8 {
        let reading = tokio::spawn(async move { (read(&mut two).await, two) });
        tokio::task::yield_now().await;
        one.write_all(&[round]).await.unwrap();
        let (message, socket) = reading.await.unwrap();
        assert_eq!(message, [round]);
        two = socket;
    }
}

#[tokio::test]
async fn what_arrived_while_the_reader_was_held_back_wakes_it_after_that() {
    let (mut one, mut two) = pair();
    let handle = two.handle();
    let reading = tokio::spawn(async move { read(&mut two).await });
    tokio::task::yield_now().await;
    let held_back = handle.hold_back();
    one.write_all(b"x").await.unwrap();
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(cfg!(not(target_os = "linux")) || !reading.is_finished(), "it was woken");
    }
    drop(held_back);
    assert_eq!(reading.await.unwrap(), b"x");
}

/// The gate remembers that the socket was readable, and then does not report that it is again.
#[tokio::test]
async fn what_arrives_before_the_end_of_a_wait_wakes_the_reader_each_time() {
    let (mut one, mut two) = pair();
    let handle = two.handle();
    for round in 0..20_u8 {
        one.write_all(&[round]).await.unwrap();
        assert_eq!(read(&mut two).await, [round]);
        let reading = tokio::spawn(async move { (read(&mut two).await, two) });
        tokio::task::yield_now().await;
        let held_back = handle.hold_back();
        one.write_all(b"x").await.unwrap();
        drop(held_back);
        let (message, socket) = reading.await.unwrap();
        assert_eq!(message, b"x");
        two = socket;
    }
}

/// A buffer may have room for a part only. The gate does not report the rest, if it remembers
/// that the socket was readable before.
#[tokio::test]
async fn what_a_full_buffer_left_unread_is_read_next() {
    let (mut one, mut two) = pair();
    let handle = two.handle();
    for round in 0..20_u8 {
        one.write_all(&[round]).await.unwrap();
        assert_eq!(read(&mut two).await, [round]);
        let reading = tokio::spawn(async move {
            let mut parts = Vec::new();
            for _ in 0..3 {
                let mut part = [0];
                tokio::time::timeout(SOON, two.read_exact(&mut part)).await.unwrap().unwrap();
                parts.push(part[0]);
            }
            (parts, two)
        });
        tokio::task::yield_now().await;
        let held_back = handle.hold_back();
        one.write_all(b"xyz").await.unwrap();
        drop(held_back);
        let (parts, socket) = reading.await.unwrap();
        assert_eq!(parts, b"xyz");
        two = socket;
    }
}

#[tokio::test]
async fn a_thread_that_waits_reads_without_the_reactor() {
    let (mut one, mut two) = pair();
    let handle = two.handle();
    for round in 0..100_u8 {
        let held_back = handle.hold_back();
        assert!(!held_back.wait_readable(Duration::from_micros(100)));
        one.write_all(&[round]).await.unwrap();
        assert!(held_back.wait_readable(Duration::from_millis(900)));
        assert_eq!(futures_util::FutureExt::now_or_never(read(&mut two)).unwrap(), [round]);
        drop(held_back);
    }
}

/// Both directions are full at some time, and both sides write before they read.
#[tokio::test]
async fn a_full_buffer_loses_no_wake_up() {
    const BYTES: usize = 4 << 20;
    let run = |socket: Socket| async move {
        let (mut reader, mut writer) = tokio::io::split(socket);
        let write = async {
            writer.write_all(&vec![7; BYTES]).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let read = async {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).await.unwrap();
            all.len()
        };
        tokio::join!(write, read).1
    };
    let (one, two) = pair();
    let both = async { tokio::join!(run(one), run(two)) };
    assert_eq!(tokio::time::timeout(SOON, both).await.unwrap(), (BYTES, BYTES));
}
